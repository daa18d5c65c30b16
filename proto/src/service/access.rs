//! Who may get at a service at all: the files that say so, and the layer around every call that finds out who called and
//! tells the service. What a caller may do once it is known, each service asks [`Caller`].

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::{fmt, future};

use http::{Request, Response, header};
use tonic::Status;
use tonic::body::Body;

use super::caller::{Caller, unknown};
use super::callers::Callers;
use super::certificates::Certificates;
use super::dial::Dialer;
use super::error::Refusal;
use super::rotated::{Content, FileError, Rotated};
use super::serve::is_loopback;
use super::tls::{Peer, Tls, TlsFiles};
use super::token::{Tokens, bearer};

/// What anybody may call: probes and tools know no token. They tell nothing that is not in the public API.
const OPEN: [&str; 3] =
    ["grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"];

/// The files and the flag that say who may call. A path is `None` where the flag was not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessOptions {
    /// `--tokens-file`.
    pub tokens_file: Option<PathBuf>,
    /// `--callers-file`.
    pub callers_file: Option<PathBuf>,
    /// `--tls-cert`.
    pub tls_cert: Option<PathBuf>,
    /// `--tls-key`.
    pub tls_key: Option<PathBuf>,
    /// `--client-ca`.
    pub client_ca: Option<PathBuf>,
    /// `--insecure`.
    pub insecure: bool,
}

/// What is wrong with one of the flags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessFault {
    /// The flag, as in `--tokens-file`.
    pub flag: &'static str,
    /// What is wrong with it, and what to do.
    pub what: String,
}

/// Who may call.
#[derive(Clone, Debug)]
pub struct Access {
    identities: Option<Arc<Identities>>,
    tls: Option<Arc<Tls>>,
}

#[derive(Debug)]
struct Identities {
    tokens: Option<Rotated<Tokens>>,
    callers: Rotated<Callers>,
}

impl Access {
    /// Whoever reaches the listener, without an identity.
    #[must_use]
    pub fn open() -> Self {
        Self { identities: None, tls: None }
    }

