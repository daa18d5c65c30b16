//! One run as a span of its call's trace.

use std::time::SystemTime;

use skillyard::service::error::Reason;
use skillyard::service::span::{Kind, Span};
use skillyard::service::trace::{TraceContext, TraceId};

use crate::run::call::Call;
use crate::run::outcome::{Finished, Outcome};

/// The span of a run; it ends when it is dropped.
#[derive(Debug)]
pub(super) struct Traced {
    context: TraceContext,
    span: Span,
}

impl Traced {
    /// Of a run that was accepted, below the span of its call.
    pub(super) fn begin(of_call: &TraceContext, call: &Call) -> Self {
        let context = of_call.child();
        let mut span = Span::begin("run", Kind::Internal, &context, Some(of_call));
        span.set("skillyard.run_id", || call.id.to_string());
        span.set("skillyard.skill", || call.skill.to_string());
        span.set("skillyard.digest", || call.digest.to_string());
        span.set("skillyard.agent", || call.agent.clone());
        span.event(call.accepted_at, "queued");
        Self { context, span }
    }

    /// What is done for the run is done for this.
    pub(super) fn context(&self) -> &TraceContext {
        &self.context
    }

    pub(super) fn trace_id(&self) -> TraceId {
        self.context.trace_id()
    }

    /// The run has ended. A skill that failed is no failure of the executor, whose work was to say so.
    pub(super) fn ended(&mut self, started_at: Option<SystemTime>, finished_at: SystemTime, finished: &Finished) {
        if let Some(at) = started_at {
            self.span.event(at, "started");
        }
        self.span.event(finished_at, "finished");
        self.span.set("skillyard.outcome", || finished.outcome.as_str().to_owned());
        if !finished.reason.is_empty() {
            self.span.set("skillyard.reason", || finished.reason.to_string());
        }
        if matches!(finished.outcome, Outcome::Lost | Outcome::SpawnFailed) {
            self.span.fail(|| finished.message.clone());
        }
    }

    /// It was accepted, and not started.
    pub(super) fn refused(&mut self, reason: Reason) {
        self.span.set("skillyard.reason", || reason.as_str().to_owned());
        self.span.fail(|| reason.as_str().to_owned());
    }
}
