//! The pair with TLS and client certificates between everybody: who is let in as whom, and tokens, certificates and
//! authorities that are rotated under a load of runs of which not one fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use skillyard::pb::executor::v1::GetStatusRequest;
use skillyard::pb::registry::v1 as registry;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard::service::token::Token;
use skillyard_tests::access::replace;
use skillyard_tests::certificates::{Ca, uri};
use skillyard_tests::cluster::{Cluster, NAMES, Shown, issue_all};
use skillyard_tests::run::{Live, in_short};
use skillyard_tests::{AgentFile, Refused, Skill, call, eventually, within};
use tonic::Code;

const AGENT: &str = "dual-sign-required";

async fn cluster(ca: Ca) -> Cluster {
    let builder = Cluster::builder().encrypted(ca);
    let skill = builder.leaves_a_line("destroys", "dangerous");
    let builder = builder.skill(&skill).skill(&Skill::sh("safe", "cat"));
    builder.agent(&AgentFile::new(AGENT).mode(AGENT)).start().await
}

async fn run(cluster: &Cluster, shown: Shown, call: skillyard_tests::Call) -> String {
    match Live::open(cluster.runs(0, shown), call).await {
        Ok(live) => in_short(&live.end().await),
        Err(status) => in_short(&Err(status)),
    }
}

/// Asks, has two people sign, runs: all three of them by certificate.
async fn a_dangerous_run(cluster: &Cluster, args: &str) -> String {
    let request = registry::RequestApprovalRequest {
        agent: AGENT.into(),
        skill: "destroys".into(),
        arguments: Some(Arguments::ArgsJson(args.into())),
        ..Default::default()
    };
    let mut planner = cluster.approvals(0, Shown::Certificate("planner"));
    let id = planner.request_approval(request).await.unwrap().into_inner().approval.unwrap().id;
    for who in ["ann", "bob"] {
        let word = registry::SignApprovalRequest { id: id.clone(), approve: true, comment: String::new() };
        cluster.approvals(0, Shown::Certificate(who)).sign_approval(word).await.unwrap();
    }
    run(cluster, Shown::Certificate("planner"), call("destroys").agent(AGENT).args(args).approval(&id)).await
}

#[tokio::test]
async fn everybody_is_known_by_a_certificate() {
    let (ca, strange) = (Ca::new(), Ca::new());
    let pem = ca.pem();
    let cluster = cluster(ca).await;
    // The executor, too: it has mirrored, and it uses the approval up.
    assert_eq!(a_dangerous_run(&cluster, "{}").await, "SUCCEEDED");
    assert_eq!(cluster.effects(), ["{}"]);
    let not_allowed = "PermissionDenied CALLER_NOT_ALLOWED";
    let unknown = "Unauthenticated CALLER_UNKNOWN";
    let access = cluster.path("access");
    replace(&access.join("stranger.token"), Token::random().unwrap().expose());
    for (shown, expected) in [
        (Shown::Certificate("planner"), "SUCCEEDED"),
        (Shown::Token("planner"), "SUCCEEDED"),
        (Shown::Certificate("ann"), not_allowed),
        (Shown::Certificate("e0"), not_allowed),
        (Shown::Certificate("operator"), not_allowed),
        (Shown::Certificate("nothing"), not_allowed),
        // The server's own: good for a server, and nobody's.
        (Shown::Certificate("server"), unknown),
        (Shown::Token("stranger"), unknown),
        (Shown::Nothing, unknown),
    ] {
        assert_eq!(run(&cluster, shown, call("safe").agent(AGENT)).await, expected, "{shown:?}");
    }
    // Who may sign is who the certificate says.
    let word = registry::SignApprovalRequest { id: "x".into(), approve: true, comment: String::new() };
    for shown in [Shown::Certificate("planner"), Shown::Certificate("e0"), Shown::Certificate("operator")] {
        let refused = cluster.approvals(0, shown).sign_approval(word.clone()).await.unwrap_err();
        assert_eq!(Refused::of(&refused).short(), (Code::PermissionDenied, "CALLER_NOT_ALLOWED"), "{shown:?}");
    }
    // Expired, not good yet, of an authority that is not trusted: no further than the handshake.
    let day = Duration::from_secs(86_400);
    let planner = || uri("spiffe://cluster/planner");
    strange.issue(&access, "strange", planner());
    strange.issue_until(&access, "strange-expired", planner(), SystemTime::now() - day);
    for name in ["strange", "strange-expired"] {
        for client in [true, false] {
            let refused = if client {
                cluster.runs(0, Shown::Certificate(name)).get_status(GetStatusRequest {}).await.unwrap_err()
            } else {
                let mut approvals = cluster.approvals(0, Shown::Certificate(name));
                approvals.get_approval(registry::GetApprovalRequest::default()).await.unwrap_err()
            };
            assert_eq!(Refused::of(&refused).reason, "", "{name}: {refused:?}");
        }
    }
    // Nor is a service spoken to whose authority is another.
    replace(&access.join("ca.pem"), strange.pem());
    let elsewhere = cluster.runs(0, Shown::Token("planner")).get_status(GetStatusRequest {}).await.unwrap_err();
    assert_eq!(Refused::of(&elsewhere).reason, "", "{elsewhere:?}");
    replace(&access.join("ca.pem"), pem);
}

