//! ApprovalService: signatures on runs that change things. Who may do what is asked here; what an approval is good for,
//! in the store.

mod request;
mod watch;
mod wire;

use skillyard::arguments::Arguments;
use skillyard::pb::registry::v1 as pb;
use skillyard::policy::{Ruling, rule};
use skillyard::schema::{self, Schema};
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::{Reason, Refusal};
use skillyard::skill::Kind;
use skillyard::{Class, Digest};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status};
use uuid::Uuid;

use self::request::Asked;
use super::page::Page;
use super::{unavailable, unknown_agent};
use crate::catalog::{Catalog, Catalogs};
use crate::store::approval::{Approval, Call, Signers, State, Use};
use crate::store::approvals::{Filter, NewApproval, RequestKey};
use crate::store::{Store, StoreError};

/// Those who may read approvals: their own, or all of them.
const READERS: [Role; 3] = [Role::Orchestrator, Role::Approver, Role::Operator];

/// Answers from the store, by the policy of the current catalog.
#[derive(Debug)]
pub(super) struct Service {
    catalogs: Catalogs,
    default_agent: Option<String>,
    store: Store,
    signers: Signers,
}

impl Service {
    pub(super) fn new(catalogs: Catalogs, default_agent: Option<String>, store: Store, signers: Signers) -> Self {
        Self { catalogs, default_agent, store, signers }
    }

    /// The agent that is meant where none is named.
    fn agent(&self, named: String) -> String {
        if named.is_empty() { self.default_agent.clone().unwrap_or_default() } else { named }
    }

    async fn visible(&self, caller: &Caller, id: &str) -> Result<Approval, Refusal> {
        caller.require(&READERS)?;
        let found = self.store.approval(known_id(id)?).await.map_err(store_failed)?;
        found.filter(|approval| sees(caller, approval)).ok_or_else(|| unknown_approval(id))
    }
}

#[tonic::async_trait]
impl pb::approval_service_server::ApprovalService for Service {
    type WatchApprovalsStream = ReceiverStream<Result<pb::WatchApprovalsResponse, Status>>;

    async fn request_approval(
        &self,
        request: Request<pb::RequestApprovalRequest>,
    ) -> Result<Response<pb::RequestApprovalResponse>, Status> {
        let caller = Caller::of(&request);
        let requested_by = caller.require(&[Role::Orchestrator])?.to_owned();
        let asked = Asked::of(request.into_inner())?;
        caller.may_name(&asked.agent)?;
        let (asked, arguments) = tokio::task::spawn_blocking(move || asked.arguments())
            .await
            .map_err(|error| internal(&format_args!("parsing arguments: {error}")))??;
        let key = RequestKey {
            requested_by,
            request_id: asked.request_id.clone(),
            request_sha256: asked.fingerprint(&arguments),
        };
        let approval = match self.store.requested(&key).await.map_err(wire::request_refused)? {
            Some(known) => known,
            None => {
                let catalog = self.catalogs.current().map_err(unavailable)?;
                let agent = self.agent(asked.agent);
                let Needed { digest, class, signatures_required, schema } = needed(&catalog, &agent, &asked.skill)?;
                // People are not asked about what an executor would refuse.
                let skill = asked.skill.clone();
                let checking =
                    tokio::task::spawn_blocking(move || check(&schema, &skill, &arguments).map(|()| arguments));
                let arguments =
                    checking.await.map_err(|error| internal(&format_args!("checking arguments: {error}")))??;
                let args_sha256 = arguments.sha256();
                let new = NewApproval {
                    call: Call { agent, skill: asked.skill, digest, args_sha256 },
                    class,
                    args_json: String::from_utf8(arguments.into_bytes()).map_err(|error| internal(&error))?,
                    reason: asked.reason,
                    requested_for: asked.requested_for,
                    signatures_required,
                    ttl: asked.ttl,
                };
                let approval = self.store.request(&key, new).await.map_err(wire::request_refused)?;
                record("asked for", &approval, &key.requested_by);
                approval
            }
        };
        Ok(Response::new(pb::RequestApprovalResponse { approval: Some(wire::short(approval)) }))
    }

