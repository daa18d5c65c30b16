//! A service as its client reaches it: the address, the trust, and what the client shows of itself. Token, certificates
//! and CA are followed when their files are rotated.

use std::path::PathBuf;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use http::HeaderValue;
use tonic::Code;
use tonic::body::Body;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity, Uri};
use tower::{Service, ServiceExt as _};

use super::rotated::{Content, FileError, Rotated};
use super::span::{Kind, Span};
use super::token::Token;
use super::trace;

/// What a client shows, and whom it trusts. A path is `None` where the flag was not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DialOptions {
    /// A file that holds a token.
    pub token_file: Option<PathBuf>,
    /// Who signs the server's certificate, PEM.
    pub ca: Option<PathBuf>,
    /// The client's own chain, PEM.
    pub cert: Option<PathBuf>,
    /// The key of its own certificate, PEM.
    pub key: Option<PathBuf>,
}

/// Which of the options is at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialFlag {
    /// The address.
    Url,
    /// [`DialOptions::token_file`].
    TokenFile,
    /// [`DialOptions::ca`].
    Ca,
    /// [`DialOptions::cert`].
    Cert,
    /// [`DialOptions::key`].
    Key,
}

/// What is wrong with one of the options, and what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub struct DialFault {
    /// Which.
    pub flag: DialFlag,
    /// What.
    pub what: String,
}

/// Why nothing can be asked from a terminal, flag by flag.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FlagsError(String);

/// A service that can be reached: what a generated client is made over.
#[derive(Clone, Debug)]
pub struct Dialer {
    inner: Arc<Inner>,
    configure: fn(Endpoint) -> Endpoint,
    made: Arc<Mutex<Option<Made>>>,
}

/// The endpoint, and the channel that was made of it.
type Made = (Arc<Endpoint>, Channel);

#[derive(Debug)]
struct Inner {
    scheme: String,
    /// What its certificate has to name.
    host: String,
    options: DialOptions,
    target: Target,
    token: Option<Rotated<HeaderValue>>,
}

#[derive(Debug)]
enum Target {
    Plain(Arc<Endpoint>),
    Encrypted(Rotated<Endpoint>),
}

impl Dialer {
    /// Without encryption, and without an identity.
    #[must_use]
    pub fn plain(uri: Uri) -> Self {
        let target = Target::Plain(Arc::new(Endpoint::from(uri)));
        Self::new("http", "", &DialOptions::default(), target, None)
    }

    /// Reads the files; from now on they are followed.
    ///
    /// # Errors
    /// Every fault: a URL that is none, files that cannot be used, and options that do not go together.
    pub fn check(url: &str, options: &DialOptions) -> Result<Self, Vec<DialFault>> {
        Self::check_as(None, url, options)
    }

    /// As the flags of a terminal's client say it: `--token-file`, `--ca`, `--cert`, `--key`, and this one for the URL. An
    /// empty path is one that was not given, since an empty variable is one that is not set.
    ///
    /// # Errors
    /// Every fault, with its flag.
    pub fn of_flags(url_flag: &str, url: &str, options: DialOptions) -> Result<Self, FlagsError> {
        let given = |path: Option<PathBuf>| path.filter(|path| !path.as_os_str().is_empty());
        let DialOptions { token_file, ca, cert, key } = options;
        let options = DialOptions { token_file: given(token_file), ca: given(ca), cert: given(cert), key: given(key) };
        Self::check(url, &options).map_err(|faults| {
            let faults = faults.iter().map(|fault| {
                let flag = match fault.flag {
                    DialFlag::Url => url_flag,
                    DialFlag::TokenFile => "--token-file",
                    DialFlag::Ca => "--ca",
                    DialFlag::Cert => "--cert",
                    DialFlag::Key => "--key",
                };
                format!("{flag}: {}", fault.what)
            });
            FlagsError(faults.collect::<Vec<_>>().join("; "))
        })
    }

    /// The same; the certificate names this host, or that of the URL.
    fn check_as(host: Option<&str>, url: &str, options: &DialOptions) -> Result<Self, Vec<DialFault>> {
        let mut faults = Vec::new();
        let mut fault = |flag, what: String| faults.push(DialFault { flag, what });
        let token = options.token_file.as_ref().and_then(|path| {
            let opened = Rotated::open("token", vec![path.clone()], |contents| bearer(&contents[0]));
            opened.map_err(|error| fault(DialFlag::TokenFile, error.to_string())).ok()
        });
        let uri = url.parse::<Uri>().ok().filter(|uri| uri.authority().is_some());
        let scheme = uri.as_ref().and_then(Uri::scheme_str).filter(|scheme| matches!(*scheme, "http" | "https"));
        let (Some(uri), Some(scheme)) = (&uri, scheme) else {
            let what = format!("{url:?} is no URL: write http://HOST:PORT, or https://HOST:PORT with the CA beside it");
            fault(DialFlag::Url, what);
            return Err(faults);
        };
        let host = host.or(uri.host()).unwrap_or_default().to_owned();
        let dialer = |target, token| Self::new(scheme, &host, options, target, token);
        let endpoint = Endpoint::from(uri.clone());
        if scheme == "http" {
            for (flag, path) in
                [(DialFlag::Ca, &options.ca), (DialFlag::Cert, &options.cert), (DialFlag::Key, &options.key)]
            {
                if path.is_some() {
                    fault(flag, format!("{url} is not encrypted: write https://, or leave this out"));
                }
            }
            return if faults.is_empty() { Ok(dialer(Target::Plain(Arc::new(endpoint)), token)) } else { Err(faults) };
        }
        let Some(ca) = &options.ca else {
            fault(DialFlag::Ca, format!("{url} is encrypted: give the file of the CA that signs its certificate"));
            return Err(faults);
        };
        let own = match (&options.cert, &options.key) {
            (Some(cert), Some(key)) => vec![cert.clone(), key.clone()],
            (None, None) => Vec::new(),
            (Some(_), None) => {
                fault(DialFlag::Key, "a certificate is shown with its key: give the file of the key too".to_owned());
                return Err(faults);
            }
            (None, Some(_)) => {
                fault(DialFlag::Cert, "a key goes with its certificate: give the file of the chain too".to_owned());
                return Err(faults);
            }
        };
        let paths = std::iter::once(ca.clone()).chain(own).collect();
        let load = {
            let host = host.clone();
            move |contents: &[Content]| encrypted(&endpoint, &host, contents)
        };
        match Rotated::open("client certificate", paths, load) {
            Ok(rotated) if faults.is_empty() => Ok(dialer(Target::Encrypted(rotated), token)),
            Ok(_) => Err(faults),
            Err(error) => {
                faults.push(DialFault { flag: DialFlag::Ca, what: error.to_string() });
                Err(faults)
            }
        }
    }

