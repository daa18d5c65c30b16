//! The shell: logs, configuration, listener, run, exit code; or a client of a registry.

use std::process::ExitCode;

use clap::Parser as _;
use registry_svc::client;
use registry_svc::config::{Command, Config, Raw};
use skillyard::service::serve::stop_signal;
use tokio::net::TcpListener;

fn main() -> ExitCode {
    let raw = match Raw::try_parse() {
        Ok(raw) => raw,
        Err(error) => {
            let code = if error.use_stderr() { 64 } else { 0 };
            return error.print().map_or(ExitCode::FAILURE, |()| ExitCode::from(code));
        }
    };
    if let Some(Command::Approvals(args)) = raw.command {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        return runtime.map_or(ExitCode::FAILURE, |runtime| runtime.block_on(client::run(args)).into());
    }
    raw.start_logging();
    let config = match Config::check(&raw) {
        Ok(config) => config,
        Err(faults) => {
            faults.iter().for_each(|fault| tracing::error!("bad configuration: {fault}"));
            return ExitCode::from(64);
        }
    };
    serve(config).inspect_err(|error| tracing::error!("{error}")).map_or(ExitCode::FAILURE, |()| ExitCode::SUCCESS)
}

fn serve(config: Config) -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let served = runtime.block_on(async {
        let (stop, listen) = (stop_signal()?, config.listen);
        let listener =
            TcpListener::bind(listen).await.map_err(|error| format!("cannot listen on {listen}: {error}"))?;
        let stop = async { tracing::info!("stopping after {}", stop.await) };
        Ok(registry_svc::run(config, listener, stop).await?)
    });
    runtime.shutdown_background(); // A root that hangs has a thread that cannot be ended.
    served
}
