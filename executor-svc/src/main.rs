//! The shell.

use std::process::ExitCode;

use clap::Parser;
use executor_svc::client::{self, RunArgs};

#[derive(Debug, Parser)]
#[command(version)]
enum Command {
    Run(RunArgs),
}

fn main() -> ExitCode {
    let Command::Run(args) = match Command::try_parse() {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(64) } else { ExitCode::SUCCESS };
        }
    };
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(client::run(args)),
        Err(_) => ExitCode::FAILURE,
    }
}