    /// Reads the files; from now on they are followed.
    ///
    /// # Errors
    /// Every fault: files that cannot be used, flags that do not go together, and an address that others reach where
    /// nobody could tell who calls.
    pub fn check(options: &AccessOptions, listen: Option<&SocketAddr>) -> Result<Self, Vec<AccessFault>> {
        let mut faults = Vec::new();
        let tokens = options.tokens_file.as_ref().and_then(|path| {
            keep(&mut faults, "--tokens-file", Rotated::open("tokens file", vec![path.clone()], one(Tokens::of_file)))
        });
        let callers = options.callers_file.as_ref().and_then(|path| {
            keep(
                &mut faults,
                "--callers-file",
                Rotated::open("callers file", vec![path.clone()], one(Callers::of_file)),
            )
        });
        let with_identities = options.tokens_file.is_some() || options.client_ca.is_some();
        let mut fault = |flag, what: &str| faults.push(AccessFault { flag, what: what.to_owned() });
        match (with_identities, &options.callers_file) {
            (true, None) => fault(
                "--callers-file",
                "identities without roles can do nothing: give the file that says what each caller may do",
            ),
            (false, Some(_)) => fault(
                "--callers-file",
                "nobody could show to be one of these callers: give --tokens-file, --client-ca or both too",
            ),
            _ => {}
        }
        let tls = match (&options.tls_cert, &options.tls_key) {
            (Some(cert), Some(key)) => {
                let files = TlsFiles { cert: cert.clone(), key: key.clone(), client_ca: options.client_ca.clone() };
                keep(&mut faults, "--tls-cert", Tls::open(files))
            }
            (Some(_), None) => {
                fault("--tls-key", "a certificate is served with its key: give the file of the key too");
                None
            }
            (None, Some(_)) => {
                fault("--tls-cert", "a key is served with its certificate: give the file of the chain too");
                None
            }
            (None, None) => {
                if options.client_ca.is_some() {
                    fault("--client-ca", "client certificates come with TLS: give --tls-cert and --tls-key too");
                }
                None
            }
        };
        if let Some(address) = listen.filter(|address| !is_loopback(address))
            && !with_identities
            && !options.insecure
        {
            faults.push(AccessFault {
                flag: "--listen",
                what: format!(
                    "{address} is reached from other hosts, and nobody could tell who calls: give --tokens-file or \
                     --client-ca with --callers-file, or a loopback address such as 127.0.0.1:{}; --insecure serves \
                     everybody who reaches it",
                    address.port()
                ),
            });
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        let identities = callers.map(|callers| Arc::new(Identities { tokens, callers }));
        Ok(Self { identities, tls: tls.map(Arc::new) })
    }

    /// How connections are encrypted, if they are.
    pub(crate) fn tls(&self) -> Option<Arc<Tls>> {
        self.tls.clone()
    }

    /// The certificates of the service, for metrics: its own as a server, and what it shows to another.
    #[must_use]
    pub fn certificates(&self, shown: Option<&Dialer>) -> Certificates {
        Certificates::new(self.tls.clone(), shown.and_then(Dialer::certificate))
    }

    /// Whether connections are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Says in the log who may call, where that is worth a look.
    pub fn log(&self, address: &SocketAddr) {
        let known = self.identities.is_some();
        match (known, self.tls.is_some(), is_loopback(address)) {
            (true, false, false) => tracing::warn!(
                %address, "tokens are read by whoever sees the traffic: give --tls-cert and --tls-key, or encrypt around it"
            ),
            (false, _, false) => tracing::warn!(
                %address, "whoever reaches this address can read everything and run safe skills (--insecure)"
            ),
            (false, _, true) => tracing::info!(
                "callers have no identity: whatever runs on this host can read and run safe skills; --tokens-file changes that"
            ),
            (true, ..) => {}
        }
    }

    /// Who calls.
    fn caller<B>(&self, request: &Request<B>) -> Result<Caller, Refusal> {
        let Some(identities) = &self.identities else { return Ok(Caller::anonymous()) };
        identities.of(
            request.headers().get(header::AUTHORIZATION),
            request.extensions().get::<Option<Peer>>().and_then(Option::as_ref),
        )
    }
}

impl Identities {
    /// A token counts before a certificate: a proxy has a certificate, and who speaks through it a token. A token that is
    /// not known is never passed over for the certificate.
    fn of(&self, authorization: Option<&http::HeaderValue>, peer: Option<&Peer>) -> Result<Caller, Refusal> {
        let callers = self.callers.current();
        if let Some(value) = authorization {
            let tokens = self.tokens.as_ref().ok_or_else(|| unknown("this service takes no tokens"))?.current();
            let token = bearer(value).ok_or_else(|| unknown("the authorization is no bearer token of this service"))?;
            let identity = tokens.identity(&token).ok_or_else(|| unknown("the token is not known here (any more)"))?;
            let known = callers.get(identity);
            let known = known.ok_or_else(|| unknown("the callers file does not name the identity of the token"))?;
            return Ok(Caller::known(known.clone()));
        }
        match peer {
            Some(peer) if peer.has_expired() => Err(unknown("the client certificate has expired")),
            Some(peer) => {
                callers.by_certificate(peer.names()).map(|known| Caller::known(known.clone())).ok_or_else(|| {
                    let names = peer.names().join(", ");
                    unknown(&format!("the callers file gives no one identity to the certificate's names ({names})"))
                })
            }
            None => Err(unknown("this service serves known callers, and the call showed no identity")),
        }
    }
}

fn one<T>(load: fn(&Content) -> Result<T, FileError>) -> impl Fn(&[Content]) -> Result<T, FileError> {
    move |contents| load(&contents[0])
}

fn keep<T>(faults: &mut Vec<AccessFault>, flag: &'static str, opened: Result<T, FileError>) -> Option<T> {
    opened.map_err(|error| faults.push(AccessFault { flag, what: error.to_string() })).ok()
}

/// Puts [`Access`] around services.
#[derive(Clone, Debug)]
pub struct IdentifyLayer(Access);

impl IdentifyLayer {
    /// Of this access.
    #[must_use]
    pub fn new(access: Access) -> Self {
        Self(access)
    }
}

impl<S> tower::Layer<S> for IdentifyLayer {
    type Service = Identify<S>;

    fn layer(&self, inner: S) -> Identify<S> {
        Identify { inner, access: self.0.clone() }
    }
}

/// Gives each call its [`Caller`], and answers those of unknown ones itself.
#[derive(Clone)]
pub struct Identify<S> {
    inner: S,
    access: Access,
}

impl<S> fmt::Debug for Identify<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identify").field("access", &self.access).finish_non_exhaustive()
    }
}

impl<S, B> tower::Service<Request<B>> for Identify<S>
where
    S: tower::Service<Request<B>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        // What a client could have put there would be no identity.
        request.extensions_mut().remove::<Caller>();
        match self.access.caller(&request) {
            Ok(caller) => {
                request.extensions_mut().insert(caller);
            }
            Err(_) if is_open(request.uri().path()) => {}
            Err(refusal) => {
                tracing::info!(method = request.uri().path(), reason = refusal.reason().as_str(), "call refused");
                return Box::pin(future::ready(Ok(Status::from(refusal).into_http())));
            }
        }
        Box::pin(self.inner.call(request))
    }
}

fn is_open(path: &str) -> bool {
    path.strip_prefix('/').and_then(|path| path.split_once('/')).is_some_and(|(service, _)| OPEN.contains(&service))
}
