//! Approvals as people read them.

use std::time::{Duration, SystemTime};

use skillyard::pb::registry::v1::{Approval, ApprovalState, Signature};

use super::table::columns;
use super::text::{json, line, visible};

/// Lines of arguments that are shown unless all are asked for.
const MAX_LINES: usize = 300;

/// One line each, in columns.
pub(super) fn table(approvals: &[Approval], now: SystemTime) -> String {
    if approvals.is_empty() {
        return "no approvals\n".to_owned();
    }
    let head = ["ID", "STATE", "CLASS", "SKILL", "AGENT", "ASKED BY", "FOR", "SIGNED", "EXPIRES"].map(str::to_owned);
    columns(std::iter::once(head).chain(approvals.iter().map(|approval| row(approval, now))))
}

fn row(approval: &Approval, now: SystemTime) -> [String; 9] {
    [
        line(&approval.id, 36),
        state(approval).to_owned(),
        class(approval).to_owned(),
        line(&approval.skill, 32),
        line(&approval.agent, 24),
        line(&approval.requested_by, 24),
        line(&approval.requested_for, 24),
        format!("{}/{}", signed_for(approval), approval.signatures_required),
        expires(approval, now),
    ]
}

/// All that a signer is to know.
pub(super) fn approval(approval: &Approval, now: SystemTime, full: bool) -> String {
    let mut shown = String::new();
    let mut field = |name: &str, value: &str| {
        // A text of several lines stays in its column: it cannot look like a field of its own.
        let value = visible(value).replace('\n', &format!("\n{:14}", ""));
        shown += &format!("{name:13} {value}\n");
    };
    field("approval", &approval.id);
    let left = expires(approval, now);
    let left = if left.is_empty() { left } else { format!(", expires in {left}") };
    field("state", &format!("{}{left}", state(approval)));
    field("skill", &line(&approval.skill, 128));
    field("class", class(approval));
    field("digest", &approval.digest);
    field("agent", &line(&approval.agent, 128));
    field("asked by", &line(&approval.requested_by, 256));
    field("for", if approval.requested_for.is_empty() { "nobody was named" } else { &approval.requested_for });
    field("reason", if approval.reason.is_empty() { "none was given" } else { &approval.reason });
    field("signatures", &format!("{} of {}", signed_for(approval), approval.signatures_required));
    for Signature { signer, approve, comment, time } in &approval.signatures {
        let time = time.and_then(|time| SystemTime::try_from(time).ok()).map(humantime::format_rfc3339_seconds);
        let time = time.map(|time| format!(" at {time}")).unwrap_or_default();
        let comment = if comment.is_empty() { String::new() } else { format!(": {comment}") };
        field("", &format!("{} {}{time}{comment}", if *approve { "for:    " } else { "against:" }, line(signer, 256)));
    }
    if !approval.run_id.is_empty() {
        field("used by run", &approval.run_id);
    }
    field("sha256", &approval.args_sha256);
    shown + "arguments\n" + &arguments(approval, full)
}

fn arguments(approval: &Approval, full: bool) -> String {
    if approval.args_json.is_empty() {
        return match approval.state() {
            ApprovalState::Pending => "  (too long for this answer: `show` has them)\n".to_owned(),
            _ => "  (kept only while it was pending)\n".to_owned(),
        };
    }
    let shown = json(&approval.args_json, full);
    let lines = shown.lines().count();
    let max = if full { usize::MAX } else { MAX_LINES };
    let mut text: String = shown.lines().take(max).map(|line| format!("  {line}\n")).collect();
    if lines > max {
        text += &format!("  … and {} more lines: --full shows them\n", lines - max);
    }
    text
}

fn state(approval: &Approval) -> &'static str {
    approval.state().as_str_name().trim_start_matches("APPROVAL_STATE_")
}

fn class(approval: &Approval) -> &'static str {
    skillyard::wire::class_from_wire(approval.class()).map_or("unknown", skillyard::Class::as_str)
}

fn signed_for(approval: &Approval) -> usize {
    approval.signatures.iter().filter(|signature| signature.approve).count()
}

/// How long something may still become of it; empty where it has ended.
fn expires(approval: &Approval, now: SystemTime) -> String {
    let at = approval.expires_at.and_then(|at| SystemTime::try_from(at).ok());
    match (approval.state(), at) {
        (ApprovalState::Pending | ApprovalState::Approved, Some(at)) => {
            let left = at.duration_since(now).unwrap_or_default();
            humantime::format_duration(Duration::from_secs(left.as_secs())).to_string()
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> Approval {
        Approval {
            id: "0193".into(),
            agent: "operator".into(),
            skill: "disk_cleaner".into(),
            digest: "d1".into(),
            args_json: r#"{"path":"/srv"}"#.into(),
            args_sha256: "a1".into(),
            reason: "full\nstate         APPROVED".into(),
            requested_by: "bot".into(),
            requested_for: "ann".into(),
            signatures_required: 2,
            signatures: vec![Signature {
                signer: "bob".into(),
                approve: true,
                comment: "fine\u{1b}[1A".into(),
                time: Some(SystemTime::UNIX_EPOCH.into()),
            }],
            state: ApprovalState::Pending.into(),
            created_at: None,
            expires_at: Some((SystemTime::UNIX_EPOCH + Duration::from_millis(90_500)).into()),
            run_id: String::new(),
            class: 2,
        }
    }

    #[test]
    fn one_with_everything() {
        let expected = "\
approval      0193
state         PENDING, expires in 1m 30s
skill         disk_cleaner
class         mutating
digest        d1
agent         operator
asked by      bot
for           ann
reason        full
              state         APPROVED
signatures    1 of 2
              for:     bob at 1970-01-01T00:00:00Z: fine\\u{1b}[1A
sha256        a1
arguments
  {
    \"path\": \"/srv\"
  }
";
        assert_eq!(approval(&pending(), SystemTime::UNIX_EPOCH, false), expected);
    }

    #[test]
    fn many_in_columns() {
        let shown = table(&[pending()], SystemTime::UNIX_EPOCH);
        let expected = "ID    STATE    CLASS     SKILL         AGENT     ASKED BY  FOR  SIGNED  EXPIRES\n\
                        0193  PENDING  mutating  disk_cleaner  operator  bot       ann  1/2     1m 30s\n";
        assert_eq!(shown, expected);
        assert_eq!(table(&[], SystemTime::UNIX_EPOCH), "no approvals\n");
    }

    #[test]
    fn arguments_that_are_not_here() {
        let gone = Approval { args_json: String::new(), state: ApprovalState::Consumed.into(), ..pending() };
        assert!(approval(&gone, SystemTime::UNIX_EPOCH, false).contains("only while it was pending"));
        let many = format!("{{\"a\":[{}1]}}", "1,".repeat(400));
        let many = Approval { args_json: many, ..pending() };
        assert!(approval(&many, SystemTime::UNIX_EPOCH, false).contains("more lines: --full"));
        assert!(!approval(&many, SystemTime::UNIX_EPOCH, true).contains("more lines"));
    }
}
