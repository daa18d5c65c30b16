//! Refusals that the transport makes before a service sees the call, with a reason like all others: a message that is too
//! large, or that cannot be read.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use super::error::{Reason, Refusal};

/// Puts reasons to what the transport refuses.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExplainLayer;

impl<S> Layer<S> for ExplainLayer {
    type Service = Explained<S>;

    fn layer(&self, inner: S) -> Explained<S> {
        Explained { inner }
    }
}

/// A service whose refusals all have reasons.
#[derive(Clone, Debug)]
pub(super) struct Explained<S> {
    inner: S,
}

impl<S, B> Service<Request<B>> for Explained<S>
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
        let runs = request.uri().path().ends_with("/RunSkill");
        Answer { answer: self.inner.call(request), runs }
    }
}

/// The answer to come.
pub(super) struct Answer<F> {
    answer: F,
    /// What is large in a call to run a skill are its arguments.
    runs: bool,
}

impl<F, E> Future for Answer<F>
where
    F: Future<Output = Result<Response<Body>, E>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let response = ready!(Pin::new(&mut self.answer).poll(context))?;
        let headers = response.headers();
        if !headers.contains_key("grpc-status") || headers.contains_key("grpc-status-details-bin") {
            return Poll::Ready(Ok(response));
        }
        let refusal = Status::from_header_map(headers).and_then(|status| explain(&status, self.runs));
        Poll::Ready(Ok(refusal.map_or(response, |refusal| Status::from(refusal).into_http())))
    }
}

/// By the words of the transport, which has no others.
fn explain(status: &Status, runs: bool) -> Option<Refusal> {
    let words = status.message();
    match status.code() {
        Code::OutOfRange if words.contains("message length too large") => {
            let reason = if runs { Reason::ArgumentsTooLarge } else { Reason::InvalidRequest };
            Some(Refusal::new(reason, format!("the message is too large: {words}; send less")))
        }
        Code::Internal if words.contains("decode") => {
            let message = format!(
                "the message cannot be read: {words}; encode it by the published proto files, and send arguments that are \
                 nested deeply as args_json"
            );
            Some(Refusal::new(Reason::InvalidRequest, message))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_transport_says_is_explained() {
        let large =
            Status::out_of_range("Error, decoded message length too large: found 9 bytes, the limit is: 8 bytes");
        assert_eq!(explain(&large, true).map(|refusal| refusal.reason()), Some(Reason::ArgumentsTooLarge));
        assert_eq!(explain(&large, false).map(|refusal| refusal.reason()), Some(Reason::InvalidRequest));
        let broken = Status::internal("failed to decode Protobuf message: X.y: recursion limit reached");
        assert_eq!(explain(&broken, true).map(|refusal| refusal.reason()), Some(Reason::InvalidRequest));
        assert_eq!(explain(&Status::internal("a fault"), true), None);
        assert_eq!(explain(&Status::unimplemented(""), true), None);
    }
}
