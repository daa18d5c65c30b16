//! What people browse and search, as CatalogService answers it: skills in pages, by question, and by category.

use std::num::NonZero;
use std::sync::Arc;

use prost::Message as _;
use prost::bytes::Bytes;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::skill::v1::{SkillClass, SkillKind};
use skillyard::service::access_log;
use skillyard::service::caller::Caller;
use skillyard::service::error::{Reason, Refusal};
use skillyard::skill::Kind;
use skillyard::{Class, wire};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use super::encoded::{self, EncodedSkills};
use super::page::{self, Page};
use super::{READERS, unavailable, unknown_agent};
use crate::catalog::categories::{Card, Category};
use crate::catalog::snapshot::Listed;
use crate::catalog::{Catalog, Catalogs};
use crate::source::FoundSkill;

/// Most characters of a question.
const MOST_CHARS: usize = 1000;
const DEFAULT_HITS: usize = 10;
const MOST_HITS: usize = 100;

/// Answers from the current catalog.
#[derive(Debug)]
pub(super) struct Browsing {
    catalogs: Catalogs,
    default_agent: Option<String>,
    /// Searches at once: as many as can run. Others wait, and hold up nothing else.
    threads: Arc<Semaphore>,
}

impl Browsing {
    pub(super) fn new(catalogs: Catalogs, default_agent: Option<String>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { catalogs, default_agent, threads: Arc::new(Semaphore::new(threads)) }
    }

    pub(super) fn list(&self, request: Request<pb::ListSkillsRequest>) -> Result<Response<EncodedSkills>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let request = request.into_inner();
        let filter = Filter::of(&request)?;
        let (kind, class) = (request.kind.to_string(), request.class.to_string());
        let filters = ["ListSkills", &request.agent, &kind, &class, &request.category];
        let page = Page::of(&filters, request.page_size, &request.page_token)?;
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let view = catalog.view(&request.agent, self.default_agent.as_deref()).map_err(unknown_agent)?;
        let passes = |listed: &Listed<'_>| filter.passes(listed.found);
        let (total, (skills, next_page_token)) = match request.category.as_str() {
            "" => {
                let rest = catalog.listed(view, page.after_name()).filter(passes);
                let position = |listed: &Listed<'_>| listed.found.skill.name.as_str().as_bytes().to_vec();
                let total = match filter.is_none() {
                    true => catalog.count(view),
                    false => catalog.listed(view, None).filter(passes).count(),
                };
                (total, page.cut_by(rest, position, encoded::skill, Bytes::len))
            }
            category => {
                let rest = catalog.cards(view, category, page.after().map(card_from_position)).filter(passes);
                let total = catalog.cards(view, category, None).filter(passes).count();
                (total, page.cut_by(rest, |listed| card_to_position(listed.found), encoded::skill, Bytes::len))
            }
        };
        Ok(Response::new(EncodedSkills {
            skills,
            next_page_token,
            catalog_version: catalog.version().to_string(),
            total_size: i32::try_from(total).unwrap_or(i32::MAX),
        }))
    }

    pub(super) async fn search(
        &self,
        request: Request<pb::SearchSkillsRequest>,
    ) -> Result<Response<pb::SearchSkillsResponse>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let pb::SearchSkillsRequest { query, agent, limit } = request.into_inner();
        let chars = query.chars().count();
        if query.trim().is_empty() || chars > MOST_CHARS {
            let what = format!(
                "it has {chars} characters: write in a few words, at most {MOST_CHARS} characters, what the skill should do"
            );
            return Err(invalid("query", what).into());
        }
        let limit = match usize::try_from(limit) {
            Ok(0) => DEFAULT_HITS,
            Ok(limit) => limit.min(MOST_HITS),
            Err(_) => {
                let what = format!("it is {limit}: write 1 to {MOST_HITS}, or 0 for {DEFAULT_HITS}");
                return Err(invalid("limit", what).into());
            }
        };
        let default_agent = self.default_agent.clone();
        let answer = self
            .on_a_thread(move |catalog| {
                let view = catalog.view(&agent, default_agent.as_deref()).map_err(unknown_agent)?;
                let (mut hits, mut bytes) = (Vec::new(), 0);
                for hit in catalog.search(view, &query, limit) {
                    let hit = pb::SearchHit { skill: Some(wire::skill_to_wire(&hit.found.skill)), score: hit.score };
                    bytes += hit.encoded_len() + page::AROUND;
                    if bytes > page::MAX_BYTES && !hits.is_empty() {
                        break;
                    }
                    hits.push(hit);
                }
                Ok(pb::SearchSkillsResponse { hits, catalog_version: catalog.version().to_string() })
            })
            .await?;
        Ok(Response::new(answer))
    }

    pub(super) async fn categories(
        &self,
        request: Request<pb::ListCategoriesRequest>,
    ) -> Result<Response<pb::ListCategoriesResponse>, Status> {
        allow(&request, &request.get_ref().agent)?;
        let agent = request.into_inner().agent;
        let default_agent = self.default_agent.clone();
        let answer = self
            .on_a_thread(move |catalog| {
                let view = catalog.view(&agent, default_agent.as_deref()).map_err(unknown_agent)?;
                let mut bytes = 0;
                let categories = catalog.categories(view).into_iter().map(category_to_wire);
                let categories = categories.take_while(|category| {
                    bytes += category.encoded_len() + page::AROUND;
                    bytes <= page::MAX_BYTES
                });
                Ok(pb::ListCategoriesResponse {
                    categories: categories.collect(),
                    catalog_version: catalog.version().to_string(),
                })
            })
            .await?;
        Ok(Response::new(answer))
    }

    /// Answers where it may take its time: the first question to a catalog waits for what it is answered from.
    async fn on_a_thread<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&Catalog) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Refusal> {
        // It is never closed. The thread gives it back, also when nobody waits any more.
        let permit = Arc::clone(&self.threads).acquire_owned().await.map_err(|error| internal(&error))?;
        let catalog = self.catalogs.current().map_err(unavailable)?;
        let answering = tokio::task::spawn_blocking(move || {
            let answer = answer(&catalog);
            drop(permit);
            answer
        });
        answering.await.map_err(|error| internal(&error))?
    }
}

