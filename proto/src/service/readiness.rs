//! Whether a service can take calls: set in one place, told over gRPC health and on the admin port alike.

use std::sync::Arc;

use tokio::sync::watch;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

/// Cheap to clone; all clones are the same. Not ready until it is said to be.
#[derive(Clone)]
pub struct Readiness {
    reporter: HealthReporter,
    services: Arc<[String]>,
    state: Arc<watch::Sender<Result<(), &'static str>>>,
}

impl Readiness {
    /// Of these services, and of the server as a whole.
    pub(super) fn new(reporter: HealthReporter, services: &[&str]) -> Self {
        let services = std::iter::once(&"").chain(services).map(ToString::to_string).collect();
        Self { reporter, services, state: Arc::new(watch::Sender::new(Err("it is starting"))) }
    }

    /// Ready, or why not.
    pub async fn set(&self, state: Result<(), &'static str>) {
        let status = if state.is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing };
        for service in &*self.services {
            self.reporter.set_service_status(service, status).await;
        }
        self.state.send_modify(|current| *current = state);
    }

    /// What was said last.
    pub fn state(&self) -> Result<(), &'static str> {
        *self.state.borrow()
    }
}

impl std::fmt::Debug for Readiness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Readiness").field("services", &self.services).field("state", &self.state()).finish()
    }
}
