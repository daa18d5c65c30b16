//! The real service, in this process, over a database of either kind, with callers as a listener would put them in.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use registry_svc::catalog;
use registry_svc::grpc;
use registry_svc::source::{self, Layout};
use registry_svc::store::approval::Signers;
use registry_svc::store::{self, Database, Store};
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::pb::registry::v1::history_service_client::HistoryServiceClient;
use skillyard::pb::registry::v1::request_approval_request::Arguments;
use skillyard::service::caller::{Agents, Caller, Known, Role};
use skillyard::service::serve;
use skillyard::service::token::Token;
use skillyard::{Digest, PermissionMode};
use skillyard_tests::postgres;
use sqlx::Connection as _;
use sqlx::Row as _;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::metadata::MetadataValue;
use tonic::service::interceptor::{InterceptedService, InterceptorLayer};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use crate::world::{PATIENCE, World};

pub(crate) const ARGS: &str = r#"{"path":"/srv","secret":"hunter2"}"#;

/// Which database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Sqlite,
    Postgres,
}

/// Skills of every class, agents of every mode, and a database.
pub(crate) struct Bed {
    pub(crate) world: World,
    pub(crate) url: String,
}

/// A registry on it.
pub(crate) struct Service {
    pub(crate) endpoint: String,
    pub(crate) store: Store,
    channel: Channel,
    tasks: Vec<JoinHandle<()>>,
}

type Who = Box<dyn FnMut(Request<()>) -> Result<Request<()>, Status> + Send + Sync>;
pub(crate) type Client = ApprovalServiceClient<InterceptedService<Channel, Who>>;
pub(crate) type HistoryClient = HistoryServiceClient<InterceptedService<Channel, Who>>;

impl Bed {
    /// `None` where the engine is not installed.
    pub(crate) async fn new(engine: Engine) -> Option<Self> {
        let world = World::new();
        for class in ["safe", "mutating", "dangerous"] {
            world.skill(class, &format!(r#","class":"{class}""#));
        }
        world.playbook("guide");
        for mode in PermissionMode::ALL {
            world.agent(mode.as_str(), &format!("permission_mode: {}", mode.as_str()));
        }
        world.agent("narrow", "skills: [\"safe\"]\npermission_mode: dual-sign-required");
        let url = match engine {
            Engine::Sqlite => format!("sqlite://{}?mode=rwc", world.path("approvals.db").display()),
            Engine::Postgres => postgres::Database::new().await?.url(),
        };
        Some(Self { world, url })
    }

    pub(crate) async fn serve(&self) -> Service {
        self.serve_for(Signers::default()).await
    }

    pub(crate) async fn serve_for(&self, signers: Signers) -> Service {
        let service = self.serve_with(&self.url, signers).await;
        let mut ready = service.store.subscribe();
        tokio::time::timeout(PATIENCE, ready.wait_for(Option::is_some)).await.unwrap().unwrap();
        drop(ready);
        service
    }

    pub(crate) async fn serve_with(&self, url: &str, signers: Signers) -> Service {
        self.serve_keeping(url, signers, store::DEFAULT_KEEP).await
    }

    /// One that deletes what has ended after this time.
    pub(crate) async fn serve_keeping(&self, url: &str, signers: Signers, keep: Duration) -> Service {
        let layout = Layout {
            external_dirs: vec![self.world.path("ext")],
            skill_roots: vec![self.world.path("playbooks")],
            cloud_dir: None,
            workspace: None,
            tier: "free".parse().unwrap(),
            agents_dir: Some(self.world.path("agents")),
        };
        let (catalogs, loader) = catalog::reload::start(source::roots(&layout), Duration::from_secs(3600));
        let (store, keeper) = store::start(&Database::Url(url.parse().unwrap())).await.unwrap();
        let (mut routes, _) = serve::routes(&grpc::SERVICES).await.unwrap();
        grpc::add(&mut routes, &catalogs, None, &store, signers, None);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let server = Server::builder()
            .layer(InterceptorLayer::new(identify))
            .add_routes(routes.routes())
            .serve_with_incoming(TcpListenerStream::new(listener));
        let tasks = vec![
            tokio::spawn(loader),
            tokio::spawn(keeper.keeping(keep).run()),
            tokio::spawn(async move { server.await.unwrap() }),
        ];
        catalogs.subscribe().wait_for(Option::is_some).await.unwrap();
        let channel = Endpoint::from_shared(endpoint.clone()).unwrap().connect().await.unwrap();
        Service { endpoint, store, channel, tasks }
    }

    pub(crate) fn path(&self, relative: &str) -> PathBuf {
        self.world.path(relative)
    }

    /// Writes further ones like this, with ids of their own.
    pub(crate) async fn copies_of(&self, id: &str, count: u32) {
        let mut connection = sqlx::AnyConnection::connect(&self.url).await.unwrap();
        let mut tx = connection.begin().await.unwrap();
        let columns = "changed, agent, skill, class, digest, args_json, args_sha256, reason, requested_by, \
                       requested_for, request_id, request_sha256, signatures_required, state, created_at, \
                       expires_at, run_id, executor, journal";
        let sql = format!("INSERT INTO approvals (id, {columns}) SELECT $1, {columns} FROM approvals WHERE id = $2");
        for _ in 0..count {
            let copy = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).bind(uuid::Uuid::now_v7().to_string()).bind(id);
            copy.execute(&mut *tx).await.unwrap();
        }
        tx.commit().await.unwrap();
    }

    pub(crate) async fn approvals_and_signatures(&self) -> (i64, i64) {
        let mut connection = sqlx::AnyConnection::connect(&self.url).await.unwrap();
        let sql = "SELECT (SELECT count(*) FROM approvals), (SELECT count(*) FROM approval_signatures)";
        let row = sqlx::query(sql).fetch_one(&mut connection).await.unwrap();
        (row.get(0), row.get(1))
    }

    /// How many approvals hold arguments in the database.
    pub(crate) async fn holding_arguments(&self) -> i64 {
        let mut connection = sqlx::AnyConnection::connect(&self.url).await.unwrap();
        let sql = "SELECT count(*) FROM approvals WHERE args_json IS NOT NULL";
        sqlx::query(sql).fetch_one(&mut connection).await.unwrap().try_get(0).unwrap()
    }
}

impl Service {
    /// Calls as somebody with these roles.
    pub(crate) fn as_one(&self, who: &str, roles: &[Role]) -> Client {
        ApprovalServiceClient::with_interceptor(self.channel.clone(), showing(who, roles))
            .max_decoding_message_size(16 << 20)
    }