    fn new(
        scheme: &str,
        host: &str,
        options: &DialOptions,
        target: Target,
        token: Option<Rotated<HeaderValue>>,
    ) -> Self {
        let (scheme, host, options) = (scheme.to_owned(), host.to_owned(), options.clone());
        let inner = Inner { scheme, host, options, target, token };
        Self { inner: Arc::new(inner), configure: std::convert::identity, made: Arc::default() }
    }

    /// The same with time limits and windows.
    #[must_use]
    pub fn configured(self, configure: fn(Endpoint) -> Endpoint) -> Self {
        Self { configure, made: Arc::default(), ..self }
    }

    /// Another of the same service, at this host:port, that is trusted and shown the same. Its certificate is for the name
    /// of the first: one of many behind a name has none for its own address.
    ///
    /// # Errors
    /// What is no host and port, or files that have become unusable.
    pub fn elsewhere(&self, authority: &str) -> Result<Self, Vec<DialFault>> {
        let url = format!("{}://{authority}", self.inner.scheme);
        Ok(Self::check_as(Some(&self.inner.host), &url, &self.inner.options)?.configured(self.configure))
    }

    /// The file of the certificate that is shown, if one is.
    pub(super) fn certificate(&self) -> Option<PathBuf> {
        self.inner.options.cert.clone()
    }

    /// A channel, connected to when it is first used and again whenever the connection was lost. A new one when the
    /// certificates were rotated; what goes on over the old one is not disturbed. Must be called within a runtime.
    fn channel(&self) -> Channel {
        let endpoint = match &self.inner.target {
            Target::Plain(endpoint) => Arc::clone(endpoint),
            Target::Encrypted(rotated) => rotated.current(),
        };
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        match &*made {
            Some((of, channel)) if Arc::ptr_eq(of, &endpoint) => channel.clone(),
            _ => {
                let channel = (self.configure)(Endpoint::clone(&endpoint)).connect_lazy();
                *made = Some((endpoint, channel.clone()));
                channel
            }
        }
    }
}

/// The transport of a generated client: each call goes over the current channel, shows the current token, and belongs to
/// the trace of what it is made for.
impl Service<http::Request<Body>> for Dialer {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(token) = &self.inner.token {
            request.headers_mut().insert(http::header::AUTHORIZATION, HeaderValue::clone(&token.current()));
        }
        let Some(current) = trace::current() else { return Box::pin(self.channel().oneshot(request)) };
        let context = current.child();
        context.put(request.headers_mut());
        let mut span = Span::of_call(request.uri().path(), Kind::Client, &context, Some(&current));
        let answer = self.channel().oneshot(request);
        Box::pin(async move {
            let answer = answer.await;
            // What is refused is said at once, as a rule; what is not is taken for done when its answer begins.
            let code = answer.as_ref().map(|answer| answer.headers().get("grpc-status"));
            span.answered(match code {
                Ok(code) => code.map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes())),
                Err(_) => Code::Unavailable,
            });
            answer
        })
    }
}

fn bearer(content: &Content) -> Result<HeaderValue, FileError> {
    let token = Token::of_file(content)?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
        .map_err(|_| FileError::content(&content.path, "the token cannot be sent in a header"))?;
    // It is not to be kept in tables of header compression, nor shown in logs.
    value.set_sensitive(true);
    Ok(value)
}

fn encrypted(endpoint: &Endpoint, host: &str, contents: &[Content]) -> Result<Endpoint, FileError> {
    let [ca, own @ ..] = contents else { return Err(FileError::content(&PathBuf::new(), "no file")) };
    let mut tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(&ca.bytes));
    // In a URL an address of IPv6 is in brackets, in a certificate it is not.
    tls = tls.domain_name(host.trim_start_matches('[').trim_end_matches(']'));
    if let [cert, key] = own {
        tls = tls.identity(Identity::from_pem(&cert.bytes, &key.bytes));
    }
    endpoint.clone().tls_config(tls).map_err(|error| {
        let paths: Vec<_> = contents.iter().map(|content| content.path.display().to_string()).collect();
        let cause = std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string);
        FileError::content(&ca.path, format!("{} cannot be used together: {cause}", paths.join(", ")))
    })
}
