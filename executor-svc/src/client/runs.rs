//! `executor-svc runs` and `executor-svc cancel`: which runs an executor has, and the end of one. Follows none.

use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::SystemTime;

use skillyard::pb::executor::v1::{CancelRunRequest, ListRunsRequest, Outcome, Run, RunState};
use tonic::Status;

use super::connect::ConnectArgs;
use super::terminal::{Terminal, cause};
use super::{Client, NO_ANSWER, NOT_WRITTEN, REFUSED, USAGE, reason_of};

/// Lists the runs that an executor has in memory, newest first.
#[derive(Clone, Debug, clap::Args)]
pub struct RunsArgs {
    /// Only runs that are queued or running.
    #[arg(long)]
    active: bool,
    /// Only runs of this skill.
    #[arg(long, value_name = "SKILL", default_value = "", hide_default_value = true)]
    skill: String,
    /// Only runs on behalf of this agent.
    #[arg(long, value_name = "AGENT", default_value = "", hide_default_value = true)]
    agent: String,
    /// How many at the most.
    #[arg(long, value_name = "N", default_value = "100")]
    limit: usize,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Ends a run, and says how it ended.
#[derive(Clone, Debug, clap::Args)]
pub struct CancelArgs {
    /// The run.
    run_id: String,
    /// Why, for the record.
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    connect: ConnectArgs,
}

/// Prints one line a run.
pub(super) async fn list(args: RunsArgs) -> ExitCode {
    let mut terminal = Terminal::new();
    let mut client = match args.connect.dialer() {
        Ok(executor) => Client::new(executor),
        Err(error) => {
            terminal.say(&error.to_string());
            return USAGE.into();
        }
    };
    let (mut left, mut page_token) = (args.limit, String::new());
    let mut lines = vec!["RUN_ID\tSKILL\tAGENT\tCALLER\tSTATE\tAGE".to_owned()];
    while left > 0 {
        let request = ListRunsRequest {
            active: args.active,
            skill: args.skill.clone(),
            agent: args.agent.clone(),
            page_size: i32::try_from(left).unwrap_or(i32::MAX),
            page_token,
        };
        let page = match client.list_runs(request).await {
            Ok(page) => page.into_inner(),
            Err(status) => return refused(&mut terminal, &status),
        };
        left = left.saturating_sub(page.runs.len());
        lines.extend(page.runs.iter().map(line));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    match writeln!(io::stdout().lock(), "{}", lines.join("\n")) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal.say(&format!("the list cannot be written: {error}"));
            NOT_WRITTEN.into()
        }
    }
}

/// Asks for a run's end, and says how it ended.
pub(super) async fn cancel(args: CancelArgs) -> ExitCode {
    let mut terminal = Terminal::new();
    let mut client = match args.connect.dialer() {
        Ok(executor) => Client::new(executor),
        Err(error) => {
            terminal.say(&error.to_string());
            return USAGE.into();
        }
    };
    let request = CancelRunRequest { run_id: args.run_id, reason: args.reason };
    match client.cancel_run(request).await {
        Ok(answer) => {
            if let Some(finished) = answer.into_inner().run.and_then(|run| run.finished) {
                if finished.outcome() == Outcome::Succeeded {
                    terminal.say(&format!("run {} had SUCCEEDED before", finished.run_id));
                }
                terminal.finished(&finished);
            }
            ExitCode::SUCCESS
        }
        Err(status) => refused(&mut terminal, &status),
    }
}

fn refused(terminal: &mut Terminal, status: &Status) -> ExitCode {
    if reason_of(status).is_some() {
        terminal.refused(status);
        return REFUSED.into();
    }
    terminal.say(&format!("no answer: {}; is --executor the address of an executor?", cause(status)));
    NO_ANSWER.into()
}

fn line(run: &Run) -> String {
    let state = match (run.state(), &run.finished) {
        (RunState::Finished, Some(finished)) => finished.outcome().as_str_name().trim_start_matches("OUTCOME_"),
        (state, _) => state.as_str_name().trim_start_matches("RUN_STATE_"),
    };
    let accepted = run.accepted_at.and_then(|at| SystemTime::try_from(at).ok());
    let age = accepted.and_then(|at| at.elapsed().ok()).unwrap_or_default();
    let age = humantime::format_duration(std::time::Duration::from_secs(age.as_secs()));
    let or_none = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let (agent, caller) = (or_none(&run.agent), or_none(&run.caller));
    format!("{}\t{}\t{agent}\t{caller}\t{state}\t{}", run.run_id, run.skill, age.to_string().replace(' ', ""))
}
