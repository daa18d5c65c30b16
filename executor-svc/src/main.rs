//! The shell.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == "slot") {
        return executor_svc::slot::supervisor::main(arguments);
    }
    ExitCode::from(64)
}
