//! An admin server as it is configured, and why it gives no answer.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{StatusCode, Url};

/// Longest file with a token or with certificates.
const MAX_FILE: u64 = 1 << 20;

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

impl Server {
    /// Says in the log what ought to be encrypted and is not.
    pub(super) fn warn(&self) {
        let host = self.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let loopback = host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
        if self.url.scheme() == "http" && !loopback {
            tracing::warn!(
                url = %self.url,
                "whoever is on the way to the admin server reads its token and can change its skills: write https://"
            );
        }
    }
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

/// A number of seconds or a date.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

pub(super) fn token(path: &Path) -> Result<HeaderValue, FetchError> {
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

pub(super) fn read_small(path: &Path) -> Result<Vec<u8>, String> {
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