    async fn sign_approval(
        &self,
        request: Request<pb::SignApprovalRequest>,
    ) -> Result<Response<pb::SignApprovalResponse>, Status> {
        let caller = Caller::of(&request);
        let signer = caller.require(&[Role::Approver])?;
        let pb::SignApprovalRequest { id, approve, comment } = request.into_inner();
        request::prose("comment", &comment)?;
        let signed = self.store.sign(known_id(&id)?, signer, approve, &comment, &self.signers).await;
        let approval = signed.map_err(|error| wire::sign_refused(error, &id))?;
        record(if approve { "signed for" } else { "signed against" }, &approval, signer);
        Ok(Response::new(pb::SignApprovalResponse { approval: Some(wire::short(approval)) }))
    }

    async fn get_approval(
        &self,
        request: Request<pb::GetApprovalRequest>,
    ) -> Result<Response<pb::GetApprovalResponse>, Status> {
        let caller = Caller::of(&request);
        let approval = self.visible(&caller, &request.into_inner().id).await?;
        Ok(Response::new(pb::GetApprovalResponse { approval: Some(wire::whole(approval)) }))
    }

    async fn list_approvals(
        &self,
        request: Request<pb::ListApprovalsRequest>,
    ) -> Result<Response<pb::ListApprovalsResponse>, Status> {
        let caller = Caller::of(&request);
        caller.require(&READERS)?;
        let pb::ListApprovalsRequest { state, page_size, page_token } = request.into_inner();
        let states = Vec::from_iter(wire::state_from_wire(state)?);
        let filter = Filter { requested_by: only_by(&caller), id: None, states };
        let page = Page::of(&["ListApprovals", &state.to_string()], page_size, &page_token)?;
        let after = page.after_name().and_then(|name| name.parse().ok());
        let found = self.store.approvals(&filter, after, page.lookup()).await.map_err(store_failed)?;
        let (approvals, next_page_token) = page.cut(
            found.into_iter(),
            |approval| approval.id.to_string().into_bytes(),
            |approval| wire::short(approval.clone()),
        );
        Ok(Response::new(pb::ListApprovalsResponse { approvals, next_page_token }))
    }

    async fn watch_approvals(
        &self,
        request: Request<pb::WatchApprovalsRequest>,
    ) -> Result<Response<Self::WatchApprovalsStream>, Status> {
        let caller = Caller::of(&request);
        caller.require(&READERS)?;
        let pb::WatchApprovalsRequest { state, id } = request.into_inner();
        let state = wire::state_from_wire(state)?;
        let id = if id.is_empty() { None } else { Some(self.visible(&caller, &id).await?.id) };
        let filter = Filter { requested_by: only_by(&caller), id, states: Vec::from_iter(state) };
        let stream = watch::start(self.store.clone(), filter).await.map_err(store_failed)?;
        Ok(Response::new(stream))
    }

    async fn consume_approval(
        &self,
        request: Request<pb::ConsumeApprovalRequest>,
    ) -> Result<Response<pb::ConsumeApprovalResponse>, Status> {
        let caller = Caller::of(&request);
        let executor = caller.require(&[Role::Executor])?.to_owned();
        let message = request.into_inner();
        let (run_id, journal) = (request::run_id(&message.run_id)?, request::journal_id(&message.journal_id)?);
        let (id, by) = (message.id.clone(), Use { run_id, executor, journal });
        let call = Call {
            digest: request::digest("digest", &message.digest)?,
            args_sha256: request::digest("args_sha256", &message.args_sha256)?,
            agent: self.agent(message.agent),
            skill: message.skill,
        };
        let used = self.store.consume(known_id(&id)?, &call, &by).await;
        let approval = used.map_err(|error| wire::use_refused(error, &id))?;
        record("used", &approval, &by.executor);
        Ok(Response::new(pb::ConsumeApprovalResponse { approval: Some(wire::short(approval)) }))
    }
}

/// What stands in the catalog of a skill that this agent may run with signatures.
struct Needed {
    digest: Digest,
    class: Class,
    signatures_required: u32,
    schema: String,
}

