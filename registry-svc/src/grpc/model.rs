//! What a model reads, as messages: the roster, the tools, the text of a playbook and the files beside it.

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::read_skill_resource_response::Data as PbData;
use skillyard::service::access_log;
use skillyard::service::caller::Caller;
use skillyard::service::error::{Reason, Refusal};
use skillyard::service::page;
use skillyard::skill::Kind;
use skillyard::{Digest, PackageFile};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::{READERS, unavailable, unknown_agent};
use crate::catalog::{Catalog, Catalogs};
use crate::model::resource::{self, Data, Relpath, Resource, ResourceError};
use crate::model::roster::{self, Entry};
use crate::model::{ReadError, load_text, tools};
use crate::source::FoundSkill;

/// Threads that read files at once. A root may hang and hold them: others are left to look at the other roots.
const THREADS: usize = 64;

/// Answers from the current catalog, and from the files as they are in it.
#[derive(Debug)]
pub(super) struct Reading {
    catalogs: Catalogs,
    default_agent: Option<String>,
    threads: Arc<Semaphore>,
}

/// A playbook of the current catalog, for an agent that sees it.
struct Playbook {
    catalog: Arc<Catalog>,
    found: Arc<FoundSkill>,
}

impl Reading {
    pub(super) fn new(catalogs: Catalogs, default_agent: Option<String>) -> Self {
        Self { catalogs, default_agent, threads: Arc::new(Semaphore::new(THREADS)) }
    }

    pub(super) fn roster(
        &self,
        request: Request<pb::GetRosterRequest>,
    ) -> Result<Response<pb::GetRosterResponse>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let pb::GetRosterRequest { agent, max_chars, format } = request.into_inner();
        let format = match pb::RosterFormat::try_from(format) {
            Ok(pb::RosterFormat::Unspecified | pb::RosterFormat::Markdown) => roster::Format::Markdown,
            Ok(pb::RosterFormat::Xml) => roster::Format::Xml,
            Err(_) => return Err(unknown_format(format).into()),
        };
        let max_chars = match usize::try_from(max_chars) {
            Ok(0) => roster::MAX_CHARS,
            Ok(max) => max,
            Err(_) => {
                return Err(invalid("max_chars", format!("it is {max_chars}: write 0 for no limit, or more")).into());
            }
        };
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let view = catalog.view(&agent, self.default_agent.as_deref()).map_err(unknown_agent)?;
        let playbooks = catalog.skills(view, None).filter(|found| matches!(found.skill.kind, Kind::Playbook(_)));
        let entries: Vec<_> = playbooks.filter_map(|found| entry(&catalog, found)).collect();
        let made = roster::roster(&entries, format, max_chars);
        Ok(Response::new(pb::GetRosterResponse {
            text: made.text,
            included: made.included,
            omitted: made.omitted,
            shortened: made.shortened,
            catalog_version: catalog.version().to_string(),
        }))
    }

    pub(super) fn tools(
        &self,
        request: Request<pb::ListToolsRequest>,
    ) -> Result<Response<pb::ListToolsResponse>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let pb::ListToolsRequest { agent, format } = request.into_inner();
        let format = match pb::ToolFormat::try_from(format) {
            Ok(pb::ToolFormat::Unspecified | pb::ToolFormat::JsonSchema) => tools::Format::JsonSchema,
            Ok(pb::ToolFormat::Openai) => tools::Format::OpenAi,
            Ok(pb::ToolFormat::Anthropic) => tools::Format::Anthropic,
            Ok(pb::ToolFormat::Mcp) => tools::Format::Mcp,
            Err(_) => return Err(unknown_format(format).into()),
        };
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let view = catalog.view(&agent, self.default_agent.as_deref()).map_err(unknown_agent)?;
        let tools_json = tools::tools(&catalog, view, format).map_err(|error| internal(&error))?;
        let answer = pb::ListToolsResponse { tools_json, catalog_version: catalog.version().to_string() };
        let what = "the definitions of all tools that the agent may call have";
        fits(&answer, what, "name in the `skills` of its file those that it needs")?;
        Ok(Response::new(answer))
    }

    pub(super) async fn load(
        &self,
        request: Request<pb::LoadSkillRequest>,
    ) -> Result<Response<pb::LoadSkillResponse>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let pb::LoadSkillRequest { name, agent, expected_digest } = request.into_inner();
        let Playbook { catalog, found } = self.playbook(&name, &agent, &expected_digest)?;
        let reading = Arc::clone(&found);
        let body = self.on_a_thread(move || resource::body(&reading)).await?;
        let body = body.map_err(|changed| self.changed(&found, &changed))?;
        let answer = pb::LoadSkillResponse {
            text: load_text::wrapped(found.skill.name.as_str(), &body),
            body,
            resources: resource::resources(&found).map(resource_to_wire).collect(),
            digest: found.skill.digest.to_string(),
            catalog_version: catalog.version().to_string(),
        };
        let what = format!("the text of skill {name:?} and the list of its files have");
        fits(&answer, &what, "make of it several skills, or give its files shorter paths")?;
        Ok(Response::new(answer))
    }

    pub(super) async fn resource(
        &self,
        request: Request<pb::ReadSkillResourceRequest>,
    ) -> Result<Response<pb::ReadSkillResourceResponse>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let pb::ReadSkillResourceRequest { name, relpath, agent, expected_digest } = request.into_inner();
        let relpath: Relpath = relpath.parse().map_err(|error| invalid("relpath", format!("{error}")))?;
        let Playbook { catalog, found } = self.playbook(&name, &agent, &expected_digest)?;
        let reading = Arc::clone(&found);
        let read = self.on_a_thread(move || resource::resource(&reading, &relpath)).await?;
        let Resource { data, truncated, file } = read.map_err(|error| match error {
            ResourceError::Relpath(error) => invalid("relpath", error.to_string()),
            ResourceError::Unknown(relpath) => {
                let message = format!(
                    "skill {name:?} has no resource {relpath:?}: LoadSkill lists those that there are, and gives the \
                     text of SKILL.md itself"
                );
                Refusal::new(Reason::UnknownResource, message).with("skill", &name).with("relpath", relpath)
            }
            ResourceError::Read(changed) => self.changed(&found, &changed),
        })?;
        let data = match data {
            Data::Text(text) => PbData::Content(text),
            Data::Base64(text) => PbData::ContentB64(text),
        };
        Ok(Response::new(pb::ReadSkillResourceResponse {
            data: Some(data),
            truncated,
            size: file.size,
            sha256: file.sha256.to_string(),
            digest: found.skill.digest.to_string(),
            catalog_version: catalog.version().to_string(),
        }))
    }

    fn playbook(&self, name: &str, agent: &str, expected_digest: &str) -> Result<Playbook, Refusal> {
        let expected: Option<Digest> = match expected_digest {
            "" => None,
            text => Some(text.parse().map_err(|error| invalid("expected_digest", format!("{error}")))?),
        };
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let view = catalog.view(agent, self.default_agent.as_deref()).map_err(unknown_agent)?;
        let found = catalog.skill(view, name).map(Arc::clone).ok_or_else(|| Refusal::unknown_skill(name))?;
        if let Kind::Subprocess(_) = found.skill.kind {
            let message =
                format!("skill {name:?} is a program, which has no text to load: an executor's RunSkill runs it");
            return Err(Refusal::new(Reason::NotLoadable, message).with("skill", name));
        }
        let digest = found.skill.digest;
        if let Some(expected) = expected.filter(|expected| *expected != digest) {
            let message = format!(
                "skill {name:?} has digest {digest}, not the expected {expected}: it was changed; load it again, without \
                 an expected digest"
            );
            return Err(Refusal::new(Reason::DigestMismatch, message).with("digest", digest.to_string()));
        }
        Ok(Playbook { catalog, found })
    }

    /// Reads where it may block.
    async fn on_a_thread<T: Send + 'static>(&self, read: impl FnOnce() -> T + Send + 'static) -> Result<T, Refusal> {
        // It is never closed. The thread gives it back, also when nobody waits any more.
        let permit = Arc::clone(&self.threads).acquire_owned().await.map_err(|error| internal(&error))?;
        let reading = tokio::task::spawn_blocking(move || {
            let read = read();
            drop(permit);
            read
        });
        reading.await.map_err(|error| internal(&error))
    }

    /// The files are no longer those of the catalog: they are looked at again.
    fn changed(&self, found: &FoundSkill, changed: &ReadError) -> Refusal {
        let (name, digest) = (&found.skill.name, found.skill.digest);
        tracing::info!(skill = %name, %digest, %changed, "what a model is to read is no longer on disk");
        self.catalogs.hint();
        let message = format!(
            "the files of skill {:?} on disk are no longer those of {digest}: {changed}. The registry looks at them again; \
             load the skill again then",
            name.as_str()
        );
        Refusal::new(Reason::PackageChanged, message)
            .with("digest", digest.to_string())
            .retry_after(Duration::from_secs(1))
    }
}

