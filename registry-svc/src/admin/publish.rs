//! The registry as an admin server: its own playbooks over HTTP, for other registries and whoever speaks the protocol.

use std::io;
use std::path::Path as FilePath;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, RETRY_AFTER, VARY, WWW_AUTHENTICATE,
};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use serde::Deserialize;
use skillyard::service::rotated::FileError;
use skillyard::service::token::TokensFile;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::answer::{self, Piece};
use super::shelf::Shelf;
use crate::catalog::Catalogs;
use crate::source::Tier;

/// Skills that are sent at once; each may hold some MiB.
const AT_ONCE: usize = 32;
const AHEAD: usize = 4;

/// Who may read what is published.
#[derive(Clone, Debug)]
pub enum Readers {
    /// Anybody, what is for tier free.
    Anybody,
    /// Whoever has a token, what is for its tier.
    Known(Arc<TokensFile>),
}

impl Readers {
    /// Those of a file with lines `TIER sha256:HEX`.
    ///
    /// # Errors
    /// It cannot be used.
    pub fn of_file(path: &FilePath) -> Result<Self, FileError> {
        let check = |identity: &str| match identity.parse::<Tier>() {
            Ok(_) => Ok(()),
            Err(error) => {
                Err(format!("{error}; a line is `TIER sha256:HEX`, as `registry-svc token new TIER` writes it"))
            }
        };
        Ok(Self::Known(Arc::new(TokensFile::open(path, check)?)))
    }

    fn tier(&self, headers: &HeaderMap) -> Result<Tier, Answer> {
        let Self::Known(tokens) = self else { return Ok(Tier::Free) };
        let tier =
            headers.get(AUTHORIZATION).and_then(|value| tokens.identity(value)).and_then(|tier| tier.parse().ok());
        tier.ok_or(Answer::Unknown)
    }
}

/// What is answered.
enum Answer {
    /// No token, or one that is not known.
    Unknown,
    /// There is no catalog yet.
    NotReady,
    /// Not for this reader, or not at all.
    NotFound,
    /// The files are being changed.
    Changing,
}

impl From<Answer> for Response {
    fn from(answer: Answer) -> Self {
        let (status, error) = match answer {
            Answer::Unknown => {
                (StatusCode::UNAUTHORIZED, "show a token that is known here: authorization: Bearer TOKEN")
            }
            Answer::NotReady => (StatusCode::SERVICE_UNAVAILABLE, "the skills are being loaded: ask again in a moment"),
            Answer::NotFound => (StatusCode::NOT_FOUND, "there is nothing at this address"),
            Answer::Changing => (StatusCode::SERVICE_UNAVAILABLE, "the skill is being changed: ask again in a moment"),
        };
        let mut response = said(status, error);
        let headers = response.headers_mut();
        match status {
            StatusCode::UNAUTHORIZED => headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer")),
            StatusCode::SERVICE_UNAVAILABLE => headers.insert(RETRY_AFTER, HeaderValue::from_static("1")),
            _ => None,
        };
        response
    }
}

fn said(status: StatusCode, error: &str) -> Response {
    (status, [(CONTENT_TYPE, "application/json")], serde_json::json!({"error": error}).to_string()).into_response()
}

/// Answers from the current catalog.
#[derive(Clone, Debug)]
struct Publisher {
    catalogs: Catalogs,
    readers: Readers,
    shelf: Arc<Mutex<Option<Arc<Shelf>>>>,
    places: Arc<Semaphore>,
}

/// The routes of the protocol.
pub fn routes(catalogs: Catalogs, readers: Readers) -> Router {
    let publisher = Publisher { catalogs, readers, shelf: Arc::default(), places: Arc::new(Semaphore::new(AT_ONCE)) };
    Router::new()
        .route("/api/public/skills", get(list))
        .route("/api/public/skills/manifest", get(manifest))
        .route("/api/public/skills/{id}", get(one))
        .method_not_allowed_fallback(async || {
            let mut response = said(StatusCode::METHOD_NOT_ALLOWED, "what is published is only read: GET or HEAD");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        })
        .fallback(async || Response::from(Answer::NotFound))
        .layer(from_fn(logged))
        .with_state(publisher)
}

/// A line for every request, for debugging.
async fn logged(request: Request, next: Next) -> Response {
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let response = next.run(request).await;
    tracing::debug!(%method, path, status = response.status().as_u16(), "published");
    response
}

async fn manifest(State(publisher): State<Publisher>, headers: HeaderMap) -> Response {
    publisher.page(&headers, |pages| &pages.manifest).await.unwrap_or_else(Response::from)
}

async fn list(State(publisher): State<Publisher>, headers: HeaderMap) -> Response {
    publisher.page(&headers, |pages| &pages.list).await.unwrap_or_else(Response::from)
}

#[derive(Deserialize)]
struct Asked {
    include_files: Option<String>,
}

