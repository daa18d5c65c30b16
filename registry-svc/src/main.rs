//! The shell: logs, configuration, listener, run, exit code; or a command that serves nothing.

use std::process::ExitCode;

use registry_svc::command;
use registry_svc::config::{Config, Raw};
use skillyard::service::{heap, shell};

fn main() -> ExitCode {
    let raw = match Raw::read() {
        Ok(raw) => raw,
        Err(code) => return code,
    };
    if let Some(command) = raw.command.clone() {
        return command::run(command, &raw);
    }
    heap::give_back();
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
