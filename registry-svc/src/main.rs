//! The shell: logs, configuration, listener, run, exit code; or a client of a registry.

use std::process::ExitCode;

use clap::Parser as _;
use registry_svc::config::{Command, Config, Raw};
use registry_svc::{admin, client};
use skillyard::service::shell;

fn main() -> ExitCode {
    let raw = match Raw::try_parse() {
        Ok(raw) => raw,
        Err(error) => {
            let code = if error.use_stderr() { 64 } else { 0 };
            return error.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code));
        }
    };
    if let Some(Command::Token(command)) = &raw.command {
        return command.run().map_or_else(|error| shell::failure(&error), |()| ExitCode::SUCCESS);
    }
    if let Some(Command::Approvals(args)) = raw.command {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.map_or(ExitCode::FAILURE, |runtime| runtime.block_on(client::run(args)).into());
    }
    if let Some(Command::Sync(args)) = &raw.command {
        let puller = match args.check() {
            Ok(puller) => puller,
            Err(faults) => return shell::bad_configuration(raw.log_format(), &faults),
        };
        raw.start_logging();
        return admin::once::run(puller).into();
    }
    let config = match Config::check(&raw) {
        Ok(config) => config,
        Err(faults) => return shell::bad_configuration(raw.log_format(), &faults),
    };
    raw.start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return shell::failure(&error),
    };
    let listen = config.listen;
    let code = runtime.block_on(shell::serve(listen, |listener, stop| registry_svc::run(config, listener, stop)));
    // A root that hangs has a thread that cannot be ended.
    runtime.shutdown_background();
    code
}
