//! The trace that a call belongs to, as W3C Trace Context writes it: taken from a call's metadata, and passed on with the
//! calls that are made for it. It records nothing.

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use http::{HeaderMap, HeaderValue};

const TRACEPARENT: &str = "traceparent";
const TRACESTATE: &str = "tracestate";
/// What the specification wants passed on at least; a longer one is dropped.
const MAX_STATE_BYTES: usize = 512;
/// The one flag that means something to us.
const SAMPLED: u8 = 1;

/// A span of a trace: what is done for it names it as its parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceContext {
    trace_id: u128,
    span_id: u64,
    flags: u8,
    /// What tracing systems on the way keep of it, passed on as it came.
    state: Option<Arc<str>>,
}

/// 32 lower-case hex digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceId(u128);

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Does something for this span: the calls that it makes belong to it.
pub async fn within<F: Future>(context: TraceContext, work: F) -> F::Output {
    CURRENT.scope(context, work).await
}

/// The span for which something is done here.
#[must_use]
pub fn current() -> Option<TraceContext> {
    CURRENT.try_with(TraceContext::clone).ok()
}

impl TraceContext {
    /// The first span of a new trace.
    #[must_use]
    pub fn root() -> Self {
        let trace_id = (u128::from(random()) << 64) | u128::from(random());
        Self { trace_id, span_id: random(), flags: SAMPLED, state: None }
    }

    /// A new span below this one.
    #[must_use]
    pub fn child(&self) -> Self {
        Self { span_id: random(), ..self.clone() }
    }

    /// The caller's span, if it names one. One that cannot be read counts as none, as the specification wants it.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Option<Self> {
        let mut parents = headers.get_all(TRACEPARENT).iter();
        let (Some(parent), None) = (parents.next(), parents.next()) else { return None };
        let (trace_id, span_id, flags) = parse(parent.to_str().ok()?)?;
        let states = headers.get_all(TRACESTATE).iter().map(|state| state.to_str().map(str::trim));
        let state = states.collect::<Result<Vec<_>, _>>().unwrap_or_default().join(",");
        let state = (!state.is_empty() && state.len() <= MAX_STATE_BYTES).then(|| state.into());
        Some(Self { trace_id, span_id, flags, state })
    }

    /// The span that a call is: what its layer made of the caller's, or else the first one of a new trace.
    #[must_use]
    pub fn of_call<T>(request: &tonic::Request<T>) -> Self {
        request.extensions().get().cloned().unwrap_or_else(Self::root)
    }

    /// Names this span as the parent of a call that is made.
    pub fn put(&self, headers: &mut HeaderMap) {
        let Self { trace_id, span_id, flags, state } = self;
        if let Ok(parent) = HeaderValue::try_from(format!("00-{trace_id:032x}-{span_id:016x}-{flags:02x}")) {
            headers.insert(TRACEPARENT, parent);
        }
        match state.as_deref().map(HeaderValue::from_str) {
            Some(Ok(state)) => drop(headers.insert(TRACESTATE, state)),
            _ => drop(headers.remove(TRACESTATE)),
        }
    }

    /// Which trace it is of.
    #[must_use]
    pub fn trace_id(&self) -> TraceId {
        TraceId(self.trace_id)
    }

    /// The trace, the span, and the state, as they are exported.
    #[must_use]
    pub fn parts(&self) -> ([u8; 16], [u8; 8], &str) {
        (self.trace_id.to_be_bytes(), self.span_id.to_be_bytes(), self.state.as_deref().unwrap_or_default())
    }

    /// Whether whoever began the trace wants it recorded.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & SAMPLED != 0
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// `VERSION-TRACE-SPAN-FLAGS` in lower-case hex. Of a later version, what this one knows counts.
fn parse(text: &str) -> Option<(u128, u64, u8)> {
    let mut parts = text.trim().split('-');
    let mut hex = |digits: usize| {
        let part = parts.next()?;
        let is_hex = part.len() == digits && part.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        is_hex.then(|| u128::from_str_radix(part, 16).ok()).flatten()
    };
    let (version, trace_id, span_id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
    let has_more = parts.next().is_some();
    if trace_id == 0 || span_id == 0 || version == 0xff || (version == 0 && has_more) {
        return None;
    }
    Some((trace_id, u64::try_from(span_id).ok()?, u8::try_from(flags).ok()? & SAMPLED))
}

/// A number that is not 0, and that no other process comes to but by chance: a counter under a hash with a random key,
/// which costs no system call.
fn random() -> u64 {
    static KEY: OnceLock<RandomState> = OnceLock::new();
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    let n = COUNTER.fetch_add(1, Ordering::Relaxed);
    KEY.get_or_init(RandomState::new).hash_one(n).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_comes_in_goes_out_below_it() {
        let caller =
            TraceContext::of(&headers(&[(TRACEPARENT, PARENT), (TRACESTATE, "a=1"), (TRACESTATE, "b=2")])).unwrap();
        assert_eq!(caller.trace_id().to_string(), "0af7651916cd43dd8448eb211c80319c");
        assert_eq!(caller.parts().2, "a=1,b=2");
        let mut out = headers(&[(TRACEPARENT, "old"), (TRACESTATE, "old=1")]);
        caller.child().put(&mut out);
        let seen = TraceContext::of(&out).unwrap();
        assert_eq!((seen.trace_id, seen.flags, &seen.state), (caller.trace_id, caller.flags, &caller.state));
        assert_ne!(seen.span_id, caller.span_id);
        TraceContext::root().put(&mut out);
        assert!(!out.contains_key(TRACESTATE));
    }

    #[test]
    fn what_cannot_be_read_is_none() {
        for good in [PARENT, "01-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-later"] {
            assert!(TraceContext::of(&headers(&[(TRACEPARENT, good)])).unwrap().is_sampled(), "{good}");
        }
        let not_sampled = PARENT.replace("-01", "-00");
        assert!(!TraceContext::of(&headers(&[(TRACEPARENT, &not_sampled)])).unwrap().is_sampled());
        for bad in [
            "",
            "00",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "00-0af7651916cd43dd8448eb211c80319-b7ad6b7169203331-01",
        ] {
            assert_eq!(TraceContext::of(&headers(&[(TRACEPARENT, bad)])), None, "{bad}");
        }
        assert_eq!(TraceContext::of(&headers(&[(TRACEPARENT, PARENT), (TRACEPARENT, PARENT)])), None);
        let long = format!("a={}", "x".repeat(MAX_STATE_BYTES));
        assert_eq!(TraceContext::of(&headers(&[(TRACEPARENT, PARENT), (TRACESTATE, &long)])).unwrap().state, None);
    }

    #[tokio::test]
    async fn what_is_done_within_a_span_knows_it() {
        assert_eq!(current(), None);
        let context = TraceContext::root();
        assert_eq!(within(context.clone(), async { current() }).await, Some(context));
        assert_ne!(TraceContext::root().trace_id(), TraceContext::root().trace_id());
    }
}
