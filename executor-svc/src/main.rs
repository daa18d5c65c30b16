//! `executor-svc` serves; `executor-svc run` calls one that serves; `executor-svc slot` is one of its slot processes.

use std::process::ExitCode;

use executor_svc::config::{Cli, Flags};
use executor_svc::{client, slot};
use skillyard::service::signals::Stop;
use skillyard::service::{heap, shell, telemetry};

fn main() -> ExitCode {
    // A slot is small and there are many: it parses nothing and starts no runtime.
    if std::env::args_os().nth(1).is_some_and(|word| word == "slot") {
        return slot::supervisor::main(std::env::args_os().skip(2));
    }
    // Before the first variable or file is read that skills must not see.
    if let Err(error) = slot::hide_process() {
        return shell::failure(&error);
    }
    let cli = match Cli::read() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    if cli.command.is_none() {
        heap::give_back();
    }
    // One thread: a run costs system calls, and handing them between threads would cost as much again.
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return shell::failure(&error),
    };
    let code = match cli.command {
        Some(command) => runtime.block_on(client::execute(command)),
        None => runtime.block_on(serve(cli.flags)),
    };
    // What is still on a blocking thread is not waited for.
    runtime.shutdown_background();
    code
}

async fn serve(flags: Flags) -> ExitCode {
    let format = flags.log_format();
    match flags.check() {
        Ok(config) => {
            telemetry::init(config.log_format, &config.log);
            let listen = config.listen;
            let run = |listener, stop: Stop| {
                let hastened = stop.hastened();
                executor_svc::run(config, listener, stop, hastened)
            };
            shell::serve(listen, run).await
        }
        Err(faults) => shell::bad_configuration(format, &faults.0),
    }
}
