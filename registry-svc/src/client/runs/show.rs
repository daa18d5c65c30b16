//! Records of runs as people and programs read them.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use skillyard::pb::executor::v1::{Finished, Run};
use skillyard::pb::registry::v1::RunRecord;

use crate::client::table::columns;
use crate::client::text::{line, visible};

/// One line each, in columns.
pub(super) fn table(records: &[RunRecord]) -> String {
    if records.is_empty() {
        return "no runs\n".to_owned();
    }
    let head = ["ACCEPTED", "OUTCOME", "SKILL", "AGENT", "CALLER", "EXECUTOR", "TOOK", "RUN"].map(str::to_owned);
    columns(std::iter::once(head).chain(records.iter().map(row)))
}

fn row(record: &RunRecord) -> [String; 8] {
    let (run, finished) = parts(record);
    [
        time(run.accepted_at),
        outcome(&finished),
        line(&run.skill, 32),
        line(&run.agent, 24),
        line(&run.caller, 24),
        line(&run.executor, 24),
        took(&run),
        line(&run.run_id, 128),
    ]
}

/// All that is known of one.
pub(super) fn record(record: &RunRecord) -> String {
    let (run, finished) = parts(record);
    let mut shown = String::new();
    let mut field = |name: &str, value: &str| {
        if !value.is_empty() {
            // A text of several lines stays in its column: it cannot look like a field of its own.
            let value = visible(value).replace('\n', &format!("\n{:14}", ""));
            shown += &format!("{name:13} {value}\n");
        }
    };
    field("run", &run.run_id);
    let reason = if finished.reason.is_empty() { String::new() } else { format!(", {}", finished.reason) };
    field("outcome", &(outcome(&finished) + &reason));
    field("message", &finished.message);
    field("exit code", &finished.exit_code.map(|code| code.to_string()).unwrap_or_default());
    field("signal", &finished.signal);
    field("skill", &run.skill);
    field("digest", &run.digest);
    field("agent", &run.agent);
    field("caller", &run.caller);
    field("approval", &run.approval_id);
    field("arguments", &format!("sha256 {}", run.args_sha256));
    field("executor", &run.executor);
    field("handed in by", &record.appended_by);
    field("accepted", &time(run.accepted_at));
    field("started", &time(run.started_at));
    field("finished", &time(run.finished_at));
    field("took", &took(&run));
    let usage = finished.usage.unwrap_or_default();
    if usage.max_rss_bytes > 0 {
        field("memory", &format!("{} KiB", usage.max_rss_bytes >> 10));
    }
    let mut labels: Vec<_> = run.labels.iter().collect();
    labels.sort();
    for (name, value) in labels {
        field("label", &format!("{name}={value}"));
    }
    if record.stderr.is_empty() {
        return shown;
    }
    let stderr: String = visible(&record.stderr).lines().map(|line| format!("  {line}\n")).collect();
    shown + "stderr\n" + &stderr
}

/// On one line.
pub(super) fn json(record: &RunRecord) -> Value {
    let (run, finished) = parts(record);
    let usage = finished.usage.unwrap_or_default();
    json!({
        "run_id": run.run_id,
        "skill": run.skill,
        "digest": run.digest,
        "agent": run.agent,
        "caller": run.caller,
        "approval_id": run.approval_id,
        "args_sha256": run.args_sha256,
        "executor": run.executor,
        "appended_by": record.appended_by,
        "accepted_at": exact(run.accepted_at),
        "started_at": exact(run.started_at),
        "finished_at": exact(run.finished_at),
        "outcome": outcome(&finished),
        "reason": finished.reason,
        "message": finished.message,
        "exit_code": finished.exit_code,
        "signal": finished.signal,
        "result_bytes": finished.result_bytes,
        "queued_seconds": seconds(usage.queued),
        "wall_seconds": seconds(usage.wall),
        "cpu_user_seconds": seconds(usage.cpu_user),
        "cpu_system_seconds": seconds(usage.cpu_system),
        "max_rss_bytes": usage.max_rss_bytes,
        "labels": run.labels,
        "stderr": record.stderr,
    })
}

fn parts(record: &RunRecord) -> (Run, Finished) {
    let run = record.run.clone().unwrap_or_default();
    let finished = run.finished.clone().unwrap_or_default();
    (run, finished)
}

fn outcome(finished: &Finished) -> String {
    match skillyard::pb::executor::v1::Outcome::try_from(finished.outcome) {
        Ok(outcome) => outcome.as_str_name().trim_start_matches("OUTCOME_").to_owned(),
        Err(_) => format!("outcome {}", finished.outcome),
    }
}

fn system(time: Option<prost_types::Timestamp>) -> Option<SystemTime> {
    SystemTime::try_from(time?).ok()
}

fn time(time: Option<prost_types::Timestamp>) -> String {
    system(time).map(|time| humantime::format_rfc3339_seconds(time).to_string()).unwrap_or_default()
}

fn exact(time: Option<prost_types::Timestamp>) -> Option<String> {
    system(time).map(|time| humantime::format_rfc3339_nanos(time).to_string())
}

fn seconds(duration: Option<prost_types::Duration>) -> Option<f64> {
    Some(Duration::try_from(duration?).ok()?.as_secs_f64())
}

/// From its start to its end.
fn took(run: &Run) -> String {
    let (Some(started), Some(finished)) = (system(run.started_at), system(run.finished_at)) else {
        return String::new();
    };
    let took = finished.duration_since(started).unwrap_or_default();
    humantime::format_duration(Duration::from_millis(u64::try_from(took.as_millis()).unwrap_or(u64::MAX))).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use skillyard::pb::executor::v1::Outcome;

    fn failed() -> RunRecord {
        let at = |ms| Some((SystemTime::UNIX_EPOCH + Duration::from_millis(ms)).into());
        RunRecord {
            run: Some(Run {
                run_id: "r-1".into(),
                skill: "greet".into(),
                agent: "ops".into(),
                caller: "bot".into(),
                executor: "e1".into(),
                accepted_at: at(1000),
                started_at: at(1500),
                finished_at: at(3500),
                finished: Some(Finished {
                    outcome: Outcome::Failed.into(),
                    message: "exit code 3: no".into(),
                    exit_code: Some(3),
                    ..Default::default()
                }),
                labels: [("turn".to_owned(), "7\nrun x".to_owned())].into(),
                args_sha256: "a1".into(),
                ..Default::default()
            }),
            stderr: "no\u{1b}[1A\n".into(),
            appended_by: "worker".into(),
        }
    }

    #[test]
    fn many_and_one() {
        assert_eq!(
            table(&[failed()]),
            "ACCEPTED              OUTCOME  SKILL  AGENT  CALLER  EXECUTOR  TOOK  RUN\n\
             1970-01-01T00:00:01Z  FAILED   greet  ops    bot     e1        2s    r-1\n"
        );
        let expected = "\
run           r-1
outcome       FAILED
message       exit code 3: no
exit code     3
skill         greet
agent         ops
caller        bot
arguments     sha256 a1
executor      e1
handed in by  worker
accepted      1970-01-01T00:00:01Z
started       1970-01-01T00:00:01Z
finished      1970-01-01T00:00:03Z
took          2s
label         turn=7
              run x
stderr
  no\\u{1b}[1A
";
        assert_eq!(record(&failed()), expected);
        let shown = json(&failed());
        assert_eq!((&shown["outcome"], &shown["exit_code"]), (&json!("FAILED"), &json!(3)));
        assert_eq!(shown["accepted_at"], "1970-01-01T00:00:01.000000000Z");
        assert_eq!(table(&[]), "no runs\n");
    }
}
