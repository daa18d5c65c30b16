//! A listener with TLS and client certificates over real sockets: who is let in, who is not, and certificates that are
//! rotated while calls go on.

#![expect(clippy::unwrap_used, reason = "what is not as it should be fails the test")]

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, SanType};
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::agent_service_client::AgentServiceClient;
use skillyard::pb::registry::v1::agent_service_server::{AgentService, AgentServiceServer};
use skillyard::service::access::{Access, AccessOptions};
use skillyard::service::caller::Caller;
use skillyard::service::calls::Calls;
use skillyard::service::dial::{DialOptions, Dialer};
use skillyard::service::serve;
use skillyard::service::token::Token;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tonic::{Code, Request, Response, Status};

const CALLERS: &str = "\
callers:
  planner: {roles: [approver], certificates: [\"spiffe://x/planner\", planner.x]}
  ann: {roles: [approver]}
";

/// Answers with the name of who called.
struct Mirror;

#[tonic::async_trait]
impl AgentService for Mirror {
    async fn list_agents(&self, _: Request<pb::ListAgentsRequest>) -> Result<Response<pb::ListAgentsResponse>, Status> {
        Err(Status::unimplemented("not in this test"))
    }

    async fn get_agent(&self, request: Request<pb::GetAgentRequest>) -> Result<Response<pb::GetAgentResponse>, Status> {
        let agent = pb::Agent { name: Caller::of(&request).identity().to_owned(), ..Default::default() };
        Ok(Response::new(pb::GetAgentResponse { agent: Some(agent) }))
    }
}

type Ca = CertifiedIssuer<'static, KeyPair>;

fn ca() -> Ca {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

struct World {
    directory: TempDir,
    address: SocketAddr,
}

impl World {
    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn url(&self) -> String {
        format!("https://localhost:{}", self.address.port())
    }

    /// What a client with these is told, or why not.
    async fn call(&self, cert: Option<&str>, token: Option<&str>) -> Result<String, Status> {
        ask(self.dialer("ca.pem", cert, token)).await
    }

    fn dialer(&self, ca: &str, cert: Option<&str>, token: Option<&str>) -> Dialer {
        let options = DialOptions {
            ca: Some(self.path(ca)),
            cert: cert.map(|name| self.path(&format!("{name}.pem"))),
            key: cert.map(|name| self.path(&format!("{name}.key"))),
            token_file: token.map(|name| self.path(name)),
        };
        Dialer::check(&self.url(), &options).unwrap()
    }
}

async fn ask(dialer: Dialer) -> Result<String, Status> {
    let mut client = AgentServiceClient::new(dialer);
    let answer = tokio::time::timeout(Duration::from_secs(20), client.get_agent(pb::GetAgentRequest::default())).await;
    Ok(answer.unwrap()?.into_inner().agent.unwrap().name)
}

/// Writes NAME.key and NAME.pem, signed by a CA.
fn issue(directory: &Path, ca: &Ca, name: &str, san: SanType, days: i64) {
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![san];
    let day = |days: i64| {
        let span = Duration::from_secs(days.unsigned_abs() * 86_400);
        if days < 0 { SystemTime::now() - span } else { SystemTime::now() + span }
    };
    (params.not_before, params.not_after) = (day(days - 30).into(), day(days).into());
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, ca).unwrap();
    place(&directory.join(format!("{name}.key")), &key.serialize_pem());
    place(&directory.join(format!("{name}.pem")), &certificate.pem());
}

fn place(path: &Path, text: &str) {
    let beside = path.with_extension("beside");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

fn uri(text: &str) -> SanType {
    SanType::URI(text.try_into().unwrap())
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(text.try_into().unwrap())
}

async fn world(ca: &Ca) -> World {
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let token = Token::random().unwrap();
    place(&at("ca.pem"), &ca.pem());
    issue(directory.path(), ca, "server", dns("localhost"), 10);
    place(&at("callers"), CALLERS);
    place(&at("tokens"), &token.line("ann").unwrap());
    place(&at("token"), token.expose());
    place(&at("strange"), Token::random().unwrap().expose());
    let options = AccessOptions {
        tokens_file: Some(at("tokens")),
        callers_file: Some(at("callers")),
        tls_cert: Some(at("server.pem")),
        tls_key: Some(at("server.key")),
        client_ca: Some(at("ca.pem")),
        insecure: false,
    };
    let access = Access::check(&options, None).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (mut routes, _) = serve::routes(&[]).await.unwrap();
    routes.add_service(AgentServiceServer::new(Mirror));
    // It ends with the runtime of the test.
    tokio::spawn(serve::serve(
        listener,
        routes.routes(),
        access,
        Calls::of(&[]),
        std::future::pending(),
        Duration::ZERO,
    ));
    World { directory, address }
}

#[tokio::test]
async fn who_is_let_in() {
    let (good, bad) = (ca(), ca());
    let world = world(&good).await;
    let at = world.directory.path();
    issue(at, &good, "by-uri", uri("spiffe://x/planner"), 10);
    issue(at, &good, "by-dns", dns("Planner.X"), 10);
    issue(at, &good, "nobody", uri("spiffe://x/nobody"), 10);
    issue(at, &good, "expired", uri("spiffe://x/planner"), -1);
    issue(at, &good, "early", uri("spiffe://x/planner"), 60);
    issue(at, &bad, "wrong", uri("spiffe://x/planner"), 10);
    for name in ["by-uri", "by-dns"] {
        assert_eq!(world.call(Some(name), None).await.unwrap(), "planner", "{name}");
    }
    assert_eq!(world.call(None, Some("token")).await.unwrap(), "ann");
    assert_eq!(world.call(Some("by-uri"), Some("token")).await.unwrap(), "ann", "a token counts before a certificate");
    for (cert, token) in [
        (None, None),
        (Some("nobody"), None),
        (None, Some("strange")),
        // It is never passed over for the certificate.
        (Some("by-uri"), Some("strange")),
    ] {
        let status = world.call(cert, token).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{cert:?} {token:?}: {status:?}");
    }
    for name in ["expired", "early", "wrong"] {
        let status = world.call(Some(name), None).await.unwrap_err();
        assert_ne!(status.code(), Code::Unauthenticated, "{name} comes no further than the handshake: {status:?}");
    }
    // A server whose CA is another's is not spoken to, and the server speaks to nobody without encryption.
    place(&at.join("other.pem"), &bad.pem());
    assert!(ask(world.dialer("other.pem", None, Some("token"))).await.is_err());
    assert!(ask(Dialer::plain(format!("http://{}", world.address).parse().unwrap())).await.is_err());
}

#[tokio::test]
async fn one_of_many_behind_a_name_is_trusted_by_that_name() {
    let world = world(&ca()).await;
    let named = world.dialer("ca.pem", None, Some("token"));
    assert_eq!(ask(named.elsewhere(&world.address.to_string()).unwrap()).await.unwrap(), "ann");
    // By an address that was given at first, the certificate has to be for the address.
    let url = format!("https://{}", world.address);
    let options = DialOptions { ca: Some(world.path("ca.pem")), ..DialOptions::default() };
    let unnamed = Dialer::check(&url, &options).unwrap();
    let refused = ask(unnamed.clone()).await.unwrap_err();
    assert_ne!(refused.code(), Code::Unauthenticated, "no further than the handshake: {refused:?}");
    assert!(ask(unnamed.elsewhere(&format!("localhost:{}", world.address.port())).unwrap()).await.is_err());
}

#[tokio::test]
async fn a_stalled_handshake_is_in_nobodys_way_and_ends() {
    let ca = ca();
    let world = world(&ca).await;
    let mut stalled = TcpStream::connect(world.address).await.unwrap();
    let began = Instant::now();
    for _ in 0..5 {
        assert_eq!(world.call(None, Some("token")).await.unwrap(), "ann");
    }
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(30), stalled.read_to_end(&mut bytes)).await;
    assert!(read.is_ok(), "the connection is closed");
    assert!(began.elapsed() >= Duration::from_secs(9), "it is given its time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_rotated_while_calls_go_on() {
    let (first, second) = (ca(), ca());
    let world = world(&first).await;
    let at = world.directory.path();
    issue(at, &first, "planner", uri("spiffe://x/planner"), 10);
    let kept = world.dialer("ca.pem", Some("planner"), None);
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let busy = tokio::spawn({
        let kept = kept.clone();
        async move {
            let mut calls = 0;
            while !*stopped.borrow() {
                assert_eq!(ask(kept.clone()).await.unwrap(), "planner", "after {calls} calls");
                calls += 1;
            }
            calls
        }
    });
    // Both CAs are trusted at first, so that nobody is shut out.
    place(&at.join("ca.pem"), &format!("{}{}", first.pem(), second.pem()));
    issue(at, &second, "next", uri("spiffe://x/planner"), 10);
    until("a certificate of the second CA is good", async || world.call(Some("next"), None).await.is_ok()).await;
    // The key comes a moment before its certificate: alone it changes nothing.
    issue(at, &second, "server", dns("localhost"), 10);
    issue(at, &second, "planner", uri("spiffe://x/planner"), 10);
    place(&at.join("second.pem"), &second.pem());
    until("the server shows the new certificate", async || {
        ask(world.dialer("second.pem", Some("next"), None)).await.is_ok()
    })
    .await;
    stop.send(true).unwrap();
    assert!(busy.await.unwrap() > 0);
    // The first CA goes, and with it who has a certificate of its.
    issue(at, &first, "old", uri("spiffe://x/planner"), 10);
    place(&at.join("ca.pem"), &second.pem());
    until("the first CA is no longer trusted", async || world.call(Some("old"), None).await.is_err()).await;
    until("the client shows its new certificate", async || ask(kept.clone()).await.is_ok()).await;
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
    while !condition().await {
        assert!(Instant::now() < end, "still not: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn when_certificates_end_is_told_and_followed() {
    let ca = ca();
    let world = world(&ca).await;
    let at = world.directory.path();
    issue(at, &ca, "shown", uri("spiffe://x/planner"), 20);
    let options = AccessOptions {
        tls_cert: Some(world.path("server.pem")),
        tls_key: Some(world.path("server.key")),
        insecure: true,
        ..AccessOptions::default()
    };
    let access = Access::check(&options, None).unwrap();
    let mut registry = prometheus_client::registry::Registry::default();
    registry.register_collector(Box::new(access.certificates(Some(&world.dialer("ca.pem", Some("shown"), None)))));
    let days = |of: &str| {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let series = format!("certificate_not_after_time_seconds{{of=\"{of}\"}} ");
        let value: f64 = text.lines().find_map(|line| line.strip_prefix(&series)).unwrap().parse().unwrap();
        let now = SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        ((value - now) / 86_400.0).round()
    };
    assert_eq!((days("server"), days("client")), (10.0, 20.0));
    issue(at, &ca, "server", dns("localhost"), 90);
    issue(at, &ca, "shown", uri("spiffe://x/planner"), 80);
    let began = std::time::Instant::now();
    while (days("server"), days("client")) != (90.0, 80.0) {
        assert!(began.elapsed() < Duration::from_secs(30), "the new certificates are not told");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
