//! One watcher of the catalog: what leads from what it has to the current state, whenever that is another, and word in
//! between that it is not. Messages come encoded, and go to the line as they are.

use std::collections::HashMap;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message as _;
use prost::bytes::{BufMut as _, Bytes};
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::package_service_server::PackageServiceServer;
use skillyard::service::error::{Reason, Refusal};
use tokio::sync::{mpsc, watch as value};
use tokio::time::{Instant, sleep_until, timeout};
use tonic::body::Body;
use tonic::codec::{Codec, EncodeBuf, Encoder};
use tonic::codegen::Service;
use tonic::server::{Grpc, NamedService, ServerStreamingService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstDecoder;

use super::package::{self, Messages};
use super::states::State;
use super::unavailable;
use crate::catalog::reload::Unavailable;

/// Between two messages of a watch.
const HEARTBEAT: Duration = Duration::from_secs(15);
/// A client that takes nothing for so long holds memory for nothing.
const STALLED: Duration = Duration::from_secs(60);
/// What is answered here; everything else is for the generated server.
const WATCH_CATALOG: &str = "/skillyard.registry.v1.PackageService/WatchCatalog";

/// What a watcher has.
#[derive(Debug)]
pub(super) struct Known {
    /// Empty for nothing.
    pub(super) version: String,
    /// Digests by skill name, as far as it said.
    pub(super) digests: Arc<HashMap<String, String>>,
}

/// A `WatchCatalogResponse`, encoded.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Encoded(Bytes);

impl Encoded {
    /// The message that it is.
    pub(super) fn decoded(self) -> pb::WatchCatalogResponse {
        // It was encoded here.
        pb::WatchCatalogResponse::decode(self.0).unwrap_or_default()
    }
}

/// Sends what leads to the current state whenever it is not the one that the client has, and word in between that it
/// still is.
pub(super) async fn watch(
    mut states: value::Receiver<Option<Arc<State>>>,
    mut known: Known,
    sender: &mpsc::Sender<Result<Encoded, Status>>,
) -> Result<(), Gone> {
    // None until the client has had a first message.
    let mut heartbeat_at: Option<Instant> = None;
    loop {
        let current = states.borrow_and_update().clone();
        if let Some(state) = current {
            if state.version() != known.version {
                let Some(messages) = state.messages(&known).await else {
                    let refusal =
                        Refusal::new(Reason::Internal, "the catalog could not be encoded: the registry's log says why");
                    return send(sender, Err(refusal.into())).await;
                };
                known = Known { version: state.version().to_owned(), digests: Arc::default() };
                // A slow client holds no catalog.
                drop(state);
                for message in messages.iter() {
                    send(sender, Ok(Encoded(message.clone()))).await?;
                }
                heartbeat_at = Some(Instant::now() + HEARTBEAT);
            } else if heartbeat_at.is_none_or(|at| at <= Instant::now()) {
                let word = pb::WatchCatalogResponse { catalog_version: known.version.clone(), ..Default::default() };
                send(sender, Ok(Encoded(word.encode_to_vec().into()))).await?;
                known.digests = Arc::default();
                heartbeat_at = Some(Instant::now() + HEARTBEAT);
            }
        }
        tokio::select! {
            changed = states.changed() => if changed.is_err() {
                return send(sender, Err(unavailable(Unavailable::Stopping).into())).await;
            },
            () = sleep_until(heartbeat_at.unwrap_or_else(|| Instant::now() + HEARTBEAT)) => {}
            () = sender.closed() => return Ok(()),
        }
    }
}

/// The client has gone, or takes nothing.
#[derive(Debug)]
pub(super) struct Gone;

async fn send(sender: &mpsc::Sender<Result<Encoded, Status>>, message: Result<Encoded, Status>) -> Result<(), Gone> {
    match timeout(STALLED, sender.send(message)).await {
        Ok(sent) => sent.map_err(|_| Gone),
        Err(_) => {
            tracing::info!("a watcher has taken nothing for {STALLED:?}: its stream is ended, and it may ask again");
            Err(Gone)
        }
    }
}

/// PackageService, with WatchCatalog answered from bytes.
#[derive(Clone, Debug)]
pub(super) struct Server {
    service: Arc<package::Service>,
    others: PackageServiceServer<package::Service>,
}

impl Server {
    pub(super) fn new(service: package::Service) -> Self {
        let service = Arc::new(service);
        Self { others: PackageServiceServer::from_arc(Arc::clone(&service)), service }
    }
}

impl NamedService for Server {
    const NAME: &'static str = <PackageServiceServer<package::Service> as NamedService>::NAME;
}

type Answer<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Service<http::Request<Body>> for Server {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answer<Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Service::<http::Request<Body>>::poll_ready(&mut self.others, context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        if request.uri().path() != WATCH_CATALOG {
            return self.others.call(request);
        }
        let watching = Watching(Arc::clone(&self.service));
        Box::pin(async move { Ok(Grpc::new(AsItIs).server_streaming(watching, request).await) })
    }
}

struct Watching(Arc<package::Service>);

impl ServerStreamingService<pb::WatchCatalogRequest> for Watching {
    type Response = Encoded;
    type ResponseStream = Messages<Encoded>;
    type Future = std::future::Ready<Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<pb::WatchCatalogRequest>) -> Self::Future {
        std::future::ready(self.0.watch(request))
    }
}