/// Whoever may look at skills, for the agents that it may name.
fn allow<T>(request: &Request<T>, agent: &str) -> Result<(), Refusal> {
    let caller = Caller::of(request);
    caller.allow(&READERS)?;
    access_log::on_behalf_of(agent);
    caller.may_name(agent)
}

fn entry<'a>(catalog: &'a Catalog, found: &'a FoundSkill) -> Option<Entry<'a>> {
    let skill = &found.skill;
    Some(Entry {
        name: skill.name.as_str(),
        description: &skill.description,
        source: skill.source,
        location: catalog.manifest_path(&skill.name)?,
    })
}

fn resource_to_wire(file: &PackageFile) -> pb::Resource {
    pb::Resource { relpath: file.path.to_string(), size: file.size, sha256: file.sha256.to_string() }
}

/// Whether clients take the answer, which 4 MiB they do if nobody told them otherwise: half of a text is of no use.
fn fits(answer: &impl Message, what: &str, instead: &str) -> Result<(), Refusal> {
    let bytes = answer.encoded_len();
    if bytes <= page::MAX_BYTES {
        return Ok(());
    }
    let message = format!("{what} {bytes} bytes, and an answer has {} at most: {instead}", page::MAX_BYTES);
    Err(Refusal::new(Reason::AnswerTooLarge, message).with("bytes", bytes.to_string()))
}

fn invalid(field: &str, what: String) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field}: {what}")).violation(field, what)
}

fn unknown_format(format: i32) -> Refusal {
    invalid("format", format!("{format} is none that this registry knows: leave it out for the default"))
}

fn internal(error: &dyn std::error::Error) -> Refusal {
    tracing::error!(%error, "answering a model failed");
    Refusal::new(Reason::Internal, "the registry could not make the answer: its log says why")
}