async fn one(
    State(publisher): State<Publisher>,
    Path(id): Path<String>,
    Query(asked): Query<Asked>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let with_files = asked.include_files.is_some_and(|value| !matches!(value.as_str(), "" | "0" | "false" | "no"));
    publisher.one(&id, with_files, &method, &headers).await.unwrap_or_else(Response::from)
}

impl Publisher {
    /// What is published of the current catalog.
    fn shelf(&self) -> Result<Arc<Shelf>, Answer> {
        let catalog = self.catalogs.current().map_err(|_| Answer::NotReady)?;
        let mut shelf = self.shelf.lock().unwrap_or_else(PoisonError::into_inner);
        match &*shelf {
            Some(shelf) if Arc::ptr_eq(&shelf.catalog, &catalog) => Ok(Arc::clone(shelf)),
            _ => Ok(Arc::clone(shelf.insert(Arc::new(Shelf::new(catalog))))),
        }
    }

    async fn page(&self, headers: &HeaderMap, page: fn(&super::shelf::Pages) -> &Bytes) -> Result<Response, Answer> {
        let tier = self.readers.tier(headers)?;
        let shelf = self.shelf()?;
        // The first reader after a change makes the pages, which takes a moment where skills are many.
        let made = tokio::task::spawn_blocking(move || {
            let pages = shelf.pages(tier);
            (page(pages).clone(), pages.version.clone())
        });
        let (page, version) = made.await.map_err(|_| Answer::Changing)?;
        // When something was changed is in the page, and not in its version.
        let etag = format!("W/\"{version}\"");
        Ok(if matches(headers, &etag) { not_modified(&etag) } else { found(&etag, page.into()) })
    }

    async fn one(&self, id: &str, with_files: bool, method: &Method, headers: &HeaderMap) -> Result<Response, Answer> {
        let tier = self.readers.tier(headers)?;
        let shelf = self.shelf()?;
        let etag = {
            let digest = &shelf.skill(id, tier).ok_or(Answer::NotFound)?.skill.digest;
            format!("\"{digest}{}\"", if with_files { "-files" } else { "" })
        };
        if matches(headers, &etag) {
            return Ok(not_modified(&etag));
        }
        if method == Method::HEAD {
            // Nothing is read for it, so its length is not known.
            let nothing = tokio_stream::empty::<io::Result<Bytes>>();
            return Ok(found(&etag, Body::from_stream(nothing)));
        }
        // It is never closed.
        let place = Arc::clone(&self.places).acquire_owned().await.map_err(|_| Answer::Changing)?;
        let (to, mut pieces) = mpsc::channel(AHEAD);
        let (id, handle) = (id.to_owned(), Handle::current());
        tokio::task::spawn_blocking(move || {
            let _place = place;
            if let Some(found) = shelf.skill(&id, tier) {
                answer::write(found, with_files, &to, &handle);
            }
        });
        match pieces.recv().await {
            Some(Ok(Piece::Last(all))) => Ok(found(&etag, all.into())),
            Some(Ok(first)) => {
                let rest = tokio_stream::once(Ok(first)).chain(ReceiverStream::new(pieces));
                let bytes = rest.map(|piece: io::Result<Piece>| piece.map(Piece::into_bytes));
                Ok(found(&etag, Body::from_stream(bytes)))
            }
            Some(Err(error)) => {
                tracing::info!(%error, "a skill that is published cannot be read; looking at the roots again");
                self.catalogs.hint();
                Err(Answer::Changing)
            }
            None => Err(Answer::Changing),
        }
    }
}

fn found(etag: &str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    with_etag(response, etag)
}

fn not_modified(etag: &str) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NOT_MODIFIED;
    with_etag(response, etag)
}

fn with_etag(mut response: Response, etag: &str) -> Response {
    let headers = response.headers_mut();
    if let Ok(etag) = HeaderValue::from_str(etag) {
        headers.insert(ETAG, etag);
    }
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(VARY, HeaderValue::from_static("authorization"));
    response
}

/// Whether the reader has this version: weak and strong ones are the same here (RFC 9110, 13.1.2).
fn matches(headers: &HeaderMap, etag: &str) -> bool {
    let plain = |etag: &str| etag.trim().trim_start_matches("W/").to_owned();
    let values = headers.get_all(IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
    let wanted = plain(etag);
    values.flat_map(|value| value.split(',')).any(|value| value.trim() == "*" || plain(value) == wanted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn etags() {
        let has = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(IF_NONE_MATCH, HeaderValue::from_str(value).unwrap());
            matches(&headers, "W/\"a\"")
        };
        assert!(has("\"a\"") && has("W/\"a\"") && has("\"b\", \"a\"") && has("*"));
        assert!(!has("\"b\"") && !has("a") && !matches(&HeaderMap::new(), "\"a\""));
    }
}
