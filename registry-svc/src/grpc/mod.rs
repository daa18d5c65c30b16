//! The services as they stand in the .proto files. Wire types stop here: what lies behind knows values only.

mod agent;
mod approval;
mod browse;
mod catalog;
mod encoded;
mod history;
mod model;
mod package;
mod states;
mod watch;

use skillyard::pb::registry::v1::agent_service_server::AgentServiceServer;
use skillyard::pb::registry::v1::approval_service_server::ApprovalServiceServer;
use skillyard::pb::registry::v1::catalog_service_server::CatalogServiceServer;
use skillyard::pb::registry::v1::history_service_server::HistoryServiceServer;
use skillyard::pb::registry::v1::package_service_server::PackageServiceServer;
use skillyard::service::caller::Role;
use skillyard::service::error::{Reason, Refusal};
use skillyard::service::page;
use tokio::sync::watch::Receiver;
use tonic::server::NamedService;
use tonic::service::RoutesBuilder;

use crate::admin::follow::Status;
use crate::catalog::Catalogs;
use crate::catalog::reload::Unavailable;
use crate::catalog::snapshot::UnknownAgent;
use crate::store::Store;
use crate::store::approval::Signers;

/// The services by name, for health.
pub const SERVICES: [&str; 5] = [
    <CatalogServiceServer<catalog::Service> as NamedService>::NAME,
    <AgentServiceServer<agent::Service> as NamedService>::NAME,
    <PackageServiceServer<package::Service> as NamedService>::NAME,
    <ApprovalServiceServer<approval::Service> as NamedService>::NAME,
    <HistoryServiceServer<history::Service> as NamedService>::NAME,
];

/// Who may look at skills and agents: each for the agents that it may name.
const READERS: [Role; 4] = Role::ALL;
/// Arguments of 8 MiB, and what is around them: that they are too large is for us to say.
const MAX_APPROVAL_BYTES: usize = 20 << 20;

/// Adds the services, which all answer from these catalogs.
pub fn add(
    routes: &mut RoutesBuilder,
    catalogs: &Catalogs,
    default_agent: Option<String>,
    store: &Store,
    signers: Signers,
    sync: Option<Receiver<Status>>,
) {
    let approvals = approval::Service::new(catalogs.clone(), default_agent.clone(), store.clone(), signers);
    routes
        .add_service(ApprovalServiceServer::new(approvals).max_decoding_message_size(MAX_APPROVAL_BYTES))
        .add_service(HistoryServiceServer::new(history::Service::new(store.clone())))
        .add_service(encoded::Server::new(catalog::Service::new(catalogs.clone(), default_agent, sync)))
        .add_service(AgentServiceServer::new(agent::Service::new(catalogs.clone())))
        .add_service(watch::Server::new(package::Service::new(catalogs.clone())));
}

fn unavailable(error: Unavailable) -> Refusal {
    let reason = match error {
        Unavailable::NotLoaded => Reason::NotReady,
        Unavailable::Stopping => Reason::Draining,
    };
    Refusal::new(reason, error.to_string()).retry_after(std::time::Duration::from_secs(1))
}

fn unknown_agent(UnknownAgent(name): UnknownAgent) -> Refusal {
    Refusal::unknown_agent(&name)
}
