//! `registry-svc approvals`, the real binary, as an approver uses it.

use std::fs;
use std::process::Output;

use skillyard::pb::registry::v1 as pb;
use skillyard::pb::registry::v1::ApprovalState;

use crate::bed::{Bed, Engine, Service, asking, dangerous, mutating};

impl Bed {
    /// As this one with this role, `who/role`, or with a file that holds what is no token.
    async fn approvals(&self, service: &Service, token: &str, line: &[&str]) -> Output {
        let file = self.path("token");
        let token = token.split_once('/').map_or(token.to_owned(), |(who, role)| crate::bed::token(who, role));
        fs::write(&file, format!("{token}\n")).unwrap();
        let mut command = self.world.command();
        command.arg("approvals").args(line).args(["--registry", &service.endpoint]).arg("--token-file").arg(file);
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{}", stderr(output));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_listed_shown_and_signed() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    assert_eq!(stdout(&bed.approvals(&service, "ann/approver", &["list"]).await), "no approvals\n");
    let asked = service.ask(pb::RequestApprovalRequest { requested_for: "eve".into(), ..dangerous() }).await.unwrap();
    let list = stdout(&bed.approvals(&service, "ann/approver", &["list"]).await);
    let row = list.lines().nth(1).unwrap();
    for part in [&asked.id, "PENDING", "dangerous", "dual-sign-required", "bot", "eve", "0/2"] {
        assert!(row.contains(part), "{list}");
    }
    let shown = stdout(&bed.approvals(&service, "ann/approver", &["show", &asked.id]).await);
    for part in ["\"path\": \"/srv\"", "expires in 14m", &asked.digest, "the disk is full", &asked.args_sha256] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    let line = ["approve", &asked.id, "--comment", "looked at it"];
    let signed = stdout(&bed.approvals(&service, "ann/approver", &line).await);
    assert!(signed.contains("1 of 2") && signed.contains("ann at ") && signed.contains(": looked at it"), "{signed}");
    let signed = stdout(&bed.approvals(&service, "bob/approver", &["approve", &asked.id]).await);
    assert!(signed.contains("APPROVED") && !signed.contains("/srv"), "{signed}");
    let other = service.ask(mutating()).await.unwrap();
    stdout(&bed.approvals(&service, "bob/approver", &["reject", &other.id]).await);
    assert_eq!(service.get(&other.id).await.unwrap().state(), ApprovalState::Rejected);
    let all = stdout(&bed.approvals(&service, "bob/approver", &["list", "--state", "all"]).await);
    assert_eq!(all.lines().count(), 3, "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_asked_for() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let line = ["request", "mutating", "--agent", "mutating-with-confirm", "--args", r#"{"path": "/srv"}"#];
    let more = ["--reason", "it is full", "--requested-for", "eve", "--ttl", "1h"];
    let asked = bed.approvals(&service, "bot/orchestrator", &[&line[..], &more].concat()).await;
    let shown = stdout(&asked);
    for part in ["PENDING", "\"path\": \"/srv\"", "it is full", "eve", "expires in 1h"] {
        assert!(shown.contains(part), "{part} in {shown}");
    }
    std::fs::write(bed.path("args"), r#"{"path": "/srv"}"#).unwrap();
    let file = bed.path("args");
    let line = ["request", "mutating", "--agent", "mutating-with-confirm", "--id-only", "--args-file"];
    let id =
        stdout(&bed.approvals(&service, "bot/orchestrator", &[&line[..], &[file.to_str().unwrap()]].concat()).await);
    let found = service.get(id.trim()).await.unwrap();
    assert_eq!((found.state(), found.args_json.as_str()), (ApprovalState::Pending, r#"{"path": "/srv"}"#));
    let nowhere = bed.approvals(&service, "bot/orchestrator", &[&line[..], &["/nowhere"]].concat()).await;
    assert_eq!(nowhere.status.code(), Some(64), "{}", stderr(&nowhere));
    let safe = bed.approvals(&service, "bot/orchestrator", &["request", "safe"]).await;
    assert_eq!(safe.status.code(), Some(8), "{}", stderr(&safe));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_is_not_fooled() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let args = "{\"command\":\"ls \\u001b[2K\\u202edr- mr\"}";
    let mut request = asking("mutating-with-confirm", "mutating", args);
    request.reason = "harmless\u{1b}[8m\u{202e}".into();
    let asked = service.ask(request).await.unwrap();
    let shown = stdout(&bed.approvals(&service, "ann/approver", &["show", &asked.id]).await);
    assert!(shown.contains(r#""command": "ls \u{1b}[2K\u{202e}dr- mr""#), "{shown}");
    assert!(shown.contains(r"harmless\u{1b}[8m\u{202e}") && !shown.contains('\u{1b}'), "{shown}");
    // Arguments that only one answer has.
    let long = format!(r#"{{"a":"{}"}}"#, "x".repeat(5 << 20));
    let long = service.ask(asking("mutating-with-confirm", "mutating", &long)).await.unwrap();
    let shown = stdout(&bed.approvals(&service, "ann/approver", &["show", &long.id]).await);
    assert!(shown.len() < 4096 && shown.contains("more characters: --full shows them"), "{}", shown.len());
    let shown = stdout(&bed.approvals(&service, "ann/approver", &["show", "--full", &long.id]).await);
    assert!(shown.len() > 5 << 20);
}

#[tokio::test(flavor = "multi_thread")]
async fn exit_codes_tell_what_is_wrong() {
    let bed = Bed::new(Engine::Sqlite).await.unwrap();
    let service = bed.serve().await;
    let asked = service.ask(mutating()).await.unwrap();
    let refused = bed.approvals(&service, "bot/orchestrator", &["approve", &asked.id]).await;
    assert_eq!(refused.status.code(), Some(8));
    assert!(stderr(&refused).contains("refused: CALLER_NOT_ALLOWED"), "{}", stderr(&refused));
    let unknown = bed.approvals(&service, "ann/approver", &["show", "x"]).await;
    assert_eq!(unknown.status.code(), Some(8));
    let bad_token = bed.approvals(&service, " ", &["list"]).await;
    assert_eq!(bad_token.status.code(), Some(64));
    assert!(stderr(&bad_token).contains("--token-file"), "{}", stderr(&bad_token));
    let not_encrypted = bed.approvals(&service, "ann/approver", &["list", "--ca", "/nowhere"]).await;
    assert_eq!(not_encrypted.status.code(), Some(64));
    assert!(stderr(&not_encrypted).contains("--ca: http://"), "{}", stderr(&not_encrypted));
    assert_eq!(bed.approvals(&service, "ann/approver", &["sign"]).await.status.code(), Some(64));
    let mut nowhere = bed.world.command();
    nowhere.args(["approvals", "list", "--registry", "http://127.0.0.1:1"]);
    let nowhere = tokio::task::spawn_blocking(move || nowhere.output().unwrap()).await.unwrap();
    assert_eq!(nowhere.status.code(), Some(9), "{}", stderr(&nowhere));
}
