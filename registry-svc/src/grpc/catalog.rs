//! CatalogService: what skills there are, and what became of every candidate.

use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::skill::v1::SkillSource;
use skillyard::service::access_log;
use skillyard::service::caller::{Caller, Role};
use skillyard::service::error::Refusal;
use skillyard::wire;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

use super::browse::Browsing;
use super::encoded::EncodedSkills;
use super::model::Reading;
use super::page::Page;
use super::{READERS, unavailable, unknown_agent};
use crate::admin::follow;
use crate::catalog::report::{Key, Reported, RootReport};
use crate::catalog::{Catalogs, Unnotified};
use crate::source::{Diagnostic, RootKind, RootState, Severity};

/// Answers from the current catalog.
#[derive(Debug)]
pub(super) struct Service {
    catalogs: Catalogs,
    default_agent: Option<String>,
    browsing: Browsing,
    reading: Reading,
    sync: Option<watch::Receiver<follow::Status>>,
}

impl Service {
    pub(super) fn new(
        catalogs: Catalogs,
        default_agent: Option<String>,
        sync: Option<watch::Receiver<follow::Status>>,
    ) -> Self {
        let browsing = Browsing::new(catalogs.clone(), default_agent.clone());
        let reading = Reading::new(catalogs.clone(), default_agent.clone());
        Self { catalogs, default_agent, browsing, reading, sync }
    }

    /// A page of skills, each encoded already.
    pub(super) fn list(&self, request: Request<pb::ListSkillsRequest>) -> Result<Response<EncodedSkills>, Status> {
        self.browsing.list(request)
    }
}

#[tonic::async_trait]
impl pb::catalog_service_server::CatalogService for Service {
    async fn list_skills(
        &self,
        request: Request<pb::ListSkillsRequest>,
    ) -> Result<Response<pb::ListSkillsResponse>, Status> {
        Ok(self.list(request)?.map(EncodedSkills::decoded))
    }

    async fn get_skill(&self, request: Request<pb::GetSkillRequest>) -> Result<Response<pb::GetSkillResponse>, Status> {
        let caller = Caller::of(&request);
        caller.allow(&READERS)?;
        let pb::GetSkillRequest { name, agent } = request.into_inner();
        access_log::on_behalf_of(&agent);
        caller.may_name(&agent)?;
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let view = catalog.view(&agent, self.default_agent.as_deref()).map_err(unknown_agent)?;
        let found = catalog.skill(view, &name).ok_or_else(|| Refusal::unknown_skill(&name))?;
        Ok(Response::new(pb::GetSkillResponse {
            skill: Some(wire::skill_to_wire(&found.skill)),
            catalog_version: catalog.version().to_string(),
        }))
    }

    async fn search_skills(
        &self,
        request: Request<pb::SearchSkillsRequest>,
    ) -> Result<Response<pb::SearchSkillsResponse>, Status> {
        self.browsing.search(request).await
    }

    async fn list_categories(
        &self,
        request: Request<pb::ListCategoriesRequest>,
    ) -> Result<Response<pb::ListCategoriesResponse>, Status> {
        self.browsing.categories(request).await
    }

    async fn get_roster(
        &self,
        request: Request<pb::GetRosterRequest>,
    ) -> Result<Response<pb::GetRosterResponse>, Status> {
        self.reading.roster(request)
    }

    async fn list_tools(
        &self,
        request: Request<pb::ListToolsRequest>,
    ) -> Result<Response<pb::ListToolsResponse>, Status> {
        self.reading.tools(request)
    }

    async fn load_skill(
        &self,
        request: Request<pb::LoadSkillRequest>,
    ) -> Result<Response<pb::LoadSkillResponse>, Status> {
        self.reading.load(request).await
    }

    async fn read_skill_resource(
        &self,
        request: Request<pb::ReadSkillResourceRequest>,
    ) -> Result<Response<pb::ReadSkillResourceResponse>, Status> {
        self.reading.resource(request).await
    }

    async fn get_load_report(
        &self,
        request: Request<pb::GetLoadReportRequest>,
    ) -> Result<Response<pb::GetLoadReportResponse>, Status> {
        Caller::of(&request).allow(&[Role::Operator])?;
        let pb::GetLoadReportRequest { problems_only, page_size, page_token } = request.into_inner();
        let page = Page::of(&["GetLoadReport", &problems_only.to_string()], page_size, &page_token)?;
        let after = page.after().map(key_from_position);
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let report = catalog.report();
        let rest = match &after {
            Some(after) => report.candidates.partition_point(|candidate| candidate.key <= *after),
            None => 0,
        };
        let (candidates, next_page_token) = page.cut(
            report.candidates[rest..].iter().filter(|candidate| !problems_only || candidate.is_problem()),
            |candidate| key_to_position(&candidate.key),
            |candidate| candidate_to_wire(candidate),
        );
        let first = after.is_none();
        Ok(Response::new(pb::GetLoadReportResponse {
            catalog_version: catalog.version().to_string(),
            loaded_at: Some(report.loaded_at.into()),
            roots: if first { roots_to_wire(&report.roots, &self.catalogs.unnotified()) } else { Vec::new() },
            candidates,
            next_page_token,
            sync: self.sync.as_ref().filter(|_| first).map(|sync| sync_to_wire(&sync.borrow())),
        }))
    }

