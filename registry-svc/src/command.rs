//! What the binary does but serve: each command by its exit code.

use std::process::ExitCode;

use skillyard::service::shell;

use crate::config::{Command, Raw};
use crate::{admin, check, client};

/// Runs a command of the command line.
#[must_use]
pub fn run(command: Command, raw: &Raw) -> ExitCode {
    match command {
        Command::Token(command) => command.run().map_or_else(|error| shell::failure(&error), |()| ExitCode::SUCCESS),
        Command::Check(args) => check::run(&args, raw.host()).into(),
        Command::Approvals(args) => with_runtime(client::run(*args)),
        Command::Runs(args) => with_runtime(client::runs::run(*args)),
        Command::Sync(args) => match args.check() {
            Ok(puller) => {
                raw.start_logging();
                admin::once::run(puller).into()
            }
            Err(faults) => shell::bad_configuration(raw.log_format(), &faults),
        },
    }
}

fn with_runtime(client: impl Future<Output = u8>) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_or_else(|error| shell::failure(&error), |runtime| runtime.block_on(client).into())
}