/// As an executor checks them. The schema is compiled each time, in some 20 µs: approvals are asked for by the minute.
fn check(schema: &str, skill: &str, arguments: &Arguments) -> Result<(), Refusal> {
    let compiled =
        Schema::compile(schema).map_err(|error| internal(&format_args!("the schema of {skill}: {error}")))?;
    schema::validate(arguments, skill, &compiled)
}

fn needed(catalog: &Catalog, agent: &str, skill: &str) -> Result<Needed, Refusal> {
    let view = catalog.view(agent, None).map_err(unknown_agent)?;
    let found = catalog.skill(view, skill).ok_or_else(|| Refusal::unknown_skill(skill))?;
    let Kind::Subprocess(subprocess) = &found.skill.kind else {
        let message = format!("{skill:?} is a playbook: it is loaded into the model's turn, and never run");
        return Err(Refusal::new(Reason::NotRunnable, message).with("skill", skill));
    };
    let (class, mode) = (subprocess.class, view.permission_mode());
    match rule(class, mode) {
        Ruling::NeedsSignatures(signatures_required) => {
            let (digest, schema) = (found.skill.digest, subprocess.schema_json.clone());
            Ok(Needed { digest, class, signatures_required, schema })
        }
        Ruling::Runs => {
            let message = format!("{skill:?} is {}: it runs without an approval", class.as_str());
            Err(Refusal::new(Reason::ApprovalNotNeeded, message).with("skill", skill))
        }
        Ruling::Refused => {
            let whose =
                if agent.is_empty() { "a call without an agent".to_owned() } else { format!("agent {agent:?}") };
            let message = format!(
                "{skill:?} is {}, and the permission mode of {whose} is {}: no approval can permit it; \
                 another agent, or another mode in the agent's file, can",
                class.as_str(),
                mode.as_str()
            );
            let refusal = Refusal::new(Reason::ClassNotPermitted, message).with("skill", skill);
            Err(refusal.with("class", class.as_str()).with("permission_mode", mode.as_str()))
        }
    }
}

fn sees(caller: &Caller, approval: &Approval) -> bool {
    only_by(caller).is_none_or(|identity| identity == approval.requested_by)
}

/// Whose approvals a caller sees; `None` for everybody's.
fn only_by(caller: &Caller) -> Option<String> {
    let all = caller.allow(&[Role::Approver, Role::Operator]).is_ok();
    (!all).then(|| caller.identity().to_owned())
}

/// A text that is no id is that of no approval.
fn known_id(id: &str) -> Result<Uuid, Refusal> {
    id.parse().map_err(|_| unknown_approval(id))
}

/// The same for whoever may not see it.
fn unknown_approval(id: &str) -> Refusal {
    let message = format!("unknown approval {id:?}: ListApprovals gives those that you may see");
    Refusal::new(Reason::UnknownApproval, message).with("approval", id)
}

fn store_failed(error: StoreError) -> Refusal {
    match error {
        StoreError::Value { .. } => internal(&error),
        error => {
            tracing::error!(%error, "a call on approvals failed");
            let message = "approvals cannot be read or written, as the registry's database does not answer: try again";
            Refusal::new(Reason::StoreUnavailable, message).retry_after(std::time::Duration::from_secs(1))
        }
    }
}

fn internal(error: &dyn std::fmt::Display) -> Refusal {
    tracing::error!(%error, "a fault of ours");
    Refusal::new(Reason::Internal, "a fault of the registry: its log has the cause")
}

/// Who did what, without the arguments.
fn record(what: &'static str, approval: &Approval, caller: &str) {
    let Approval { id, call, class, state, .. } = approval;
    let run_id = approval.used_by.as_ref().map(|by| by.run_id.as_str());
    tracing::info!(
        caller,
        approval = %id,
        agent = call.agent,
        skill = call.skill,
        digest = %call.digest,
        class = class.as_str(),
        state = state.as_str(),
        run_id,
        "an approval was {what}"
    );
}

/// Whether nothing more can become of it.
fn has_ended(state: State) -> bool {
    !state.is_open()
}