    async fn reload(&self, request: Request<pb::ReloadRequest>) -> Result<Response<pb::ReloadResponse>, Status> {
        let caller = Caller::of(&request);
        let identity = caller.require(&[Role::Operator])?;
        tracing::info!(caller = identity, "reload asked for");
        let reloaded = self.catalogs.reload().await.map_err(unavailable)?;
        let (registered, skipped) = reloaded.catalog.report().counts();
        let difference = reloaded.difference;
        Ok(Response::new(pb::ReloadResponse {
            catalog_version: reloaded.catalog.version().to_string(),
            registered,
            skipped,
            added: difference.added,
            changed: difference.changed,
            removed: difference.removed,
        }))
    }
}

fn sync_to_wire(status: &follow::Status) -> pb::AdminSync {
    pb::AdminSync {
        url: status.url.clone(),
        version: status.version.clone(),
        attempted_at: status.attempted_at.map(Into::into),
        succeeded_at: status.succeeded_at.map(Into::into),
        skills: u32::try_from(status.skills).unwrap_or(u32::MAX),
        failed: u32::try_from(status.failed).unwrap_or(u32::MAX),
        error: status.error.clone(),
    }
}

fn roots_to_wire(reports: &[RootReport], unnotified: &[Option<Unnotified>]) -> Vec<pb::Root> {
    let unnotified = unnotified.iter().map(Option::as_ref).chain(std::iter::repeat(None));
    reports.iter().zip(unnotified).map(|(report, unnotified)| root_to_wire(report, unnotified)).collect()
}

fn root_to_wire(report: &RootReport, unnotified: Option<&Unnotified>) -> pb::Root {
    let source = match report.root.kind {
        RootKind::Skills(source) => wire::source_to_wire(source),
        RootKind::Agents => SkillSource::Unspecified,
    };
    let state = match report.root.state {
        RootState::Registered => "registered",
        RootState::Missing => "missing",
        RootState::NotAbsolute => "not_absolute",
        RootState::NotEntitled => "not_entitled",
        RootState::Unreadable => "unreadable",
    };
    pb::Root {
        path: report.root.path.to_string_lossy().into_owned(),
        source: source.into(),
        state: state.to_owned(),
        registered: report.registered,
        skipped: report.skipped,
        unnotified: unnotified.map(ToString::to_string).unwrap_or_default(),
    }
}

fn candidate_to_wire(candidate: &Reported) -> pb::Candidate {
    pb::Candidate {
        path: candidate.key.path.to_string_lossy().into_owned(),
        name: candidate.name.to_string(),
        registered: candidate.is_registered(),
        diagnostics: candidate.diagnostics.iter().map(diagnostic_to_wire).collect(),
    }
}

fn diagnostic_to_wire(diagnostic: &Diagnostic) -> pb::Diagnostic {
    let severity = match diagnostic.severity {
        Severity::Warning => pb::Severity::Warning,
        Severity::Error => pb::Severity::Error,
    };
    pb::Diagnostic {
        severity: severity.into(),
        code: diagnostic.code.to_owned(),
        message: diagnostic.message.clone(),
        line: diagnostic.line,
        column: diagnostic.column,
    }
}

/// Where a candidate stands in the report, as bytes for a token.
fn key_to_position(key: &Key) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [key.root, key.ordinal] {
        bytes.extend((number as u64).to_be_bytes());
    }
    bytes.extend(key.path.as_os_str().as_bytes());
    bytes
}

/// And back; what is no position begins at the beginning.
fn key_from_position(bytes: &[u8]) -> Key {
    let number = |bytes: &[u8; 8]| usize::try_from(u64::from_be_bytes(*bytes)).unwrap_or(usize::MAX);
    let none = Key { root: 0, path: Path::new("").into(), ordinal: 0 };
    let Some((root, rest)) = bytes.split_first_chunk::<8>() else { return none };
    let Some((ordinal, path)) = rest.split_first_chunk::<8>() else { return none };
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    Key { root: number(root), path: path.into(), ordinal: number(ordinal) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_there_and_back() {
        let path = PathBuf::from(std::ffi::OsString::from_vec(b"/a/\xff/skill.json".to_vec())).into();
        let key = Key { root: 3, path, ordinal: 1 };
        assert_eq!(key_from_position(&key_to_position(&key)), key);
        assert_eq!(key_from_position(b"short"), Key { root: 0, path: Path::new("").into(), ordinal: 0 });
    }
}
