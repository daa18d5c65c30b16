//! The admin port, for probes and for Prometheus: /livez, /readyz and /metrics over plain HTTP. It asks for no identity,
//! changes nothing, and tells no argument and no result.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

use super::readiness::Readiness;

/// What Prometheus asks for.
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The port could not be had.
#[derive(Debug, thiserror::Error)]
#[error(
    "the admin port {address} cannot be listened on: {source}; stop what holds it, or give another with --admin-listen"
)]
pub struct AdminError {
    address: SocketAddr,
    source: io::Error,
}

/// What the port tells.
#[derive(Clone, Debug)]
struct Told {
    readiness: Readiness,
    metrics: Arc<Registry>,
}

/// Serves as long as it lives.
#[derive(Debug)]
pub struct Admin {
    task: JoinHandle<io::Result<()>>,
}

impl Admin {
    /// Binds, and serves.
    ///
    /// # Errors
    /// The address cannot be listened on.
    pub async fn start(address: SocketAddr, readiness: Readiness, metrics: Registry) -> Result<Self, AdminError> {
        let fault = |source| AdminError { address, source };
        let listener = TcpListener::bind(address).await.map_err(fault)?;
        tracing::info!(address = %listener.local_addr().map_err(fault)?, "admin port: /livez, /readyz, /metrics");
        let told = Told { readiness, metrics: Arc::new(metrics) };
        let router = Router::new()
            .route("/livez", get(async || "alive\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics_text))
            .with_state(told);
        Ok(Self { task: tokio::spawn(async move { axum::serve(listener, router).await }) })
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn readyz(State(told): State<Told>) -> impl IntoResponse {
    match told.readiness.state() {
        Ok(()) => (StatusCode::OK, "ready\n".to_owned()),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

async fn metrics_text(State(told): State<Told>) -> impl IntoResponse {
    let mut text = String::new();
    match encode(&mut text, &told.metrics) {
        Ok(()) => Ok(([(header::CONTENT_TYPE, OPEN_METRICS)], text)),
        Err(error) => Err((StatusCode::INTERNAL_SERVER_ERROR, format!("the metrics cannot be written: {error}\n"))),
    }
}
