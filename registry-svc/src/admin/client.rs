//! The HTTP client of one admin server: conditional requests, bounded bodies, retries of what can pass. Shows its token to
//! this server alone. Knows no protocol and no disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use backon::{BackoffBuilder as _, ExponentialBuilder};
use reqwest::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, RETRY_AFTER,
};
use reqwest::redirect::{Attempt, Policy};
use reqwest::{Certificate, Client, Response, StatusCode, Url};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::protocol::SKILLS;

/// Longest file with a token or with certificates.
const MAX_FILE: u64 = 1 << 20;
const MAX_REDIRECTS: usize = 5;
/// More of a body is read by one at a time.
const SMALL: usize = 1 << 20;

/// How an admin server is asked.
#[derive(Clone, Debug)]
pub struct Server {
    /// Where its `/api/public/skills` is below.
    pub url: Url,
    /// A file with the token that it is shown; read again for every sync.
    pub token_file: Option<PathBuf>,
    /// Certificates that are trusted instead of the system's, PEM.
    pub ca: Option<PathBuf>,
    /// Times and retries.
    pub limits: Limits,
}

/// Times and retries of requests.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// To have a connection.
    pub connect: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
    /// For a whole answer.
    pub total: Duration,
    /// How often a request is made again.
    pub retries: usize,
    /// The first pause before that; each further one is twice as long, with jitter.
    pub pause: Duration,
    /// Longest pause, also where the server asks for one.
    pub longest_pause: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            total: Duration::from_secs(300),
            retries: 4,
            pause: Duration::from_millis(250),
            longest_pause: Duration::from_secs(30),
        }
    }
}

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

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// No connection, or one that broke.
    #[error("the admin server does not answer: {0}")]
    Transport(String),
    /// Too slow.
    #[error("the admin server did not answer in time ({0})")]
    Timeout(String),
    /// Another status than is useful.
    #[error("the admin server answers with {status}{}", hint(*status))]
    Status {
        /// The status.
        status: StatusCode,
        /// When the server wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// Larger than is read.
    #[error("the answer has more than {0} bytes, which is the most that is read")]
    TooLarge(u64),
    /// Compressed, which nobody asked for.
    #[error("the answer has the content encoding {0:?}, which was not asked for: let the server send it plain")]
    Encoded(String),
    /// To somewhere else.
    #[error(
        "the admin server redirects to {0}, which is another server or not encrypted: give its URL to --admin-url if it is trusted"
    )]
    Redirect(String),
    /// The token's file.
    #[error("the token file {} cannot be used: {what}", path.display())]
    Token {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The certificates' file, or TLS itself.
    #[error("the client cannot be made: {0}")]
    Client(String),
}

fn hint(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => ": give a token that it knows with --admin-token-file",
        StatusCode::NOT_FOUND => ": there is nothing at this address",
        _ => "",
    }
}

impl FetchError {
    /// Whether the same request may be answered later.
    pub(super) fn passes(&self) -> bool {
        match self {
            Self::Transport(_) | Self::Timeout(_) => true,
            Self::Status { status, .. } => status.is_server_error() || matches!(status.as_u16(), 408 | 425 | 429),
            _ => false,
        }
    }

    /// How long the server asks to be left alone.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
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
        loop {
            let error = match self.get_once(url.clone(), etag, most).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let asked = error.retry_after().unwrap_or_default();
            let Some(pause) = pauses.next().filter(|_| error.passes() && asked <= self.limits.longest_pause) else {
                return Err(error);
            };
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
        let etag = response.headers().get(ETAG).and_then(|etag| etag.to_str().ok()).map(ToOwned::to_owned);
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

/// A number of seconds or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

fn token(path: &Path) -> Result<HeaderValue, FetchError> {
    let failed = |what: String| FetchError::Token { path: path.to_owned(), what };
    let bytes = read_small(path).map_err(failed)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| failed("it is not a text".to_owned()))?.trim();
    if text.is_empty() {
        return Err(failed("it is empty: write the token into it".to_owned()));
    }
    let value = HeaderValue::from_str(&format!("Bearer {text}"));
    let mut value = value.map_err(|_| failed("it has line breaks or other characters no token has".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn read_small(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read as _;
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    file.take(MAX_FILE + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MAX_FILE { Err("it is too large".to_owned()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_long_to_wait() {
        let after = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_str(text).unwrap());
            retry_after(&headers)
        };
        assert_eq!(after(" 7 "), Some(Duration::from_secs(7)));
        assert_eq!(after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!((after("-1"), after("soon")), (None, None));
        let later = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(100));
        assert!(after(&later).is_some_and(|wait| (90..=100).contains(&wait.as_secs())));
    }

    #[test]
    fn what_can_pass() {
        let status =
            |code| FetchError::Status { status: StatusCode::from_u16(code).unwrap(), retry_after: None }.passes();
        assert!([408, 429, 500, 502, 503, 504].into_iter().all(status));
        assert!(![301, 400, 401, 403, 404, 410].into_iter().any(status));
        assert!(!FetchError::TooLarge(1).passes());
    }
}