    /// Calls the history as somebody with these roles.
    pub(crate) fn history(&self, who: &str, roles: &[Role]) -> HistoryClient {
        HistoryServiceClient::with_interceptor(self.channel.clone(), showing(who, roles))
    }

    pub(crate) fn history_as_nobody(&self) -> HistoryServiceClient<Channel> {
        HistoryServiceClient::new(self.channel.clone())
    }

    pub(crate) fn as_nobody(&self) -> ApprovalServiceClient<Channel> {
        ApprovalServiceClient::new(self.channel.clone())
    }

    pub(crate) fn bot(&self) -> Client {
        self.as_one("bot", &[Role::Orchestrator])
    }

    pub(crate) fn approver(&self, who: &str) -> Client {
        self.as_one(who, &[Role::Approver])
    }

    pub(crate) fn executor(&self, who: &str) -> Client {
        self.as_one(who, &[Role::Executor])
    }

    pub(crate) async fn ask(&self, request: pb::RequestApprovalRequest) -> Result<pb::Approval, Status> {
        Ok(self.bot().request_approval(request).await?.into_inner().approval.unwrap())
    }

    pub(crate) async fn sign(&self, who: &str, id: &str, approve: bool) -> Result<pb::Approval, Status> {
        let request = pb::SignApprovalRequest { id: id.into(), approve, comment: format!("says {who}") };
        Ok(self.approver(who).sign_approval(request).await?.into_inner().approval.unwrap())
    }

    pub(crate) async fn consume(
        &self,
        executor: &str,
        request: pb::ConsumeApprovalRequest,
    ) -> Result<pb::Approval, Status> {
        Ok(self.executor(executor).consume_approval(request).await?.into_inner().approval.unwrap())
    }