/// Messages that are bytes already.
struct AsItIs;

impl Codec for AsItIs {
    type Encode = Encoded;
    type Decode = pb::WatchCatalogRequest;
    type Encoder = Self;
    type Decoder = ProstDecoder<pb::WatchCatalogRequest>;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::default()
    }
}

impl Encoder for AsItIs {
    type Item = Encoded;
    type Error = Status;

    fn encode(&mut self, Encoded(bytes): Encoded, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(bytes.len());
        to.put(bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::changes::Changes;
    use crate::catalog::{Catalog, fixture};

    fn catalog(skills: &[&str]) -> Catalog {
        fixture::catalog(skills.iter().map(|name| fixture::described(name, String::new())).collect(), Vec::new())
    }

    fn known(version: &str) -> Known {
        Known { version: version.into(), digests: Arc::default() }
    }

    #[tokio::test]
    async fn a_client_that_has_the_state_gets_word_at_once_and_every_15_s() {
        tokio::time::pause();
        let state = || Arc::new(State::new(Arc::new(catalog(&[])), Changes::default()));
        let version = state().version().to_owned();
        let (publish, states) = value::channel(None);
        let (sender, mut messages) = mpsc::channel(2);
        let has = known(&version);
        let watching = tokio::spawn(async move { watch(states, has, &sender).await.is_ok() });
        let begun = Instant::now();
        let word = pb::WatchCatalogResponse { catalog_version: version, ..Default::default() };
        tokio::time::sleep(HEARTBEAT * 2).await;
        assert!(messages.try_recv().is_err(), "there is nothing to give word of before the first catalog");
        publish.send_replace(Some(state()));
        assert_eq!(messages.recv().await.unwrap().unwrap().decoded(), word);
        for i in 1..4 {
            // States of the same version come in between, and are no news.
            tokio::time::sleep(HEARTBEAT / 3).await;
            publish.send_replace(Some(state()));
            assert_eq!(messages.recv().await.unwrap().unwrap().decoded(), word);
            assert_eq!(begun.elapsed().as_secs(), HEARTBEAT.as_secs() * (2 + i));
        }
        drop(publish);
        assert_eq!(messages.recv().await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
        assert!(watching.await.unwrap());
    }

    #[tokio::test]
    async fn a_client_that_is_behind_gets_what_it_missed_as_one_change() {
        let (publish, states) = value::channel(None);
        let (sender, mut messages) = mpsc::channel(1);
        let watching = tokio::spawn(async move { watch(states, known(""), &sender).await.is_ok() });
        let mut changes = Changes::default();
        let mut last = Arc::new(catalog(&["a"]));
        publish.send_replace(Some(Arc::new(State::new(Arc::clone(&last), changes.clone()))));
        let first = messages.recv().await.unwrap().unwrap().decoded();
        assert!(first.full && first.changed[0].name == "a");
        for skills in [&["a", "b"][..], &["a", "b", "c"], &["b", "c"], &["b", "c", "d"]] {
            let next = Arc::new(catalog(skills));
            changes.add(&last, &next);
            last = next;
            publish.send_replace(Some(Arc::new(State::new(Arc::clone(&last), changes.clone()))));
        }
        // Nothing was taken meanwhile; what was made before the last came may still come first.
        let (mut has, mut version) = (std::collections::BTreeSet::from(["a".to_owned()]), String::new());
        let mut count = 0;
        while version != last.version().to_string() {
            let message = messages.recv().await.unwrap().unwrap().decoded();
            assert!(!message.full);
            has.extend(message.changed.into_iter().map(|skill| skill.name));
            message.removed.iter().for_each(|name| assert!(has.remove(name)));
            (version, count) = (message.catalog_version, count + 1);
        }
        assert!(count <= 3, "{count}");
        assert_eq!(Vec::from_iter(has), ["b", "c", "d"]);
        drop(publish);
        assert!(messages.recv().await.unwrap().is_err() && watching.await.unwrap());
    }

    #[tokio::test]
    async fn a_client_that_takes_nothing_is_let_go() {
        tokio::time::pause();
        let (publish, states) = value::channel(None);
        let (sender, messages) = mpsc::channel(1);
        let watching = tokio::spawn(async move { watch(states, known(""), &sender).await.is_ok() });
        for skills in [&["a"][..], &["b"], &["c"]] {
            publish.send_replace(Some(Arc::new(State::new(Arc::new(catalog(skills)), Changes::default()))));
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        assert!(!watching.await.unwrap());
        drop(messages);
    }
}
