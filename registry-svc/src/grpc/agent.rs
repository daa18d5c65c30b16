//! AgentService: the agents that the registry knows.

use skillyard::pb::registry::v1 as pb;
use skillyard::service::caller::Caller;
use skillyard::service::error::Refusal;
use skillyard::wire;
use tonic::{Request, Response, Status};

use super::page::Page;
use super::{READERS, unavailable};
use crate::catalog::Catalogs;

/// Answers from the current catalog.
#[derive(Debug)]
pub(super) struct Service {
    catalogs: Catalogs,
}

impl Service {
    pub(super) fn new(catalogs: Catalogs) -> Self {
        Self { catalogs }
    }
}

#[tonic::async_trait]
impl pb::agent_service_server::AgentService for Service {
    async fn list_agents(
        &self,
        request: Request<pb::ListAgentsRequest>,
    ) -> Result<Response<pb::ListAgentsResponse>, Status> {
        let caller = Caller::of(&request);
        caller.allow(&READERS)?;
        let pb::ListAgentsRequest { page_size, page_token } = request.into_inner();
        let page = Page::of(&["ListAgents"], page_size, &page_token)?;
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let (agents, next_page_token) = page.cut(
            catalog.agents(page.after_name()).filter(|agent| caller.may_name(&agent.name).is_ok()),
            |agent| agent.name.as_bytes().to_vec(),
            |agent| wire::agent_to_wire(agent),
        );
        Ok(Response::new(pb::ListAgentsResponse { agents, next_page_token }))
    }

    async fn get_agent(&self, request: Request<pb::GetAgentRequest>) -> Result<Response<pb::GetAgentResponse>, Status> {
        let caller = Caller::of(&request);
        caller.allow(&READERS)?;
        let name = request.into_inner().name;
        caller.may_name(&name)?;
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let agent = catalog.agent(&name).ok_or_else(|| Refusal::unknown_agent(&name))?;
        Ok(Response::new(pb::GetAgentResponse { agent: Some(wire::agent_to_wire(agent)) }))
    }
}