    pub(crate) async fn get(&self, id: &str) -> Result<pb::Approval, Status> {
        let request = pb::GetApprovalRequest { id: id.into() };
        Ok(self.bot().get_approval(request).await?.into_inner().approval.unwrap())
    }

    /// One that is signed.
    pub(crate) async fn approved(&self) -> pb::Approval {
        let id = self.ask(mutating()).await.unwrap().id;
        self.sign("ann", &id, true).await.unwrap()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn showing(who: &str, roles: &[Role]) -> Who {
    let roles = roles.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let (who, roles): (MetadataValue<_>, MetadataValue<_>) = (who.parse().unwrap(), roles.parse().unwrap());
    Box::new(move |mut request| {
        request.metadata_mut().insert("test-who", who.clone());
        request.metadata_mut().insert("test-roles", roles.clone());
        Ok(request)
    })
}

/// Tokens that stand for somebody with a role.
static TOKENS: Mutex<BTreeMap<String, (String, String)>> = Mutex::new(BTreeMap::new());

/// A new one, which every service of this process knows.
pub(crate) fn token(who: &str, role: &str) -> String {
    let token = Token::random().unwrap().expose().to_owned();
    TOKENS.lock().unwrap().insert(token.clone(), (who.to_owned(), role.to_owned()));
    token
}

/// What a listener does with a token, without one.
fn identify(mut request: Request<()>) -> Result<Request<()>, Status> {
    let text = |name| request.metadata().get(name).map(|value| value.to_str().unwrap().to_owned());
    let token = text("authorization").map(|value| value.strip_prefix("Bearer ").unwrap().to_owned());
    let of_token = token.and_then(|token| TOKENS.lock().unwrap().get(&token).cloned());
    if let Some((identity, roles)) = of_token.or_else(|| text("test-who").zip(text("test-roles"))) {
        let roles = roles.split(' ').map(|role| role.parse().unwrap()).collect();
        let agents = match identity.as_str() {
            "bound" => Agents::Only(["read-only".to_owned()].into()),
            _ => Agents::All,
        };
        request.extensions_mut().insert(Caller::known(Known { identity, roles, agents }));
    }
    Ok(request)
}

pub(crate) fn asking(agent: &str, skill: &str, args: &str) -> pb::RequestApprovalRequest {
    pb::RequestApprovalRequest {
        agent: agent.into(),
        skill: skill.into(),
        arguments: Some(Arguments::ArgsJson(args.into())),
        reason: "the disk is full".into(),
        ..Default::default()
    }
}

pub(crate) fn mutating() -> pb::RequestApprovalRequest {
    asking("mutating-with-confirm", "mutating", ARGS)
}

pub(crate) fn dangerous() -> pb::RequestApprovalRequest {
    asking("dual-sign-required", "dangerous", ARGS)
}

/// What an executor asks for before the run that an approval is for.
pub(crate) fn using(approval: &pb::Approval, run_id: &str) -> pb::ConsumeApprovalRequest {
    pb::ConsumeApprovalRequest {
        id: approval.id.clone(),
        run_id: run_id.into(),
        agent: approval.agent.clone(),
        skill: approval.skill.clone(),
        digest: approval.digest.clone(),
        args_sha256: approval.args_sha256.clone(),
        journal_id: "a-journal".into(),
    }
}

pub(crate) fn sha256(text: &str) -> String {
    Digest::of(text.as_bytes()).to_string()
}

/// Code and reason of a refusal.
pub(crate) fn refused<T: std::fmt::Debug>(result: Result<T, Status>) -> (Code, String) {
    let status = result.unwrap_err();
    let info = status.get_error_details().error_info().cloned();
    (status.code(), info.map(|info| info.reason).unwrap_or_else(|| status.to_string()))
}

pub(crate) fn refusal(code: Code, reason: &str) -> (Code, String) {
    (code, reason.to_owned())
}

/// The next message of a watch.
pub(crate) async fn next(stream: &mut tonic::Streaming<pb::WatchApprovalsResponse>) -> pb::Approval {
    let message = tokio::time::timeout(PATIENCE, stream.message()).await.unwrap();
    message.unwrap().unwrap().approval.unwrap()
}