/// Whoever may look at skills, for the agents that it may name.
fn allow<T>(request: &Request<T>, agent: &str) -> Result<(), Refusal> {
    let caller = Caller::of(request);
    caller.allow(&READERS)?;
    access_log::on_behalf_of(agent);
    caller.may_name(agent)
}

/// What a request lets through beside its agent's view and its category.
struct Filter {
    kind: SkillKind,
    class: Option<Class>,
}

impl Filter {
    fn of(request: &pb::ListSkillsRequest) -> Result<Self, Refusal> {
        let unknown = |field: &str, value: i32| {
            let message = format!("{field} {value} is none that this registry knows: leave it out for all of them");
            Refusal::new(Reason::InvalidRequest, &message).violation(field, message)
        };
        let class = SkillClass::try_from(request.class).map_err(|_| unknown("class", request.class))?;
        Ok(Self {
            kind: SkillKind::try_from(request.kind).map_err(|_| unknown("kind", request.kind))?,
            class: wire::class_from_wire(class),
        })
    }

    fn is_none(&self) -> bool {
        self.kind == SkillKind::Unspecified && self.class.is_none()
    }

    fn passes(&self, found: &FoundSkill) -> bool {
        let (kind, class) = match &found.skill.kind {
            Kind::Subprocess(subprocess) => (SkillKind::Subprocess, Some(subprocess.class)),
            Kind::Playbook(_) => (SkillKind::Playbook, None),
        };
        (self.kind == SkillKind::Unspecified || self.kind == kind) && (self.class.is_none() || self.class == class)
    }
}

fn category_to_wire(category: Category<'_>) -> pb::Category {
    pb::Category {
        name: category.name.to_owned(),
        order: category.order,
        skills: i32::try_from(category.skills).unwrap_or(i32::MAX),
    }
}

/// Where a card stands in its category, as bytes for a token.
fn card_to_position(found: &FoundSkill) -> Vec<u8> {
    let mut bytes = Vec::new();
    match found.skill.card.category_order {
        Some(order) => {
            bytes.push(0);
            bytes.extend(order.to_be_bytes());
        }
        None => bytes.push(1),
    }
    bytes.extend(found.skill.name.as_str().as_bytes());
    bytes
}

/// And back; a token that was made up begins somewhere.
fn card_from_position(bytes: &[u8]) -> Card<'_> {
    let (order, name) = match bytes {
        [0, rest @ ..] => match rest.split_first_chunk() {
            Some((order, name)) => (Some(i32::from_be_bytes(*order)), name),
            None => (Some(i32::MIN), rest),
        },
        [_, name @ ..] => (None, name),
        [] => (Some(i32::MIN), bytes),
    };
    Card::new(order, page::text(name))
}

fn invalid(field: &str, what: String) -> Refusal {
    Refusal::new(Reason::InvalidRequest, format!("{field}: {what}")).violation(field, what)
}

fn internal(error: &dyn std::error::Error) -> Refusal {
    tracing::error!(%error, "answering from the catalog failed");
    Refusal::new(Reason::Internal, "the registry could not make the answer: its log says why")
}
