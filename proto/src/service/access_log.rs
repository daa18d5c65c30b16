//! The access log: a span around every call, and a line when it has ended, with its method, agent, code and duration.
//! Never what was asked or answered. A call that names its trace has it in every line that is logged for it, and is a span
//! of it. Where nobody listens, a call passes through as it is.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Instant;

use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};
use tracing::field::{Empty, display};
use tracing::{Instrument as _, Span, debug, debug_span, info, info_span};

use super::span::{self as trace_span, Kind};
use super::trace::TraceContext;

/// Calls of operators: they are rare and change what is served, so their lines are INFO. All others are DEBUG.
const OPERATIONS: [&str; 1] = ["/skillyard.registry.v1.CatalogService/Reload"];

/// Notes on whose behalf the current call is made.
pub fn on_behalf_of(agent: &str) {
    if !agent.is_empty() {
        Span::current().record("agent", agent);
    }
}

/// Puts the log around a service.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessLog;

impl<S> Layer<S> for AccessLog {
    type Service = Logged<S>;

    fn layer(&self, inner: S) -> Logged<S> {
        Logged { inner }
    }
}

/// A service whose calls are logged.
#[derive(Clone, Debug)]
pub(super) struct Logged<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for Logged<S>
where
    S: Service<Request<B>, Response = Response<Body>>,
    S::Future: Send + Unpin + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Answer<S::Future, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let Some(mut call) = Call::begin(&mut request) else {
            return Answer::Plain(self.inner.call(request));
        };
        let span = call.span.clone();
        let answer = span.in_scope(|| self.inner.call(request));
        let logged = async move {
            let response = answer.await?;
            call.note(response.headers());
            Ok(response.map(|body| Body::new(LoggedBody { body, call })))
        };
        Answer::Logged(Box::pin(logged.instrument(span)))
    }
}

/// The answer to come.
pub(super) enum Answer<F, E> {
    Plain(F),
    Logged(Pin<Box<dyn Future<Output = Result<Response<Body>, E>> + Send>>),
}

impl<F, E> Future for Answer<F, E>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        match self.get_mut() {
            Self::Plain(answer) => Pin::new(answer).poll(context),
            Self::Logged(answer) => answer.as_mut().poll(context),
        }
    }
}

/// A body at whose end is how the call ended.
struct LoggedBody {
    body: Body,
    call: Call,
}

impl http_body::Body for LoggedBody {
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

/// One call; its line is written when it is dropped, however it ended.
struct Call {
    span: Span,
    began: Instant,
    operation: bool,
    /// Its span in the caller's trace.
    traced: trace_span::Span,
    /// None as long as nothing was said of it, and for ever where the caller leaves before.
    code: Option<Code>,
}

impl Call {
    /// None where nobody listens.
    fn begin<B>(request: &mut Request<B>) -> Option<Self> {
        let method = request.uri().path();
        let operation = OPERATIONS.contains(&method);
        let (parent, context) = traces(method, request.headers());
        let span = match operation || parent.is_some() {
            true => info_span!("call", method, agent = Empty, trace_id = Empty),
            false => debug_span!("call", method, agent = Empty, trace_id = Empty),
        };
        let mut traced = trace_span::Span::default();
        if let Some(context) = context {
            traced = trace_span::Span::of_call(method, Kind::Server, &context, parent.as_ref());
            span.record("trace_id", display(context.trace_id()));
            request.extensions_mut().insert(context);
        }
        (!span.is_disabled() || traced.is_recorded()).then(|| Self {
            span,
            began: Instant::now(),
            operation,
            traced,
            code: None,
        })
    }

    /// Headers or trailers, of which one has the status.
    fn note(&mut self, headers: &HeaderMap) {
        self.code = headers.get("grpc-status").map(|code| Code::from_bytes(code.as_bytes())).or(self.code);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let code = self.code.unwrap_or(Code::Cancelled);
        self.traced.answered(code);
        let (code, took) = (name_of_code(code), self.began.elapsed());
        match self.operation {
            true => info!(parent: &self.span, code = %code, ?took, "answered"),
            false => debug!(parent: &self.span, code = %code, ?took, "answered"),
        }
    }
}

/// The caller's span, and that of this call: with one above it, or where spans are exported. Probes have none.
fn traces(method: &str, headers: &HeaderMap) -> (Option<TraceContext>, Option<TraceContext>) {
    if method.starts_with("/grpc.") {
        return (None, None);
    }
    let parent = TraceContext::of(headers);
    let context = match &parent {
        Some(parent) => Some(parent.child()),
        None => trace_span::are_exported().then(TraceContext::root),
    };
    (parent, context)
}

/// A code as the specification of gRPC writes it: `NOT_FOUND`.
pub(super) fn name_of_code(code: Code) -> Cow<'static, str> {
    if code == Code::Ok {
        return "OK".into();
    }
    let mut name = String::new();
    for letter in format!("{code:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_codes() {
        let names = [Code::Ok, Code::Cancelled, Code::DeadlineExceeded, Code::NotFound].map(name_of_code);
        assert_eq!(names, ["OK", "CANCELLED", "DEADLINE_EXCEEDED", "NOT_FOUND"]);
    }
}
