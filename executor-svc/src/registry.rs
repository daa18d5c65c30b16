//! The client of the registry: what it says about catalogs, packages and approvals, as values. Wire types of the registry
//! stop here. It keeps nothing and decides nothing; whoever calls decides when to call again.

mod state;

use std::error::Error as _;
use std::time::{Duration, Instant, SystemTime};

use prost::Message as _;
use skillyard::pb::executor::v1 as executor;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::pb::registry::v1::history_service_client::HistoryServiceClient;
use skillyard::pb::registry::v1::package_service_client::PackageServiceClient;
use skillyard::service::dial::Dialer;
use skillyard::service::error::Reason;
use skillyard::watch::Update as Message;
use skillyard::{Digest, PackageFile};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Endpoint, Uri};
use tonic::{Code, GrpcMethod, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt as _;

pub use self::state::{Sent, State};

/// To open a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A peer that answers no ping is gone after both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// A watch says something every 15 s: three times that without a word, and nobody is there.
const SILENCE: Duration = Duration::from_secs(45);
/// For the word on an approval, all attempts together: a slot is held meanwhile.
const CONSUMED_WITHIN: Duration = Duration::from_secs(3);
/// No attempt to consume an approval begins later than this: long enough for a connection that was just lost, and short
/// enough for a caller to be told at once that the registry is away.
const CONSUME_AGAIN_WITHIN: Duration = Duration::from_millis(500);
/// Between two such attempts.
const CONSUME_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// For the word on a batch of records: the registry waits some seconds for its database.
const APPENDED_WITHIN: Duration = Duration::from_secs(30);
/// Receive windows: a package is fetched at the speed of the line, and little is buffered.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// One message. A registry cuts a state at a few MiB, but never within a skill.
const MAX_MESSAGE_BYTES: usize = 16 << 20;
/// One piece of a package: 256 KiB by the contract.
const MAX_PIECE_BYTES: usize = 1 << 20;
/// A whole state, all its messages together.
const MAX_STATE_BYTES: usize = 256 << 20;

/// A registry, connected to when it is first asked and again whenever the connection was lost.
#[derive(Clone, Debug)]
pub struct Registry {
    dialer: Dialer,
    client: PackageServiceClient<Dialer>,
    approvals: ApprovalServiceClient<Dialer>,
    history: HistoryServiceClient<Dialer>,
    silence: Duration,
}

/// How a registry is connected to.
fn endpoint(endpoint: Endpoint) -> Endpoint {
    endpoint
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .tcp_nodelay(true)
}

/// What an approval is to be used up for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApprovalUse {
    /// The approval.
    pub id: String,
    /// The run that uses it.
    pub run_id: String,
    /// On whose behalf; empty for no agent.
    pub agent: String,
    /// The skill.
    pub skill: String,
    /// The package.
    pub digest: Digest,
    /// Of the argument bytes.
    pub args_sha256: Digest,
    /// The journal that remembers the run.
    pub journal_id: String,
}

impl Registry {
    /// The registry at an `http://host:port`, which is shown no identity. Does not connect yet.
    #[must_use]
    pub fn new(uri: Uri) -> Self {
        Self::over(Dialer::plain(uri))
    }

