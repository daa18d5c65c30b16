//! `registry-svc approvals` against a registry that speaks TLS and knows its callers by their certificates: both the real
//! binary.

use std::path::PathBuf;
use std::process::Output;

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::ApprovalState;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::service::token::Token;
use skillyard_tests::certificates::{Ca, dns, uri};

use crate::bed::asking;
use crate::world::{Registry, World};

const CALLERS: &str = "\
callers:
  bot: {roles: [orchestrator], agents: [\"*\"], certificates: [\"spiffe://x/bot\"]}
  ann: {roles: [approver], certificates: [\"spiffe://x/ann\"]}
  bob: {roles: [approver]}
";

/// A registry with a mutating skill, which lets nobody in without TLS.
async fn world() -> (World, Registry) {
    let world = World::new();
    world.skill("mutating", r#","class":"mutating""#);
    world.agent("confirms", "permission_mode: mutating-with-confirm");
    let (good, other, at) = (Ca::new(), Ca::new(), world.path(""));
    world.write("ca.pem", good.pem());
    world.write("other.pem", other.pem());
    good.issue(&at, "server", dns("localhost"));
    good.issue(&at, "bot", uri("spiffe://x/bot"));
    good.issue(&at, "ann", uri("spiffe://x/ann"));
    other.issue(&at, "strange", uri("spiffe://x/ann"));
    let token = Token::random().unwrap();
    world.write("tokens", token.line("bob").unwrap());
    world.write("bob.token", token.expose());
    world.write("callers.yaml", CALLERS);
    let mut command = world.command();
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json"]);
    for (flag, name) in [
        ("--external-dirs", "ext"),
        ("--agents-dir", "agents"),
        ("--state-dir", "state"),
        ("--tls-cert", "server.pem"),
        ("--tls-key", "server.key"),
        ("--client-ca", "ca.pem"),
        ("--tokens-file", "tokens"),
        ("--callers-file", "callers.yaml"),
    ] {
        command.arg(flag).arg(world.path(name));
    }
    let registry = Registry::start(command, "https://localhost", &shown(&world, Some("bot"))).await;
    (world, registry)
}

fn shown(world: &World, cert: Option<&str>) -> DialOptions {
    let path = |suffix: &str| cert.map(|name| world.path(&format!("{name}.{suffix}")));
    DialOptions { ca: Some(world.path("ca.pem")), cert: path("pem"), key: path("key"), token_file: None }
}

async fn approvals(world: &World, url: &str, line: &[&str], files: &[(&str, &str)]) -> Output {
    let mut command = world.command();
    command.arg("approvals").args(line).args(["--registry", url]);
    for (flag, name) in files {
        let path: PathBuf = world.path(name);
        command.arg(flag).arg(path);
    }
    tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_signs_with_a_certificate_or_a_token() {
    let (world, registry) = world().await;
    let url = format!("https://localhost:{}", registry.port);
    let bot = Dialer::check(&url, &shown(&world, Some("bot"))).unwrap();
    let mut bot = ApprovalServiceClient::new(bot);
    let mut ask = async || {
        let answer = bot.request_approval(asking("confirms", "mutating", "{}")).await.unwrap().into_inner();
        answer.approval.unwrap()
    };
    let (first, second) = (ask().await, ask().await);
    assert_eq!(first.requested_by, "bot");
    let ann = [("--ca", "ca.pem"), ("--cert", "ann.pem"), ("--key", "ann.key")];
    let signed = approvals(&world, &url, &["approve", &first.id], &ann).await;
    let said = |output: &Output| [&output.stdout[..], &output.stderr].concat();
    let said = |output: &Output| String::from_utf8(said(output)).unwrap();
    assert!(signed.status.success() && said(&signed).contains("ann at "), "{}", said(&signed));
    let bob = [("--ca", "ca.pem"), ("--token-file", "bob.token")];
    let signed = approvals(&world, &url, &["reject", &second.id], &bob).await;
    assert!(signed.status.success() && said(&signed).contains("bob at "), "{}", said(&signed));
    let get = pb::GetApprovalRequest { id: first.id.clone() };
    let found = bot.get_approval(get).await.unwrap().into_inner().approval.unwrap();
    assert_eq!((found.state(), found.signatures[0].signer.as_str()), (ApprovalState::Approved, "ann"));

    let plain = format!("http://localhost:{}", registry.port);
    let strange = [("--ca", "ca.pem"), ("--cert", "strange.pem"), ("--key", "strange.key")];
    for (what, url, files, code, message) in [
        ("nothing is shown", &url, &ann[..1], 8, "CALLER_UNKNOWN"),
        (
            "the requester's certificate",
            &url,
            &[ann[0], ("--cert", "bot.pem"), ("--key", "bot.key")][..],
            8,
            "CALLER_NOT",
        ),
        ("a certificate of another CA", &url, &strange[..], 9, "no answer"),
        ("a registry that nobody vouches for", &url, &[("--ca", "other.pem"), bob[1]][..], 9, "--ca"),
        ("no CA", &url, &bob[1..], 64, "--ca: "),
        ("no key", &url, &ann[..2], 64, "--key: "),
        ("no encryption", &plain, &bob[1..], 9, "no answer"),
    ] {
        let refused = approvals(&world, url, &["reject", &first.id], files).await;
        assert_eq!(refused.status.code(), Some(code), "{what}: {}", said(&refused));
        assert!(said(&refused).contains(message), "{what}: {}", said(&refused));
    }
}
