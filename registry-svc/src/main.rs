//! The shell: logs, configuration, listener, run, exit code; or a command that serves nothing.

use std::process::ExitCode;

use registry_svc::config::{Command, Config, Raw};
use registry_svc::{check, client};
use skillyard::service::shell;

fn main() -> ExitCode {
    let raw = match Raw::read() {
        Ok(raw) => raw,
        Err(code) => return code,
    };
    match &raw.command {
        Some(Command::Token(command)) => {
            return command.run().map_or_else(|error| shell::failure(&error), |()| ExitCode::SUCCESS);
        }
        Some(Command::Approvals(args)) => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            return runtime
                .map_or(ExitCode::FAILURE, |runtime| runtime.block_on(client::run(args.as_ref().clone())).into());
        }
        Some(Command::Check(args)) => return check::run(args, raw.host()).into(),
        None => {}
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
