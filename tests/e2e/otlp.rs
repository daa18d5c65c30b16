//! Spans as a collector gets them, from both services: the tree of a run below its caller's span. Only with the feature
//! `otlp`, which the services are then built with too.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use rustix::process::Signal;
use skillyard_tests::run::{Live, succeeded};
use skillyard_tests::{AgentFile, PATIENCE, Skill, World, call, eventually};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use crate::approvals::{AGENT, signed};

const CALLER: &str = "b7ad6b7169203331";
const RUN_SKILL: &str = "skillyard.executor.v1.ExecutorService/RunSkill";
const CONSUME: &str = "skillyard.registry.v1.ApprovalService/ConsumeApproval";

/// Every span that was received, with the service that it is of.
#[derive(Clone, Default)]
struct Collector(Arc<Mutex<Vec<(String, Span)>>>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for of_service in request.into_inner().resource_spans {
            let service = attribute(&of_service.resource.unwrap().attributes, "service.name");
            let spans = of_service.scope_spans.into_iter().flat_map(|scoped| scoped.spans);
            self.0.lock().unwrap().extend(spans.map(|span| (service.clone(), span)));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

impl Collector {
    async fn start() -> (Self, SocketAddr) {
        let (collector, listener) = (Self::default(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap();
        let service = TraceServiceServer::new(collector.clone());
        // It ends with the runtime of the test.
        tokio::spawn(Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener)));
        (collector, address)
    }

    /// The spans of a trace.
    fn of(&self, trace: &str) -> Vec<(String, Span)> {
        let spans = self.0.lock().unwrap();
        spans.iter().filter(|(_, span)| hex(&span.trace_id) == trace).cloned().collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn attribute(attributes: &[KeyValue], key: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == key);
    match found.and_then(|found| found.value.clone()).and_then(|value| value.value) {
        Some(any_value::Value::StringValue(text)) => text,
        other => panic!("{key} is {other:?} in {attributes:?}"),
    }
}

/// What a caller says in its metadata, of a trace that is named by one digit.
fn parent(digit: char, sampled: bool) -> (String, String) {
    let trace = String::from(digit).repeat(32);
    (format!("00-{trace}-{CALLER}-0{}", u8::from(sampled)), trace)
}

#[tokio::test]
async fn a_run_is_a_tree_below_its_callers_span() {
    let (collector, address) = Collector::start().await;
    let url = format!("http://{address}");
    let mut world = World::builder()
        .skill(Skill::sh("changes", "echo '{}'").set("class", "mutating"))
        .skill(Skill::sh("fails", "exit 3"))
        .agent(&AgentFile::new(AGENT).mode(AGENT))
        .known_callers()
        .flag("--otlp-endpoint", &url)
        .registry_flag("--otlp-endpoint", &url)
        .registry_flag("--otlp-service-name", "the-registry")
        .start()
        .await;
    // Of a trace that its caller does not record there is nothing.
    let (unsampled, not_recorded) = parent('a', false);
    let run = call("fails").agent(AGENT).metadata("traceparent", &unsampled);
    Live::open(world.executor_as("orchestrator"), run).await.unwrap().rest().await;

    let approval = signed(&mut world, AGENT, "changes", "{}", &["ann"]).await;
    let (sampled, trace) = parent('b', true);
    let run = call("changes").agent(AGENT).args("{}").approval(&approval).metadata("traceparent", &sampled);
    let run = run.metadata("tracestate", "orchestrator=1");
    let run = Live::open(world.executor_as("orchestrator"), run).await.unwrap().rest().await;
    assert_eq!(run, succeeded("{}\n"));
    eventually("four spans have come", async || collector.of(&trace).len() >= 4).await;
    let spans = collector.of(&trace);
    let mut above = CALLER.to_owned();
    for (service, name, kind) in [
        ("skillyard-executor", RUN_SKILL, SpanKind::Server),
        ("skillyard-executor", "run", SpanKind::Internal),
        ("skillyard-executor", CONSUME, SpanKind::Client),
        ("the-registry", CONSUME, SpanKind::Server),
    ] {
        let found: Vec<_> = spans.iter().filter(|(of, span)| (of.as_str(), span.kind()) == (service, kind)).collect();
        let [(_, span)] = found[..] else { panic!("{service} {name}: {spans:#?}") };
        assert_eq!((span.name.as_str(), hex(&span.parent_span_id)), (name, above));
        assert!(span.end_time_unix_nano >= span.start_time_unix_nano && span.status.is_none(), "{span:?}");
        assert_eq!(span.trace_state, "orchestrator=1");
        above = hex(&span.span_id);
        match name {
            "run" => {
                for (key, value) in [
                    ("skillyard.run_id", run.finished.run_id.as_str()),
                    ("skillyard.skill", "changes"),
                    ("skillyard.digest", &run.accepted.digest),
                    ("skillyard.agent", AGENT),
                    ("skillyard.outcome", "SUCCEEDED"),
                ] {
                    assert_eq!(attribute(&span.attributes, key), value, "{key}");
                }
                let events: Vec<_> = span.events.iter().map(|event| event.name.as_str()).collect();
                assert_eq!(events, ["queued", "started", "finished"]);
                assert!(span.events.is_sorted_by_key(|event| event.time_unix_nano), "{:?}", span.events);
            }
            call => {
                let (service, method) = call.split_once('/').unwrap();
                assert_eq!(attribute(&span.attributes, "rpc.service"), service);
                assert_eq!(attribute(&span.attributes, "rpc.method"), method);
                assert_eq!(attribute(&span.attributes, "rpc.grpc.status_code"), "0");
            }
        }
    }
    assert_eq!(spans.len(), 4, "{spans:#?}");
    assert_eq!(collector.of(&not_recorded).len(), 0);

    // What has just ended is sent before the executor has.
    let (sampled, last) = parent('c', true);
    let run = call("fails").agent(AGENT).metadata("traceparent", &sampled);
    Live::open(world.executor_as("orchestrator"), run).await.unwrap().rest().await;
    world.executor_server().signal(Signal::TERM);
    world.executor_server().ended(PATIENCE).await;
    let spans = collector.of(&last);
    let run = spans.iter().find(|(_, span)| span.name == "run").map(|(_, span)| span);
    let run = run.unwrap_or_else(|| panic!("{spans:#?}"));
    // The skill failed, and the executor did not.
    assert_eq!((attribute(&run.attributes, "skillyard.outcome").as_str(), &run.status), ("FAILED", &None));
}

#[tokio::test]
async fn a_collector_that_is_away_holds_nobody_up() {
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let mut world = World::builder()
        .skill(Skill::sh("greets", "echo '{}'"))
        .flag("--otlp-endpoint", format!("http://{nobody}"))
        .start()
        .await;
    assert_eq!(world.run("greets").await, succeeded("{}\n"));
    world.executor_server().logs("spans cannot be exported").await;
    assert_eq!(world.run("greets").await, succeeded("{}\n"));
    world.executor_server().signal(Signal::TERM);
    assert!(world.executor_server().ended(PATIENCE).await.0.success());
}
