//! What a binary does around its service: the listener, the stop signal, and what it says when it fails.

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::net::TcpListener;
use tracing::error;

use crate::service::signals::Stop;
use crate::service::telemetry::{self, LogFormat};

/// Exit code of a configuration that cannot be used, as in sysexits.h (EX_USAGE).
const BAD_CONFIGURATION: u8 = 64;
/// Of anything else that keeps it from serving.
const FAILURE: u8 = 1;

/// Binds, and runs a service until SIGTERM or SIGINT.
pub async fn serve<E, F>(listen: SocketAddr, run: impl FnOnce(TcpListener, Stop) -> F) -> ExitCode
where
    E: fmt::Display,
    F: Future<Output = Result<(), E>>,
{
    let stop = match Stop::on_signals() {
        Ok(stop) => stop,
        Err(error) => return failure(&error),
    };
    let listener = match TcpListener::bind(listen).await {
        Ok(listener) => listener,
        Err(error) => {
            error!(address = %listen, %error, "the address cannot be listened on: stop what holds it, or give another with --listen");
            telemetry::flush();
            return ExitCode::from(FAILURE);
        }
    };
    match run(listener, stop).await {
        Ok(()) => {
            telemetry::flush();
            ExitCode::SUCCESS
        }
        Err(error) => failure(&error),
    }
}

/// Says what is wrong with the configuration, a line each, whatever its log level is.
pub fn bad_configuration(format: LogFormat, faults: &[impl fmt::Display]) -> ExitCode {
    telemetry::init(format, telemetry::DEFAULT_FILTER);
    for fault in faults {
        error!("bad configuration: {fault}");
    }
    telemetry::flush();
    ExitCode::from(BAD_CONFIGURATION)
}

/// Says why it cannot go on.
pub fn failure(error: &impl fmt::Display) -> ExitCode {
    // Unless logs were started already.
    telemetry::init(LogFormat::default(), telemetry::DEFAULT_FILTER);
    error!("{error}");
    telemetry::flush();
    ExitCode::from(FAILURE)
}
