//! `registry-svc approvals`: lists, shows and signs approvals from a terminal. A client of any registry, which decides who
//! may; it shares nothing with the one that serves here.

mod show;
mod text;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Request, Status};
use tonic_types::StatusExt as _;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(20);
/// Arguments of 8 MiB, and what is around them.
const MAX_MESSAGE_BYTES: usize = 20 << 20;
const MAX_TOKEN_BYTES: usize = 4 << 10;

const REFUSED: u8 = 8;
const NO_ANSWER: u8 = 9;
const USAGE: u8 = 64;
const NOT_WRITTEN: u8 = 74;

/// Lists, shows and signs approvals.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 8 refused, 9 no answer, 64 bad command line or token file.")]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    action: Action,
    /// The registry to ask.
    #[arg(long, global = true, env = "SKILLYARD_REGISTRY", value_name = "URL", default_value = "http://127.0.0.1:50051", value_parser = registry)]
    registry: Uri,
    /// A file with the token to show.
    #[arg(long, global = true, env = "SKILLYARD_TOKEN_FILE", value_name = "FILE")]
    token_file: Option<PathBuf>,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// The approvals that you may see, newest first
    List {
        /// In which state
        #[arg(long, value_enum, default_value_t = Wanted::Pending)]
        state: Wanted,
    },
    /// One approval with its arguments
    Show {
        /// Its id
        id: String,
        /// Cut nothing
        #[arg(long)]
        full: bool,
    },
    /// Signs for an approval
    Approve(Word),
    /// Signs against an approval, which ends it
    Reject(Word),
}

#[derive(Clone, Debug, clap::Args)]
struct Word {
    /// Its id
    id: String,
    /// What others are to read beside the signature
    #[arg(long, default_value = "", hide_default_value = true)]
    comment: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Wanted {
    Pending,
    Approved,
    Rejected,
    Expired,
    Consumed,
    All,
}

impl Wanted {
    fn to_wire(self) -> pb::ApprovalState {
        match self {
            Self::Pending => pb::ApprovalState::Pending,
            Self::Approved => pb::ApprovalState::Approved,
            Self::Rejected => pb::ApprovalState::Rejected,
            Self::Expired => pb::ApprovalState::Expired,
            Self::Consumed => pb::ApprovalState::Consumed,
            Self::All => pb::ApprovalState::Unspecified,
        }
    }
}

/// Why nothing was done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("the token cannot be read from {}: {source}", .path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("{} holds no token: it is to hold one line of printable ASCII", .0.display())]
    Token(PathBuf),
    #[error("{}", refusal(.0))]
    Status(Box<Status>),
    #[error("the answer cannot be written: {0}")]
    Write(#[from] io::Error),
}

impl From<Status> for Failure {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}

/// Does what the line says, prints it, and gives the exit code.
pub async fn run(args: ApprovalsArgs) -> u8 {
    let failure = match act(args).await {
        Ok(()) => return 0,
        Err(failure) => failure,
    };
    // Where stderr is closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "skillyard: {}", text::visible(&failure.to_string()));
    match failure {
        Failure::TokenFile { .. } | Failure::Token(_) => USAGE,
        Failure::Status(status) if status.get_details_error_info().is_some() => REFUSED,
        Failure::Status(_) => NO_ANSWER,
        Failure::Write(_) => NOT_WRITTEN,
    }
}

async fn act(args: ApprovalsArgs) -> Result<(), Failure> {
    let mut client = connect(args.registry, args.token_file)?;
    let now = SystemTime::now();
    let shown = match args.action {
        Action::List { state } => show::table(&list(&mut client, state).await?, now),
        Action::Show { id, full } => {
            let approval = client.get_approval(pb::GetApprovalRequest { id }).await?.into_inner().approval;
            show::approval(&approval.unwrap_or_default(), now, full)
        }
        Action::Approve(word) => show::approval(&sign(&mut client, word, true).await?, now, false),
        Action::Reject(word) => show::approval(&sign(&mut client, word, false).await?, now, false),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(shown.as_bytes())?;
    Ok(stdout.flush()?)
}

type Client = ApprovalServiceClient<InterceptedService<Channel, Token>>;

async fn list(client: &mut Client, state: Wanted) -> Result<Vec<pb::Approval>, Failure> {
    let (mut approvals, mut page_token) = (Vec::new(), String::new());
    loop {
        let request = pb::ListApprovalsRequest { state: state.to_wire().into(), page_size: 0, page_token };
        let page = client.list_approvals(request).await?.into_inner();
        approvals.extend(page.approvals);
        if page.next_page_token.is_empty() {
            return Ok(approvals);
        }
        page_token = page.next_page_token;
    }
}

async fn sign(client: &mut Client, Word { id, comment }: Word, approve: bool) -> Result<pb::Approval, Failure> {
    let request = pb::SignApprovalRequest { id, approve, comment };
    Ok(client.sign_approval(request).await?.into_inner().approval.unwrap_or_default())
}

fn connect(registry: Uri, token_file: Option<PathBuf>) -> Result<Client, Failure> {
    let token = match token_file.filter(|path| !path.as_os_str().is_empty()) {
        None => None,
        Some(path) => Some(token(path)?),
    };
    let channel = Endpoint::from(registry).connect_timeout(CONNECT_TIMEOUT).timeout(TIMEOUT).connect_lazy();
    Ok(ApprovalServiceClient::with_interceptor(channel, Token(token)).max_decoding_message_size(MAX_MESSAGE_BYTES))
}

/// Shows the token with every call.
#[derive(Clone)]
struct Token(Option<MetadataValue<Ascii>>);

impl tonic::service::Interceptor for Token {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(token) = &self.0 {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

fn token(path: PathBuf) -> Result<MetadataValue<Ascii>, Failure> {
    let read = match std::fs::read(&path) {
        Ok(read) => read,
        Err(source) => return Err(Failure::TokenFile { path, source }),
    };
    let token = std::str::from_utf8(&read).unwrap_or_default().trim();
    if token.is_empty() || token.len() > MAX_TOKEN_BYTES || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Failure::Token(path));
    }
    let mut value: MetadataValue<Ascii> = format!("Bearer {token}").parse().map_err(|_| Failure::Token(path))?;
    value.set_sensitive(true);
    Ok(value)
}

fn registry(text: &str) -> Result<Uri, String> {
    let hint = "write http://HOST:PORT";
    let uri: Uri = text.parse().map_err(|error| format!("{error}: {hint}"))?;
    if uri.scheme_str() != Some("http") || uri.authority().is_none() {
        return Err(hint.to_owned());
    }
    Ok(uri)
}

fn refusal(status: &Status) -> String {
    match status.get_details_error_info() {
        Some(info) => format!("refused: {}: {}", info.reason, status.message()),
        None => format!("no answer: {}: is --registry the address of a registry?", status.message()),
    }
}
