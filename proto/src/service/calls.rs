//! What calls came to: by method and code, how long they took, and which are open. Only methods that are served are
//! counted, so that nobody makes more rows by what he calls; and a call takes no lock, for the table never changes.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prost::Message as _;
use prost_types::FileDescriptorSet;
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::access_log::name_of_code;
use super::figures::{Figures, metric};
use super::histogram::Histogram;
use crate::pb;

/// Codes are 0 to 16.
const CODES: i32 = 17;
/// From calls that read memory to streams that are followed for minutes.
const BOUNDS: &[f64] =
    &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0];

/// The calls of a service since it was started. Clones are the same.
#[derive(Clone, Debug)]
pub struct Calls {
    methods: Arc<HashMap<String, Arc<Method>>>,
}

#[derive(Debug)]
struct Method {
    ended: [AtomicU64; CODES as usize],
    began: AtomicU64,
    took: Histogram,
}

impl Calls {
    /// None yet, of these services.
    #[must_use]
    pub fn of(services: &[&str]) -> Self {
        // Ours, or the build is broken; then reflection says so.
        let known = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).unwrap_or_default();
        let mut methods = HashMap::new();
        for file in &known.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                if services.contains(&name.as_str()) {
                    let paths = service.method.iter().map(|method| format!("/{name}/{}", method.name()));
                    methods.extend(paths.map(|path| (path, Arc::new(Method::new()))));
                }
            }
        }
        Self { methods: Arc::new(methods) }
    }

    fn begin(&self, path: &str) -> Option<Call> {
        let method = Arc::clone(self.methods.get(path)?);
        method.began.fetch_add(1, Ordering::Relaxed);
        Some(Call { method, began: Instant::now(), code: None })
    }
}

impl Method {
    fn new() -> Self {
        let ended = [const { AtomicU64::new(0) }; CODES as usize];
        Self { ended, began: AtomicU64::new(0), took: Histogram::new(BOUNDS) }
    }

    fn has_any(&self) -> bool {
        self.began.load(Ordering::Relaxed) > 0
    }

    fn open(&self) -> u64 {
        let ended: u64 = self.ended.iter().map(|ended| ended.load(Ordering::Relaxed)).sum();
        self.began.load(Ordering::Relaxed).saturating_sub(ended)
    }
}

/// Methods that were called at all, so that what nobody uses is not told.
impl Collector for Calls {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut figures = Figures::from(encoder);
        let mut called: Vec<_> = self.methods.iter().filter(|(_, method)| method.has_any()).collect();
        called.sort_unstable_by_key(|(path, _)| *path);
        let label = |path: &'_ String| ("method", path.trim_start_matches('/').to_owned());
        let codes = called.iter().flat_map(|(path, method)| {
            let ended = method.ended.iter().map(|ended| ended.load(Ordering::Relaxed));
            let by_code = (0..CODES).zip(ended).filter(|(_, ended)| *ended > 0);
            by_code
                .map(move |(code, ended)| ([label(path), ("code", name_of_code(Code::from(code)).into_owned())], ended))
        });
        figures.counters(metric("grpc_requests", "Calls that have ended, by method and code"), codes)?;
        let open = called.iter().map(|(path, method)| ([label(path)], method.open() as f64));
        figures.gauges(metric("grpc_requests_open", "Calls that go on, streams that are followed among them"), open)?;
        let help = "How long calls took, streams to their end";
        let took = called.iter().map(|(path, method)| ([label(path)], &method.took));
        figures.histograms(metric("grpc_request_duration", help), took)
    }
}

/// One call; it is counted when it is dropped, however it ended.
#[derive(Debug)]
struct Call {
    method: Arc<Method>,
    began: Instant,
    /// None as long as nothing was said of it, and for ever where the caller leaves before.
    code: Option<Code>,
}

impl Call {
    /// Headers or trailers, of which one has the status.
    fn note(&mut self, headers: &HeaderMap) {
        self.code = headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes())).or(self.code);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.method.took.observe(self.began.elapsed());
        let code = i32::from(self.code.unwrap_or(Code::Cancelled));
        if let Some(ended) = usize::try_from(code).ok().and_then(|code| self.method.ended.get(code)) {
            ended.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<S> Layer<S> for Calls {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, calls: self.clone() }
    }
}

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
    calls: Calls,
}

impl<S, B> Service<Request<B>> for Counted<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let call = self.calls.begin(request.uri().path());
        Answer { answer: self.inner.call(request), call }
    }
}

/// The answer to come.
#[derive(Debug)]
pub struct Answer<F> {
    answer: F,
    call: Option<Call>,
}

impl<F, E> Future for Answer<F>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let response = ready!(Pin::new(&mut self.answer).poll(context))?;
        let Some(mut call) = self.call.take() else { return Poll::Ready(Ok(response)) };
        call.note(response.headers());
        Poll::Ready(Ok(response.map(|body| Body::new(CountedBody { body, call }))))
    }
}

/// A body at whose end is how the call ended.
struct CountedBody {
    body: Body,
    call: Call,
}

impl http_body::Body for CountedBody {
    type Data = <Body as http_body::Body>::Data;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => frame.trailers_ref().into_iter().for_each(|trailers| self.call.note(trailers)),
            Some(Err(status)) => self.call.code = Some(status.code()),
            None => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