    /// A registry, and what is shown to it. Does not connect yet.
    #[must_use]
    pub fn over(dialer: Dialer) -> Self {
        let dialer = dialer.configured(endpoint);
        let approvals = ApprovalServiceClient::new(dialer.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let history = HistoryServiceClient::new(dialer.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let client = PackageServiceClient::new(dialer.clone());
        Self { dialer, client, approvals, history, silence: SILENCE }
    }

    /// Takes a stream for dead after this time without a message, instead of 45 s.
    #[must_use]
    pub fn with_silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Asks for the catalog and its changes, from this state on, or from the beginning. Where it is the current one, the
    /// first update is [`Update::Confirmed`].
    ///
    /// # Errors
    /// [`RegistryError`]: the registry cannot be reached, refuses, or is silent.
    pub async fn watch(&self, from: Option<&State>) -> Result<Watch, RegistryError> {
        let mut request = Request::new(from.map(State::request).unwrap_or_default());
        request.extensions_mut().insert(GrpcMethod::new("skillyard.registry.v1.PackageService", "WatchCatalog"));
        // The generated client would decode the skills, and lose of them what this version does not know.
        let mut client = Grpc::new(self.dialer.clone()).max_decoding_message_size(MAX_MESSAGE_BYTES);
        let path = PathAndQuery::from_static("/skillyard.registry.v1.PackageService/WatchCatalog");
        let codec: ProstCodec<pb::WatchCatalogRequest, Message> = ProstCodec::default();
        let stream = within(self.silence, client.server_streaming(request, path, codec)).await?.into_inner();
        Ok(Watch { stream, silence: self.silence, parts: None, bytes: 0 })
    }

    /// Asks for a package.
    ///
    /// # Errors
    /// [`RegistryError`]: the registry cannot be reached, refuses, or is silent.
    pub async fn fetch(&self, digest: &Digest) -> Result<Fetch, RegistryError> {
        let request = pb::FetchPackageRequest { digest: digest.to_string() };
        let mut client = self.client.clone().max_decoding_message_size(MAX_PIECE_BYTES);
        let stream = within(self.silence, client.fetch_package(request)).await?.into_inner();
        Ok(Fetch { stream, silence: self.silence })
    }

    /// Uses an approval up for one run on this executor, and says when the approval was asked for. The same run in the same
    /// journal gets the same answer again, so a call that broke off is made again, for half a second; after 3 s there is an answer or an
    /// error.
    ///
    /// # Errors
    /// [`RegistryError`]: the registry cannot be reached, refuses, is silent, or answers with another approval.
    pub async fn consume_approval(&self, what: &ApprovalUse) -> Result<SystemTime, RegistryError> {
        let request = pb::ConsumeApprovalRequest {
            id: what.id.clone(),
            run_id: what.run_id.clone(),
            agent: what.agent.clone(),
            skill: what.skill.clone(),
            digest: what.digest.to_string(),
            args_sha256: what.args_sha256.to_string(),
            journal_id: what.journal_id.clone(),
        };
        let begun = Instant::now();
        loop {
            let left = CONSUMED_WITHIN.saturating_sub(begun.elapsed());
            let mut client = self.approvals.clone();
            let error = match within(left, client.consume_approval(request.clone())).await {
                Ok(answer) => return consumed(what, answer.into_inner().approval),
                Err(error) => error,
            };
            if !error.may_pass() || begun.elapsed() + CONSUME_AGAIN_AFTER > CONSUME_AGAIN_WITHIN {
                return Err(error);
            }
            tokio::time::sleep(CONSUME_AGAIN_AFTER).await;
        }
    }
}

/// Records of a journal, in order, as they are handed in.
#[derive(Clone, Debug, Default)]
pub struct Batch(pb::AppendRunsRequest);

/// A record that the registry can never store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejected {
    /// The run.
    pub run_id: String,
    /// What is wrong with its record.
    pub reason: String,
}

impl Batch {
    /// Of a journal; it ends at this place in it.
    #[must_use]
    pub fn new(executor: &str, journal_id: &str, cursor: u64) -> Self {
        let (executor, journal_id) = (executor.to_owned(), journal_id.to_owned());
        Self(pb::AppendRunsRequest { executor, journal_id, cursor, records: Vec::new() })
    }

    /// Adds a run that has ended.
    pub fn push(&mut self, run: executor::Run, stderr: String) {
        self.0.records.push(pb::RunRecord { run: Some(run), stderr, appended_by: String::new() });
    }

    /// How large it is.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.encoded_len()
    }
}

impl Registry {
    /// Hands in records, and says which of them can never be stored. All others are stored, once, however often they are
    /// handed in.
    ///
    /// # Errors
    /// [`RegistryError`]: nothing is known of any of them.
    pub async fn append(&self, batch: Batch) -> Result<Vec<Rejected>, RegistryError> {
        let mut client = self.history.clone();
        let answer = within(APPENDED_WITHIN, client.append_runs(batch.0)).await?.into_inner();
        match answer.outcome() {
            pb::AppendOutcome::Stored | pb::AppendOutcome::Permanent => {}
            pb::AppendOutcome::Unspecified => return Err(RegistryError::NoOutcome),
        }
        let rejected = answer.rejected.into_iter();
        Ok(rejected.map(|pb::RejectedRecord { run_id, reason }| Rejected { run_id, reason }).collect())
    }
}

