//! Sends spans to a collector by OTLP: one task, which gathers them and never holds up whoever makes them. A collector that
//! is away costs spans, which are counted in the log, and nothing else.

use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::{Event, SpanKind};
use opentelemetry_proto::tonic::trace::v1::{self as pb, ResourceSpans, ScopeSpans, Status, status::StatusCode};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};
use tonic::transport::{Channel, Endpoint, Uri};

use super::span::{self, Ended, Kind};

/// Spans that wait to be sent; more are dropped.
const QUEUE: usize = 8192;
/// Spans of one batch.
const BATCH: usize = 512;
/// How long a batch waits for more.
const GATHER_FOR: Duration = Duration::from_secs(1);
/// For the collector's word on a batch.
const SENT_WITHIN: Duration = Duration::from_secs(5);
/// How often a batch is sent, and the pause before it is sent again.
const ATTEMPTS: u32 = 3;
const PAUSE: Duration = Duration::from_millis(500);
/// For what is left at the end.
const FINISH_WITHIN: Duration = Duration::from_secs(3);

/// The task; it ends with this.
#[derive(Debug)]
pub(super) struct Exporter {
    task: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

struct Sender {
    spans: mpsc::Receiver<Ended>,
    client: TraceServiceClient<Channel>,
    resource: Resource,
    failing: bool,
    lost: usize,
}

impl Exporter {
    pub(super) fn start(collector: Uri, service: &str, instance: &str) -> Self {
        let (sink, spans) = mpsc::channel(QUEUE);
        span::export_to(sink);
        tracing::info!(%collector, service, "spans are exported");
        let channel = Endpoint::from(collector).connect_timeout(SENT_WITHIN).connect_lazy();
        let mut attributes = vec![
            text("service.name", service.to_owned()),
            text("service.version", env!("CARGO_PKG_VERSION").to_owned()),
        ];
        if !instance.is_empty() {
            attributes.push(text("service.instance.id", instance.to_owned()));
        }
        let resource = Resource { attributes, ..Resource::default() };
        let (stop, stopped) = oneshot::channel();
        let sender = Sender { spans, client: TraceServiceClient::new(channel), resource, failing: false, lost: 0 };
        Self { task: tokio::spawn(sender.run(stopped)), stop: Some(stop) }
    }

    /// Sends what waits.
    pub(super) async fn finish(mut self) {
        drop(self.stop.take());
        if timeout(FINISH_WITHIN, &mut self.task).await.is_err() {
            tracing::info!(after = ?FINISH_WITHIN, "the last spans are not exported: the collector does not take them");
        }
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Sender {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let mut batch = Vec::with_capacity(BATCH);
        loop {
            let stopping = tokio::select! {
                _ = self.spans.recv_many(&mut batch, BATCH) => false,
                _ = &mut stopped => true,
            };
            let until = tokio::time::Instant::now() + GATHER_FOR;
            while !stopping && batch.len() < BATCH {
                let room = BATCH - batch.len();
                tokio::select! {
                    more = timeout_at(until, self.spans.recv_many(&mut batch, room)) => if more.is_err() { break },
                    _ = &mut stopped => break,
                }
            }
            self.send(&mut batch).await;
            if stopping || stopped.is_terminated() {
                while let Ok(span) = self.spans.try_recv() {
                    batch.push(span);
                    if batch.len() == BATCH {
                        self.send(&mut batch).await;
                    }
                }
                return self.send(&mut batch).await;
            }
        }
    }

    /// Sends a batch, a few times at most, and empties it.
    async fn send(&mut self, batch: &mut Vec<Ended>) {
        let count = batch.len();
        let spans: Vec<_> = batch.drain(..).map(to_wire).collect();
        if spans.is_empty() {
            return;
        }
        let scope = InstrumentationScope { name: "skillyard".to_owned(), ..InstrumentationScope::default() };
        let scoped = ScopeSpans { scope: Some(scope), spans, ..ScopeSpans::default() };
        let resource = Some(self.resource.clone());
        let all = ResourceSpans { resource, scope_spans: vec![scoped], ..ResourceSpans::default() };
        let request = ExportTraceServiceRequest { resource_spans: vec![all] };
        let mut cause = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                sleep(PAUSE * attempt).await;
            }
            match timeout(SENT_WITHIN, self.client.export(request.clone())).await {
                Ok(Ok(_)) => return self.sent(),
                Ok(Err(status)) => cause = status.message().to_owned(),
                Err(_) => cause = format!("the collector said nothing for {SENT_WITHIN:?}"),
            }
        }
        self.lost += count;
        if !std::mem::replace(&mut self.failing, true) {
            tracing::warn!(cause, spans = count, "spans cannot be exported, and are dropped until they can be");
        }
    }

    fn sent(&mut self) {
        if std::mem::take(&mut self.failing) {
            tracing::info!(lost = std::mem::take(&mut self.lost), "spans are exported again");
        }
    }
}

fn to_wire(span: Ended) -> pb::Span {
    let (trace_id, span_id, state) = span.context.parts();
    let parent_span_id = span.parent.as_ref().map(|parent| parent.parts().1.to_vec()).unwrap_or_default();
    let kind = match span.kind {
        Kind::Internal => SpanKind::Internal,
        Kind::Server => SpanKind::Server,
        Kind::Client => SpanKind::Client,
    };
    let event = |(at, name): (SystemTime, &str)| Event {
        time_unix_nano: nanoseconds(at),
        name: name.to_owned(),
        ..Event::default()
    };
    pb::Span {
        trace_id: trace_id.to_vec(),
        span_id: span_id.to_vec(),
        trace_state: state.to_owned(),
        parent_span_id,
        name: span.name.into_owned(),
        kind: kind.into(),
        start_time_unix_nano: nanoseconds(span.began),
        end_time_unix_nano: nanoseconds(span.ended),
        attributes: span.attributes.into_iter().map(|(key, value)| text(key, value)).collect(),
        events: span.events.into_iter().map(event).collect(),
        status: span.failure.map(|message| Status { message, code: StatusCode::Error.into() }),
        ..pb::Span::default()
    }
}

fn text(key: &str, value: String) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value)) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn nanoseconds(at: SystemTime) -> u64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
