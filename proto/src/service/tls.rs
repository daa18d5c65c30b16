//! Connections, plain or encrypted: certificates that are followed when they are rotated, handshakes that never keep
//! another waiting, and what a client's certificate says of it.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::callers::certificate_name;
use super::connection::Connection;
use super::rotated::{Content, FileError, Rotated};

/// A client that has not shaken hands by then is cut off.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at once; a connection beyond them is closed.
const MAX_HANDSHAKES: usize = 1024;

/// The files, PEM each.
#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    /// The server's chain, its own certificate first.
    pub(crate) cert: PathBuf,
    /// The key of its own certificate.
    pub(crate) key: PathBuf,
    /// Who signs the certificates of clients; without it, none is asked for.
    pub(crate) client_ca: Option<PathBuf>,
}

/// What the files are now.
#[derive(Debug)]
struct Current {
    config: Arc<ServerConfig>,
    not_after: Option<SystemTime>,
}

/// How a server shakes hands.
#[derive(Debug)]
pub(crate) struct Tls {
    current: Rotated<Current>,
}

impl Tls {
    /// Reads the files; from now on they are followed.
    pub(crate) fn open(files: TlsFiles) -> Result<Self, FileError> {
        let paths = [files.cert, files.key].into_iter().chain(files.client_ca).collect();
        let current = |contents: &[Content]| {
            Ok(Current { config: server_config(contents)?, not_after: contents.first().and_then(not_after) })
        };
        Ok(Self { current: Rotated::open("certificate", paths, current)? })
    }

    /// Until when the server's own certificate is good.
    pub(super) fn not_after(&self) -> Option<SystemTime> {
        self.current.current().not_after
    }
}

/// Whether a client shows a certificate is looked at call by call: health needs none.
fn server_config(contents: &[Content]) -> Result<Arc<ServerConfig>, FileError> {
    let [cert, key, client_ca @ ..] = contents else { return Err(FileError::content(&PathBuf::new(), "no file")) };
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| FileError::content(&cert.path, error))?;
    let builder = match client_ca {
        [] => builder.with_no_client_auth(),
        [ca, ..] => {
            let mut roots = RootCertStore::empty();
            for root in certificates(ca)? {
                roots.add(root).map_err(|error| FileError::content(&ca.path, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.allow_unauthenticated().build();
            builder.with_client_cert_verifier(verifier.map_err(|error| FileError::content(&ca.path, error))?)
        }
    };
    let private = PrivateKeyDer::from_pem_slice(&key.bytes).map_err(|error| {
        FileError::content(&key.path, format!("no private key can be read ({error}): write an unencrypted one in PEM"))
    })?;
    let mut config = builder.with_single_cert(certificates(cert)?, private).map_err(|error| {
        let what = format!("it is not the key of the first certificate in {} ({error})", cert.path.display());
        FileError::content(&key.path, what)
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn certificates(content: &Content) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&content.bytes).collect();
    let read = read.map_err(|error| FileError::content(&content.path, format!("it is not PEM: {error}")))?;
    if read.is_empty() {
        return Err(FileError::content(&content.path, "no certificate is in it: write one in PEM"));
    }
    Ok(read)
}

/// Until when the first certificate of a file is good.
pub(super) fn not_after(content: &Content) -> Option<SystemTime> {
    let first = certificates(content).ok()?.into_iter().next()?;
    Some(end(&x509_parser::parse_x509_certificate(&first).ok()?.1))
}

fn end(certificate: &X509Certificate<'_>) -> SystemTime {
    let seconds = u64::try_from(certificate.validity().not_after.timestamp()).unwrap_or_default();
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

/// What a client's certificate says of it. That its CA is trusted was checked in the handshake.
#[derive(Clone, Debug)]
pub(crate) struct Peer {
    names: Arc<[String]>,
    not_after: SystemTime,
}

impl Peer {
    /// The URI and DNS names, as they are compared.
    pub(crate) fn names(&self) -> &[String] {
        &self.names
    }

    /// A connection may last longer than the certificate that it began with.
    pub(crate) fn has_expired(&self) -> bool {
        self.not_after < SystemTime::now()
    }

    pub(super) fn of(stream: &TlsStream<TcpStream>) -> Option<Self> {
        let certificate = stream.get_ref().1.peer_certificates()?.first()?;
        let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
        let names = certificate.subject_alternative_name().ok().flatten().map_or_else(Vec::new, |extension| {
            let names = extension.value.general_names.iter().filter_map(|name| match name {
                GeneralName::URI(name) | GeneralName::DNSName(name) => Some(certificate_name(name)),
                _ => None,
            });
            names.collect()
        });
        Some(Self { names: names.into(), not_after: end(&certificate) })
    }
}

/// Connections that can be served, from connections that were accepted.
pub(crate) struct Connections<I> {
    accepted: I,
    tls: Option<Arc<Tls>>,
    handshakes: JoinSet<Option<Connection>>,
}

impl<I> Connections<I> {
    pub(crate) fn new(accepted: I, tls: Option<Arc<Tls>>) -> Self {
        Self { accepted, tls, handshakes: JoinSet::new() }
    }
}

impl<I: Stream<Item = io::Result<TcpStream>> + Unpin> Stream for Connections<I> {
    type Item = io::Result<Connection>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if !self.handshakes.is_empty()
                && let Poll::Ready(Some(shaken)) = self.handshakes.poll_join_next(context)
            {
                match shaken {
                    Ok(Some(connection)) => return Poll::Ready(Some(Ok(connection))),
                    Ok(None) => {}
                    Err(error) => tracing::error!(%error, "a handshake did not end"),
                }
                continue;
            }
            let stream = match std::task::ready!(Pin::new(&mut self.accepted).poll_next(context)) {
                None => return Poll::Ready(None),
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(stream)) => stream,
            };
            let Some(tls) = &self.tls else { return Poll::Ready(Some(Ok(Connection::plain(stream)))) };
            if self.handshakes.len() >= MAX_HANDSHAKES {
                tracing::warn!(most = MAX_HANDSHAKES, "a connection is closed: too many are shaking hands");
                continue;
            }
            let acceptor = TlsAcceptor::from(Arc::clone(&tls.current.current().config));
            self.handshakes.spawn(shake(acceptor, stream));
        }
    }
}

async fn shake(acceptor: TlsAcceptor, stream: TcpStream) -> Option<Connection> {
    let from = stream.peer_addr().ok();
    match timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(Connection::encrypted(stream)),
        Ok(Err(error)) => {
            tracing::info!(?from, %error, "a handshake failed");
            None
        }
        Err(_) => {
            tracing::info!(?from, limit = ?HANDSHAKE, "a handshake took too long");
            None
        }
    }
}
