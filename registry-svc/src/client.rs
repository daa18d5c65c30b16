//! `registry-svc approvals`: asks for, lists, shows and signs approvals from a terminal. A client of any registry, which decides who
//! may; it shares nothing with the one that serves here.

mod ask;
mod connection;
pub mod runs;
mod show;
mod table;
mod text;

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::SystemTime;

use self::connection::Connection;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::approval_service_client::ApprovalServiceClient;
use skillyard::service::dial::{Dialer, FlagsError};
use tonic::Status;
use tonic_types::StatusExt as _;

/// Arguments of 8 MiB, and what is around them.
const MAX_MESSAGE_BYTES: usize = 20 << 20;

const REFUSED: u8 = 8;
const NO_ANSWER: u8 = 9;
const USAGE: u8 = 64;
const NOT_WRITTEN: u8 = 74;

/// Asks for, lists, shows and signs approvals.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 8 refused, 9 no answer, 64 bad command line, token, certificate or file.")]
pub struct ApprovalsArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    connection: Connection,
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
    /// Asks for an approval of one run
    Request(ask::Ask),
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
    #[error(transparent)]
    Dial(#[from] FlagsError),
    #[error("{}", refusal(.0))]
    Status(Box<Status>),
    #[error("the arguments cannot be read from {}: {source}", .path.display())]
    Arguments { path: PathBuf, source: io::Error },
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
    code(act(args).await)
}

fn code(result: Result<(), Failure>) -> u8 {
    let failure = match result {
        Ok(()) => return 0,
        Err(failure) => failure,
    };
    // Where stderr is closed there is nobody to tell.
    let _ = writeln!(io::stderr(), "skillyard: {}", text::visible(&failure.to_string()));
    match failure {
        Failure::Dial(_) | Failure::Arguments { .. } => USAGE,
        Failure::Status(status) if status.get_details_error_info().is_some() => REFUSED,
        Failure::Status(_) => NO_ANSWER,
        Failure::Write(_) => NOT_WRITTEN,
    }
}

async fn act(args: ApprovalsArgs) -> Result<(), Failure> {
    let mut client = ApprovalServiceClient::new(args.connection.dialer()?).max_decoding_message_size(MAX_MESSAGE_BYTES);
    let now = SystemTime::now();
    let shown = match args.action {
        Action::List { state } => show::table(&list(&mut client, state).await?, now),
        Action::Show { id, full } => {
            let approval = client.get_approval(pb::GetApprovalRequest { id }).await?.into_inner().approval;
            show::approval(&approval.unwrap_or_default(), now, full)
        }
        Action::Request(ask) => {
            let id_only = ask.id_only;
            let answer = client.request_approval(ask.into_request()?).await?.into_inner().approval.unwrap_or_default();
            if id_only { format!("{}\n", answer.id) } else { show::approval(&answer, now, false) }
        }
        Action::Approve(word) => show::approval(&sign(&mut client, word, true).await?, now, false),
        Action::Reject(word) => show::approval(&sign(&mut client, word, false).await?, now, false),
    };
    let mut stdout = io::stdout().lock();
    stdout.write_all(shown.as_bytes())?;
    Ok(stdout.flush()?)
}

type Client = ApprovalServiceClient<Dialer>;

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

fn refusal(status: &Status) -> String {
    if let Some(info) = status.get_details_error_info() {
        return format!("refused: {}: {}", info.reason, status.message());
    }
    // What the transport says by itself does not tell a refused connection from a certificate that nobody trusts.
    let mut message = status.message().to_owned();
    let mut source = std::error::Error::source(status);
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        source = cause.source();
    }
    format!("no answer: {message}: is --registry the address of a registry, and --ca who signs its certificate?")
}