#[tokio::test]
async fn a_certificate_that_has_expired_or_is_for_later_opens_nothing() {
    let ca = Ca::new();
    let (expired, later) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let day = Duration::from_secs(86_400);
    ca.issue_until(expired.path(), "planner", uri("spiffe://cluster/planner"), SystemTime::now() - day);
    ca.issue_until(later.path(), "planner", uri("spiffe://cluster/planner"), SystemTime::now() + 60 * day);
    let cluster = cluster(ca).await;
    for directory in [expired, later] {
        for ending in ["key", "pem"] {
            let from = std::fs::read(directory.path().join(format!("planner.{ending}"))).unwrap();
            replace(&cluster.path("access").join(format!("planner.{ending}")), from);
        }
        let refused = cluster.runs(0, Shown::Certificate("planner")).get_status(GetStatusRequest {}).await.unwrap_err();
        assert_eq!(Refused::of(&refused).reason, "", "{refused:?}");
    }
    assert_eq!(run(&cluster, Shown::Token("planner"), call("safe").agent(AGENT)).await, "SUCCEEDED");
}

/// Runs without a pause until it is told to stop, and says how often and what else than success there was.
struct Load {
    made: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    task: tokio::task::JoinHandle<Vec<String>>,
}

impl Load {
    /// Over one client, as a program that runs for long has it.
    fn start(cluster: &Cluster, shown: Shown) -> Self {
        let (made, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let client = cluster.runs(0, shown);
        let task = tokio::spawn({
            let (made, stop) = (Arc::clone(&made), Arc::clone(&stop));
            async move {
                let mut failed = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let result = match Live::open(client.clone(), call("safe").agent(AGENT)).await {
                        Ok(live) => live.end().await,
                        Err(status) => Err(status),
                    };
                    let outcome = in_short(&result);
                    if outcome != "SUCCEEDED" {
                        failed.push(outcome);
                    }
                    made.fetch_add(1, Ordering::Relaxed);
                }
                failed
            }
        });
        Self { made, stop, task }
    }

    /// Waits until calls were made that looked at their files after this moment, which they do once a second at most.
    async fn looks(&self) {
        tokio::time::sleep(Duration::from_millis(1100)).await;
        let before = self.made.load(Ordering::Relaxed);
        eventually("the load goes on", async || self.made.load(Ordering::Relaxed) >= before + 3).await;
    }

    async fn end(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        let failed = self.task.await.unwrap();
        assert!(failed.is_empty(), "{failed:?}");
        self.made.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_certificates_are_rotated_and_no_run_fails() {
    let (first, second) = (Ca::new(), Ca::new());
    let both = format!("{}{}", first.pem(), second.pem());
    let cluster = cluster(first).await;
    let access = cluster.path("access");
    let loads = [Load::start(&cluster, Shown::Certificate("planner")), Load::start(&cluster, Shown::Token("planner"))];
    assert_eq!(a_dangerous_run(&cluster, r#"{"n":1}"#).await, "SUCCEEDED");

    // Tokens: the new lines beside the old ones, then the tokens, then the old lines go.
    let old = std::fs::read_to_string(access.join("tokens")).unwrap();
    let (mut new, mut tokens) = (String::new(), Vec::new());
    for (name, _) in NAMES {
        let token = Token::random().unwrap();
        new += &format!("{}\n", token.line(name).unwrap());
        tokens.push((name, token));
    }
    replace(&access.join("tokens"), format!("{old}{new}"));
    replace(&access.join("next.token"), tokens.iter().find(|(name, _)| *name == "planner").unwrap().1.expose());
    within(skillyard_tests::PATIENCE, "the new tokens are known", async || {
        let known = run(&cluster, Shown::Token("next"), call("safe").agent(AGENT)).await == "SUCCEEDED";
        known.then_some(())
    })
    .await;
    for (name, token) in &tokens {
        replace(&access.join(format!("{name}.token")), token.expose());
    }
    loads[1].looks().await;
    replace(&access.join("tokens"), &new);
    loads[1].looks().await;

    // Authorities: both are trusted, then everybody gets a certificate of the second, then the first goes.
    replace(&access.join("ca.pem"), &both);
    second.issue(&access, "next", uri("spiffe://cluster/planner"));
    let mut approvals = cluster.approvals(0, Shown::Certificate("next"));
    within(skillyard_tests::PATIENCE, "the second authority is trusted", async || {
        let known = run(&cluster, Shown::Certificate("next"), call("safe").agent(AGENT)).await == "SUCCEEDED";
        let asked = approvals.get_approval(registry::GetApprovalRequest { id: "x".into() }).await;
        (known && Refused::of(&asked.unwrap_err()).reason == "UNKNOWN_APPROVAL").then_some(())
    })
    .await;
    // Clients read the authority anew, too, before a service shows what it has signed.
    loads[0].looks().await;
    loads[1].looks().await;
    issue_all(&second, &access);
    loads[0].looks().await;
    loads[1].looks().await;
    assert_eq!(a_dangerous_run(&cluster, r#"{"n":2}"#).await, "SUCCEEDED");
    replace(&access.join("ca.pem"), second.pem());
    loads[0].looks().await;
    loads[1].looks().await;
    assert_eq!(a_dangerous_run(&cluster, r#"{"n":3}"#).await, "SUCCEEDED");
    for load in loads {
        let made = load.end().await;
        assert!(made > 10, "{made}");
    }
    assert_eq!(cluster.effects(), [r#"{"n":1}"#, r#"{"n":2}"#, r#"{"n":3}"#]);
}
