//! Spans: what was done for a trace, from when to when. A span that has ended goes to whoever exports them, if anybody
//! does; else there are none, and they cost nothing.

use std::borrow::Cow;
use std::sync::OnceLock;
use std::time::SystemTime;

use tokio::sync::mpsc;
use tonic::Code;

use super::access_log::name_of_code;
use super::trace::TraceContext;

/// Who takes the spans of this process.
static SINK: OnceLock<mpsc::Sender<Ended>> = OnceLock::new();

/// What a span is to its parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Work within the service.
    Internal,
    /// An answer to a call.
    Server,
    /// A call.
    Client,
}

/// A span that has ended.
#[derive(Clone, Debug)]
pub struct Ended {
    /// Which one.
    pub context: TraceContext,
    /// The one above.
    pub parent: Option<TraceContext>,
    /// What was done.
    pub name: Cow<'static, str>,
    /// As what.
    pub kind: Kind,
    /// From then.
    pub began: SystemTime,
    /// Until then.
    pub ended: SystemTime,
    /// What is known of it.
    pub attributes: Vec<(&'static str, String)>,
    /// What happened meanwhile.
    pub events: Vec<(SystemTime, &'static str)>,
    /// Why it is a failure of the service, if it is one.
    pub failure: Option<String>,
}

/// A span that goes on; it ends when it is dropped.
#[derive(Debug, Default)]
pub struct Span(Option<Box<Ended>>);

/// Has the spans of this process sent there; a second call changes nothing.
pub fn export_to(sink: mpsc::Sender<Ended>) {
    // The first one counts, as with logs.
    let _ = SINK.set(sink);
}

/// Whether anybody takes spans.
#[must_use]
pub fn are_exported() -> bool {
    SINK.get().is_some()
}

impl Span {
    /// Begins. Of a trace that is not to be recorded there is no span.
    #[must_use]
    pub fn begin(
        name: impl Into<Cow<'static, str>>,
        kind: Kind,
        context: &TraceContext,
        parent: Option<&TraceContext>,
    ) -> Self {
        if !are_exported() || !context.is_sampled() {
            return Self(None);
        }
        let now = SystemTime::now();
        Self(Some(Box::new(Ended {
            context: context.clone(),
            parent: parent.cloned(),
            name: name.into(),
            kind,
            began: now,
            ended: now,
            attributes: Vec::new(),
            events: Vec::new(),
            failure: None,
        })))
    }

    /// A span of a call by gRPC, whose path is `/SERVICE/METHOD`.
    #[must_use]
    pub fn of_call(path: &str, kind: Kind, context: &TraceContext, parent: Option<&TraceContext>) -> Self {
        let path = path.trim_start_matches('/');
        let mut span = Self::begin(path.to_owned(), kind, context, parent);
        if let Some((service, method)) = path.split_once('/') {
            span.set("rpc.system", || "grpc".to_owned());
            span.set("rpc.service", || service.to_owned());
            span.set("rpc.method", || method.to_owned());
        }
        span
    }

    /// Whether it will be sent.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.0.is_some()
    }

    /// Says what is known of it.
    pub fn set(&mut self, key: &'static str, value: impl FnOnce() -> String) {
        if let Some(span) = &mut self.0 {
            span.attributes.push((key, value()));
        }
    }

    /// Says what happened at a moment.
    pub fn event(&mut self, at: SystemTime, name: &'static str) {
        if let Some(span) = &mut self.0 {
            span.events.push((at, name));
        }
    }

    /// Says that the service failed.
    pub fn fail(&mut self, why: impl FnOnce() -> String) {
        if let Some(span) = &mut self.0 {
            span.failure = Some(why());
        }
    }

    /// Says how a call ended. What is the caller's fault is no failure of the server, and one of its client.
    pub fn answered(&mut self, code: Code) {
        self.set("rpc.grpc.status_code", || i32::from(code).to_string());
        let Some(span) = &self.0 else { return };
        let fails = match (span.kind, code) {
            (_, Code::Ok) => false,
            (Kind::Client, _) => true,
            (_, Code::Unknown | Code::DeadlineExceeded | Code::Unimplemented | Code::Internal) => true,
            (_, Code::Unavailable | Code::DataLoss) => true,
            _ => false,
        };
        if fails {
            self.fail(|| name_of_code(code).into_owned());
        }
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        if let (Some(mut span), Some(sink)) = (self.0.take(), SINK.get()) {
            span.ended = SystemTime::now();
            // Where they come faster than they are sent, some are lost: no call waits for its trace.
            let _ = sink.try_send(*span);
        }
    }
}
