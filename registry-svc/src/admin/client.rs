//! The HTTP client of one admin server: conditional requests, bounded bodies, retries of what can pass. Shows its token to
//! this server alone. Knows no protocol and no disk.

use std::sync::Arc;
use std::time::Instant;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_ENCODING, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::protocol::SKILLS;
use super::server::{FetchError, Limits, Server, read_small, retry_after, token};

const MAX_REDIRECTS: usize = 5;
/// A longer one is not kept.
const MAX_ETAG: usize = 1 << 10;
/// More of a body is read by one at a time.
const SMALL: usize = 1 << 20;

/// An answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// What is known already is still so.
    NotModified,
    Body(Body),
}

/// What came.
#[derive(Debug)]
pub(super) struct Body {
    pub(super) bytes: Vec<u8>,
    pub(super) etag: Option<String>,
    /// Held by a large body, so that there is one of them at a time.
    _large: Option<OwnedSemaphorePermit>,
}

/// One server, for one sync.
#[derive(Clone, Debug)]
pub(super) struct AdminClient {
    http: Client,
    base: Url,
    token: Option<HeaderValue>,
    limits: Limits,
    large: Arc<Semaphore>,
}

impl AdminClient {
    /// Reads the files.
    ///
    /// # Errors
    /// What is wrong with them.
    pub(super) fn new(server: &Server) -> Result<Self, FetchError> {
        let limits = server.limits;
        let mut builder = Client::builder()
            .user_agent(concat!("skillyard/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(limits.connect)
            .read_timeout(limits.idle)
            .timeout(limits.total)
            .redirect(Policy::custom(redirect))
            // The environment is read in one place; a proxy would be told the token of a server that is not encrypted.
            .no_proxy()
            .referer(false);
        if let Some(path) = &server.ca {
            let failed = |what: String| FetchError::Client(format!("{}: {what}", path.display()));
            let pem = read_small(path).map_err(failed)?;
            let certificates = Certificate::from_pem_bundle(&pem).map_err(|error| failed(error.to_string()))?;
            if certificates.is_empty() {
                return Err(failed("no certificate is in it: write one in PEM".to_owned()));
            }
            builder = builder.tls_certs_only(certificates);
        }
        let http = builder.build().map_err(|error| FetchError::Client(chain(&error)))?;
        let token = server.token_file.as_deref().map(token).transpose()?;
        Ok(Self { http, base: server.url.clone(), token, limits, large: Arc::new(Semaphore::new(1)) })
    }

    /// Asks for what is below the skills, again and again where it can pass.
    ///
    /// # Errors
    /// See [`FetchError`].
    pub(super) async fn get(
        &self,
        what: &str,
        query: &str,
        etag: Option<&str>,
        most: u64,
    ) -> Result<Answer, FetchError> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(SKILLS.iter().filter(|part| !part.is_empty())).push(what);
        }
        url.set_query(Some(query).filter(|query| !query.is_empty()));
        let mut pauses = ExponentialBuilder::default()
            .with_min_delay(self.limits.pause)
            .with_max_delay(self.limits.longest_pause)
            .with_max_times(self.limits.retries)
            .with_jitter()
            .build();
        let began = Instant::now();
        loop {
            let error = match self.get_once(url.clone(), etag, most).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let asked = error.retry_after().unwrap_or_default();
            // A server that is slow every time is not waited for every time.
            let worth_it = error.passes() && asked <= self.limits.longest_pause && began.elapsed() < self.limits.total;
            let Some(pause) = pauses.next().filter(|_| worth_it) else { return Err(error) };
            let pause = pause.max(asked);
            tracing::debug!(%error, %url, ?pause, "asking the admin server again");
            tokio::time::sleep(pause).await;
        }
    }

    async fn get_once(&self, url: Url, etag: Option<&str>, most: u64) -> Result<Answer, FetchError> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = &self.token {
            headers.insert(AUTHORIZATION, token.clone());
        }
        if let Some(etag) = etag.and_then(|etag| HeaderValue::from_str(etag).ok()) {
            headers.insert(IF_NONE_MATCH, etag);
        }
        let response = self.http.get(url).headers(headers).send().await.map_err(failure)?;
        match response.status() {
            StatusCode::NOT_MODIFIED if etag.is_some() => Ok(Answer::NotModified),
            StatusCode::OK => self.body(response, most).await.map(Answer::Body),
            status => Err(FetchError::Status { status, retry_after: retry_after(response.headers()) }),
        }
    }

    async fn body(&self, mut response: Response, most: u64) -> Result<Body, FetchError> {
        if let Some(encoding) = response.headers().get(CONTENT_ENCODING).filter(|value| *value != "identity") {
            return Err(FetchError::Encoded(String::from_utf8_lossy(encoding.as_bytes()).into_owned()));
        }
        if response.content_length().is_some_and(|length| length > most) {
            return Err(FetchError::TooLarge(most));
        }
        let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok());
        let etag = etag.filter(|etag| etag.len() <= MAX_ETAG).map(ToOwned::to_owned);
        let (mut bytes, mut large) = (Vec::new(), None);
        while let Some(piece) = response.chunk().await.map_err(failure)? {
            if (bytes.len() + piece.len()) as u64 > most {
                return Err(FetchError::TooLarge(most));
            }
            if large.is_none() && bytes.len() + piece.len() > SMALL {
                // It is never closed.
                large = Arc::clone(&self.large).acquire_owned().await.ok();
            }
            bytes.extend_from_slice(&piece);
        }
        Ok(Body { bytes, etag, _large: large })
    }
}

/// The same server, or the same one by TLS.
fn redirect(attempt: Attempt<'_>) -> reqwest::redirect::Action {
    let Some(first) = attempt.previous().first() else { return attempt.stop() };
    let (from, to) = (first.clone(), attempt.url().clone());
    let same_host = from.host_str() == to.host_str();
    let same_port = from.scheme() == to.scheme() && from.port_or_known_default() == to.port_or_known_default();
    let upgraded = from.scheme() == "http" && to.scheme() == "https" && (from.port(), to.port()) == (None, None);
    if attempt.previous().len() > MAX_REDIRECTS {
        attempt.error("it redirects again and again")
    } else if same_host && (same_port || upgraded) {
        attempt.follow()
    } else {
        attempt.error(Elsewhere(to.origin().ascii_serialization()))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Elsewhere(String);

fn failure(error: reqwest::Error) -> FetchError {
    // The URL stands in every error, and says nothing that is not known.
    let error = error.without_url();
    let text = chain(&error);
    if error.is_redirect() {
        let mut source = std::error::Error::source(&error);
        while let Some(cause) = source {
            if let Some(Elsewhere(to)) = cause.downcast_ref() {
                return FetchError::Redirect(to.clone());
            }
            source = cause.source();
        }
        return FetchError::Redirect(text);
    }
    if error.is_timeout() { FetchError::Timeout(text) } else { FetchError::Transport(text) }
}

/// An error with its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut texts = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        texts.push(cause.to_string());
        source = cause.source();
    }
    texts.join(": ")
}