/// An answer that is not about what was asked is no word to start a run on.
fn consumed(what: &ApprovalUse, answer: Option<pb::Approval>) -> Result<SystemTime, RegistryError> {
    let approval = answer.ok_or(RegistryError::Approval("no approval"))?;
    let asked = (what.id.as_str(), what.run_id.as_str(), what.digest.to_string(), what.args_sha256.to_string());
    if approval.state() != pb::ApprovalState::Consumed {
        return Err(RegistryError::Approval("an approval that is not consumed"));
    }
    if asked != (approval.id.as_str(), approval.run_id.as_str(), approval.digest, approval.args_sha256)
        || what.skill != approval.skill
    {
        return Err(RegistryError::Approval("an approval for another run"));
    }
    let created_at = approval.created_at.and_then(|at| SystemTime::try_from(at).ok());
    created_at.ok_or(RegistryError::Approval("an approval without the moment that it was asked for"))
}

/// What the registry says of its catalog.
#[derive(Debug)]
pub enum Update {
    /// This version is still the one.
    Confirmed(String),
    /// A whole state, or a change of one.
    Sent(Sent),
}

/// A catalog being watched.
#[derive(Debug)]
pub struct Watch {
    stream: Streaming<Message>,
    silence: Duration,
    /// The messages of a state or a change that is not complete yet.
    parts: Option<Message>,
    bytes: usize,
}

impl Watch {
    /// The next update; `None` when the registry ended the stream. Nothing is lost when the future is dropped.
    ///
    /// # Errors
    /// [`RegistryError`]; the watch is over then.
    pub async fn next(&mut self) -> Result<Option<Update>, RegistryError> {
        loop {
            let Some(message) = within(self.silence, self.stream.message()).await? else {
                return if self.parts.is_some() { Err(RegistryError::CutOff) } else { Ok(None) };
            };
            if let Some(update) = self.take(message)? {
                return Ok(Some(update));
            }
        }
    }

    fn take(&mut self, message: Message) -> Result<Option<Update>, RegistryError> {
        self.bytes += message.encoded_len();
        if self.bytes > MAX_STATE_BYTES {
            return Err(RegistryError::TooLarge(MAX_STATE_BYTES));
        }
        let more = message.more;
        let sent = match self.parts.take() {
            None => message,
            Some(parts) if parts.catalog_version != message.catalog_version || parts.full != message.full => {
                return Err(RegistryError::Mixed);
            }
            Some(mut parts) => {
                parts.changed.extend(message.changed);
                parts.removed.extend(message.removed);
                match (&mut parts.agents, message.agents) {
                    (Some(agents), Some(further)) => agents.agents.extend(further.agents),
                    (agents @ None, further) => *agents = further,
                    (Some(_), None) => {}
                }
                Message { state_sha256: message.state_sha256, ..parts }
            }
        };
        if more {
            self.parts = Some(sent);
            return Ok(None);
        }
        self.bytes = 0;
        if !sent.full && sent.changed.is_empty() && sent.removed.is_empty() && sent.agents.is_none() {
            return Ok(Some(Update::Confirmed(sent.catalog_version)));
        }
        Sent::new(Message { more: false, ..sent }).map(|sent| Some(Update::Sent(sent)))
    }
}

/// A package being fetched.
#[derive(Debug)]
pub struct Fetch {
    stream: Streaming<pb::FetchPackageResponse>,
    silence: Duration,
}

/// A piece of a package.
#[derive(Debug)]
pub enum Piece {
    /// Begins a file.
    File(PackageFile),
    /// Bytes of the file last begun.
    Data(Vec<u8>),
}

impl Fetch {
    /// The next piece; `None` at the end. Whether the package is complete is for the reader to find.
    ///
    /// # Errors
    /// [`RegistryError`]; the fetch is over then.
    pub async fn next(&mut self) -> Result<Option<Piece>, RegistryError> {
        loop {
            let Some(message) = within(self.silence, self.stream.message()).await? else { return Ok(None) };
            match message.part {
                Some(pb::fetch_package_response::Part::Data(bytes)) => return Ok(Some(Piece::Data(bytes))),
                Some(pb::fetch_package_response::Part::File(header)) => {
                    return file(&header).map(Piece::File).map(Some);
                }
                // A part that this version does not know.
                None => {}
            }
        }
    }
}

