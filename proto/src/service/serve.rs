//! One listener for gRPC: a listener that survives a full descriptor table, health and reflection beside the services,
//! and an end that is bounded whatever the clients do.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::Server;

use super::access::{Access, IdentifyLayer};
use super::access_log::AccessLog;
use super::calls::Calls;
use super::explained::ExplainLayer;
use super::readiness::Readiness;
use super::tls::Connections;
use crate::pb;

/// A client that answers no ping for `KEEPALIVE` + `KEEPALIVE_TIMEOUT` is gone.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls at once on one connection. A client beyond it waits, and a `CancelRun` behind it too: so it is high.
const MAX_STREAMS: u32 = 10_000;
/// Streams that a client may reset before the connection is taken for an attack. The default of 1,024 ends a
/// connection, with all its other calls, that cancelled a few hundred runs.
const MAX_RESETS: usize = 100_000;
/// What is served beside the services.
const COMMON_SERVICES: [&str; 3] = [
    tonic_health::pb::health_server::SERVICE_NAME,
    tonic_reflection::pb::v1::server_reflection_server::SERVICE_NAME,
    tonic_reflection::pb::v1alpha::server_reflection_server::SERVICE_NAME,
];
/// After a failed accept, as with no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Health and reflection, v1 and v1alpha, as routes to add these services to; not ready yet.
///
/// Reflection lists what is served and nothing else; it describes more, so that an error's details can be read.
///
/// # Errors
/// A descriptor set that cannot be read, which is a fault of the build.
pub async fn routes(services: &[&str]) -> Result<(RoutesBuilder, Readiness), tonic_reflection::server::Error> {
    let (reporter, health) = tonic_health::server::health_reporter();
    let reflection = || {
        let builder = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET)
            .include_reflection_service(false);
        COMMON_SERVICES.iter().chain(services).fold(builder, |builder, name| builder.with_service_name(*name))
    };
    let mut builder = Routes::builder();
    builder.add_service(health).add_service(reflection().build_v1()?).add_service(reflection().build_v1alpha()?);
    let readiness = Readiness::new(reporter, services);
    readiness.set(readiness.state()).await;
    Ok((builder, readiness))
}

/// Serves those who have access, and counts their calls, until `shutdown`, and then for at most `grace` more: connections
/// that are idle or stuck do not hold it up.
///
/// # Errors
/// A transport that cannot serve.
pub async fn serve(
    listener: TcpListener,
    routes: Routes,
    access: Access,
    calls: Calls,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Result<(), tonic::transport::Error> {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    if let Ok(address) = listener.local_addr() {
        access.log(&address);
    }
    let connections = Connections::new(Incoming::new(listener), access.tls());
    let server = server()
        .layer(calls)
        .layer(AccessLog)
        .layer(ExplainLayer)
        .layer(IdentifyLayer::new(access))
        .add_routes(routes)
        .serve_with_incoming_shutdown(connections, async move {
            // A sender that is gone means the same as one that spoke.
            let _ = stopped.await;
        });
    bounded(server, stop, shutdown, grace).await
}

/// Serves plain HTTP, 1.1 and 2, on a listener of its own: encrypted where gRPC is, and without its callers.
///
/// # Errors
/// A transport that cannot serve.
pub async fn serve_http(
    listener: TcpListener,
    routes: Routes,
    access: &Access,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Result<(), tonic::transport::Error> {
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let connections = Connections::new(Incoming::new(listener), access.tls());
    let server = server().accept_http1(true).add_routes(routes).serve_with_incoming_shutdown(connections, async move {
        let _ = stopped.await;
    });
    bounded(server, stop, shutdown, grace).await
}

fn server() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(MAX_RESETS))
        .http2_max_local_error_reset_streams(Some(MAX_RESETS))
}

/// Until `shutdown`, and then for at most `grace` more.
async fn bounded(
    server: impl Future<Output = Result<(), tonic::transport::Error>>,
    stop: tokio::sync::oneshot::Sender<()>,
    shutdown: impl Future<Output = ()>,
    grace: Duration,
) -> Result<(), tonic::transport::Error> {
    tokio::pin!(server, shutdown);
    tokio::select! {
        result = &mut server => return result,
        () = &mut shutdown => {}
    }
    drop(stop);
    match tokio::time::timeout(grace, server).await {
        Ok(result) => result,
        Err(_) => {
            tracing::info!(?grace, "clients that still hold a connection are cut off");
            Ok(())
        }
    }
}

/// Whether only this host can reach it.
#[must_use]
pub fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

/// Accepted connections. An error of one accept never ends the stream.
struct Incoming {
    listener: TcpListener,
    pause: Option<Pin<Box<Sleep>>>,
    /// No connection was accepted since the last error.
    failing: bool,
}

impl Incoming {
    fn new(listener: TcpListener) -> Self {
        Self { listener, pause: None, failing: false }
    }
}

impl Stream for Incoming {
    type Item = io::Result<TcpStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                std::task::ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match std::task::ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => {
                    if std::mem::take(&mut self.failing) {
                        tracing::info!("connections are accepted again");
                    }
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%error, "a connection was gone before it was served");
                        continue;
                    }
                    return Poll::Ready(Some(Ok(stream)));
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    // Once, however long it lasts: where descriptors are short, lines may be too.
                    if !std::mem::replace(&mut self.failing, true) {
                        tracing::warn!(%error, "no connection can be accepted; it is tried again until one can");
                    }
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}
