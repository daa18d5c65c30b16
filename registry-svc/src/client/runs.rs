//! `registry-svc runs`: lists and shows what ran, from a terminal. A client of any registry, as `approvals` is.

mod show;

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use skillyard::pb::executor::v1::Outcome;
use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::history_service_client::HistoryServiceClient;

use super::connection::Connection;
use super::{Failure, MAX_MESSAGE_BYTES, code};

/// Lists and shows records of runs.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "Exit codes: 0 done, 8 refused, 9 no answer, 64 bad command line, token or certificate.")]
pub struct RunsArgs {
    #[command(subcommand)]
    action: Action,
    #[command(flatten)]
    connection: Connection,
    /// One JSON object a line, for programs
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Clone, Debug, clap::Subcommand)]
enum Action {
    /// The runs that you may see, newest first
    List(Box<Conditions>),
    /// All that is recorded of one run, its stderr too
    Show {
        /// Its id
        run_id: String,
    },
}

/// All must be met.
#[derive(Clone, Debug, clap::Args)]
struct Conditions {
    /// Of this skill
    #[arg(long, default_value = "", hide_default_value = true)]
    skill: String,
    /// For this agent
    #[arg(long, default_value = "", hide_default_value = true)]
    agent: String,
    /// On the executor of this name
    #[arg(long, default_value = "", hide_default_value = true)]
    executor: String,
    /// That ended so: succeeded, failed, timed_out, …
    #[arg(long, value_parser = outcome)]
    outcome: Option<Outcome>,
    /// Accepted at this time or later: 2h for two hours ago, or as 2026-11-30T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<SystemTime>,
    /// Accepted before this time
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<SystemTime>,
    /// With this label; once for each
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// As many as these
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: usize,
}

/// Does what the line says, prints it, and gives the exit code.
pub async fn run(args: RunsArgs) -> u8 {
    code(act(args).await)
}

async fn act(args: RunsArgs) -> Result<(), Failure> {
    let client = HistoryServiceClient::new(args.connection.dialer()?);
    let mut client = client.max_decoding_message_size(MAX_MESSAGE_BYTES);
    let mut stdout = io::stdout().lock();
    let records = match args.action {
        Action::Show { run_id } => {
            let records = client.get_run_record(pb::GetRunRecordRequest { run_id }).await?.into_inner().records;
            if !args.json {
                let shown: Vec<_> = records.iter().map(show::record).collect();
                stdout.write_all(shown.join("\n").as_bytes())?;
                return Ok(stdout.flush()?);
            }
            records
        }
        Action::List(conditions) => {
            let limit = conditions.limit;
            let mut request = conditions.to_wire();
            let mut records = Vec::new();
            while records.len() < limit {
                request.page_size = i32::try_from(limit - records.len()).unwrap_or(i32::MAX);
                let page = client.list_run_records(request.clone()).await?.into_inner();
                records.extend(page.records);
                if page.next_page_token.is_empty() {
                    break;
                }
                request.page_token = page.next_page_token;
            }
            if !args.json {
                stdout.write_all(show::table(&records).as_bytes())?;
                return Ok(stdout.flush()?);
            }
            records
        }
    };
    for record in &records {
        writeln!(stdout, "{}", show::json(record))?;
    }
    Ok(stdout.flush()?)
}

impl Conditions {
    fn to_wire(&self) -> pb::ListRunRecordsRequest {
        pb::ListRunRecordsRequest {
            skill: self.skill.clone(),
            agent: self.agent.clone(),
            executor: self.executor.clone(),
            outcome: self.outcome.unwrap_or_default().into(),
            since: self.since.map(Into::into),
            until: self.until.map(Into::into),
            labels: HashMap::from_iter(self.labels.clone()),
            page_size: 0,
            page_token: String::new(),
        }
    }
}

fn outcome(text: &str) -> Result<Outcome, String> {
    const PREFIX: &str = "OUTCOME_";
    let name = format!("{PREFIX}{}", text.to_uppercase().replace('-', "_"));
    Outcome::from_str_name(&name).filter(|outcome| *outcome != Outcome::Unspecified).ok_or_else(|| {
        let known = (1..).map_while(|number| Outcome::try_from(number).ok()).map(|outcome| outcome.as_str_name());
        let known: Vec<_> = known.map(|name| name.trim_start_matches(PREFIX).to_lowercase()).collect();
        format!("write one of these outcomes: {}", known.join(", "))
    })
}

fn moment(text: &str) -> Result<SystemTime, String> {
    if let Ok(time) = humantime::parse_rfc3339_weak(text) {
        return Ok(time);
    }
    let ago: Duration = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write how long ago, as 2h, or a moment in UTC, as 2026-11-30T12:00:00Z"))?;
    SystemTime::now().checked_sub(ago).ok_or_else(|| "that is before all time".to_owned())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        assert_eq!(outcome("timed-out"), Ok(Outcome::TimedOut));
        assert_eq!(outcome("LOST"), Ok(Outcome::Lost));
        assert!(outcome("unspecified").is_err() && outcome("good").is_err());
        assert_eq!(moment("1970-01-01T00:00:01Z"), Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(1)));
        let ago = moment("2h").unwrap().elapsed().unwrap().as_secs();
        assert!((7200..7300).contains(&ago), "{ago}");
        assert!(moment("yesterday").is_err());
        assert_eq!(label("a=b=c"), Ok(("a".to_owned(), "b=c".to_owned())));
        assert!(label("a").is_err());
    }
}