fn file(header: &pb::FileHeader) -> Result<PackageFile, RegistryError> {
    let path = header.path.parse().map_err(RegistryError::Path)?;
    let sha256 = header.sha256.parse().map_err(RegistryError::Digest)?;
    Ok(PackageFile { path, size: header.size, executable: header.executable, sha256 })
}

async fn within<T>(limit: Duration, call: impl Future<Output = Result<T, Status>>) -> Result<T, RegistryError> {
    match tokio::time::timeout(limit, call).await {
        Ok(result) => result.map_err(RegistryError::from),
        Err(_) => Err(RegistryError::Silent(limit)),
    }
}

/// Why the registry could not be asked, or its answer not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RegistryError {
    /// It refused, or could not be reached.
    #[error("{message} ({})", if reason.is_empty() { format!("{code:?}") } else { reason.clone() })]
    Call {
        /// The gRPC code.
        code: Code,
        /// `ErrorInfo.reason`; empty where the error is not ours.
        reason: String,
        /// The message, with its causes.
        message: String,
    },
    /// It said nothing for this long.
    #[error("the registry said nothing for {0:?}")]
    Silent(Duration),
    /// The stream ended within a state.
    #[error("the registry ended the stream within a state")]
    CutOff,
    /// A change came where a whole state was expected.
    #[error("the registry sent a change of a state instead of the whole")]
    Baseless,
    /// A change that cannot be checked.
    #[error("the registry sent a change of a state, and not what the state is after it")]
    Unchecked,
    /// What came does not lead to what was announced.
    #[error("what the registry sent does not make the state that it announced: the whole is asked for")]
    Other,
    /// Messages of one state had two versions.
    #[error("the registry sent two versions within one state")]
    Mixed,
    /// A state without a version.
    #[error("the registry sent a state without a version")]
    NoVersion,
    /// A state without agents.
    #[error("the registry sent a state without its agents")]
    NoAgents,
    /// Bytes that are no state.
    #[error("the bytes are no catalog")]
    NoState,
    /// A state over the limit.
    #[error("the registry sent a state of more than {0} bytes")]
    TooLarge(usize),
    /// The answer to a use of an approval is of no use.
    #[error("the registry answered with {0}")]
    Approval(&'static str),
    /// The answer does not say what became of records.
    #[error("the registry does not say what became of records: is it newer than this executor?")]
    NoOutcome,
    /// A file's path is none.
    #[error("the registry sent a package with a bad path: {0}")]
    Path(skillyard::package::PathError),
    /// A file's digest is none.
    #[error("the registry sent a package with a bad digest: {0}")]
    Digest(skillyard::digest::DigestError),
}

impl RegistryError {
    /// Whether the files on the registry's disk are no longer those of the digest: the next state names another.
    #[must_use]
    pub fn is_package_changed(&self) -> bool {
        matches!(self, Self::Call { reason, .. } if reason == Reason::PackageChanged.as_str())
    }

    /// Whether the same call may do a moment later: the connection broke, or the registry is about to be there.
    fn may_pass(&self) -> bool {
        use Code::{Aborted, Cancelled, Internal, ResourceExhausted, Unavailable, Unknown};
        match self {
            Self::Call { code: Unavailable | Aborted, .. } => true,
            Self::Call { code: Cancelled | Internal | ResourceExhausted | Unknown, reason, .. } => reason.is_empty(),
            _ => false,
        }
    }

    /// Whether the registry sent what it must not, so that asking again at once is of no use.
    #[must_use]
    pub fn is_malformed(&self) -> bool {
        !matches!(self, Self::Call { .. } | Self::Silent(_) | Self::CutOff)
    }
}

impl From<Status> for RegistryError {
    fn from(status: Status) -> Self {
        let reason = status.get_details_error_info().filter(|info| info.domain == skillyard::service::error::DOMAIN);
        let mut message = status.message().to_owned();
        let mut source = status.source();
        while let Some(cause) = source {
            let text = cause.to_string();
            if !message.contains(&text) {
                message = if message.is_empty() { text } else { format!("{message}: {text}") };
            }
            source = cause.source();
        }
        Self::Call { code: status.code(), reason: reason.map(|info| info.reason).unwrap_or_default(), message }
    }
}
