//! `registry-svc runs`, the real binary, as an operator and a caller use it.

use std::fs;
use std::process::Output;

use serde_json::Value;
use skillyard::pb::executor::v1::Outcome;
use skillyard::pb::registry::v1 as pb;

use crate::bed::{Bed, Engine, Service, token};
use crate::records::{batch, changed, record};

impl Bed {
    async fn runs(&self, service: &Service, (who, role): (&str, &str), line: &[&str]) -> Output {
        let file = self.path("token");
        fs::write(&file, token(who, role)).unwrap();
        let mut command = self.world.command();
        command.arg("runs").args(line).args(["--registry", &service.endpoint]).arg("--token-file").arg(file);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_and_shown() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let op = ("op", "operator");
    assert_eq!(stdout(&bed.runs(&service, op, &["list"]).await), "no runs\n");
    let failed = changed(record("second", 2000), |run| {
        let finished = run.finished.as_mut().unwrap();
        (finished.outcome, finished.exit_code) = (Outcome::Failed.into(), Some(3));
        finished.message = "it\u{1b}[2J failed".into();
        run.caller = "other".into();
        run.labels = [("ticket".to_owned(), "T-1".to_owned())].into();
    });
    let large = pb::RunRecord { stderr: "x".repeat(60 << 10), ..record("large", 3000) };
    service.append("e", batch("j", 3, &[record("first", 1000), failed, large])).await.unwrap();

    let list = stdout(&bed.runs(&service, op, &["list"]).await);
    let rows: Vec<_> = list.lines().collect();
    assert!(rows.len() == 4 && rows[0].starts_with("ACCEPTED") && rows[1].ends_with("large"), "{list}");
    for part in ["FAILED", "disk_cleaner", "ops", "other", "e1", "second"] {
        assert!(rows[2].contains(part), "{part} in {list}");
    }
    for (line, expected) in [
        (&["list", "--outcome", "failed"][..], "second"),
        (&["list", "--label", "ticket=T-1", "--skill", "disk_cleaner"], "second"),
        (&["list", "--limit", "1"], "large"),
        (&["list", "--since", "2h", "--agent", "ops", "--executor", "e1", "--limit", "1"], "large"),
    ] {
        let list = stdout(&bed.runs(&service, op, line).await);
        assert!(list.lines().count() == 2 && list.trim_end().ends_with(expected), "{line:?}: {list}");
    }
    assert_eq!(stdout(&bed.runs(&service, op, &["list", "--until", "2h"]).await), "no runs\n");
    assert_eq!(stdout(&bed.runs(&service, ("other", "orchestrator"), &["list"]).await).lines().count(), 2);

    let shown = stdout(&bed.runs(&service, op, &["show", "second"]).await);
    for part in ["outcome       FAILED", "exit code     3", "it\\u{1b}[2J failed", "ticket=T-1", "  second says this"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let json = stdout(&bed.runs(&service, op, &["list", "--json"]).await);
    let values: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let ids: Vec<_> = values.iter().map(|value| value["run_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["large", "second", "first"]);
    assert_eq!((values[1]["outcome"].as_str(), values[1]["exit_code"].as_i64()), (Some("FAILED"), Some(3)));
    let one = stdout(&bed.runs(&service, op, &["show", "first", "--json"]).await);
    assert_eq!(serde_json::from_str::<Value>(&one).unwrap(), values[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_what_is_wrong() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    for (who, line, code, message) in [
        (("op", "operator"), &["show", "none"][..], 8, "UNKNOWN_RUN"),
        (("e", "executor"), &["list"], 8, "CALLER_NOT_ALLOWED"),
        (("op", "operator"), &["list", "--outcome", "good"], 64, "succeeded"),
        (("op", "operator"), &["list", "--since", "yesterday"], 64, "2h"),
        (("op", "operator"), &["list", "--label", "x"], 64, "NAME=VALUE"),
    ] {
        let output = bed.runs(&service, who, line).await;
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{line:?}: {stderr}");
        assert!(stderr.contains(message), "{line:?}: {stderr}");
    }
}
