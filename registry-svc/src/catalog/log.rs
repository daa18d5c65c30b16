//! The log lines of a load: one for every manifest, playbook and agent file, in words that operators search for. After
//! a rescan only for what changed.

use std::borrow::Cow;

use super::report::{Fate, Report, Reported, Subject};
use crate::source::{Root, RootState, Stage};

/// Writes what differs from the report before; everything where there is none.
pub fn log(before: Option<&Report>, report: &Report) {
    let lines = root_lines(before, report).into_iter().chain(candidate_lines(before, report));
    for line in lines {
        match line {
            Line::Info(text) => tracing::info!("{}", on_one_line(&text)),
            Line::Warn(text) => tracing::warn!("{}", on_one_line(&text)),
        }
    }
}

/// A directory may be called anything: a line break in its name must not make a line of its own.
fn on_one_line(text: &str) -> Cow<'_, str> {
    let breaks = |c: char| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}');
    if !text.contains(breaks) {
        return text.into();
    }
    let escaped = |c: char| if breaks(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect::<String>().into()
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Info(String),
    Warn(String),
}

fn root_lines(before: Option<&Report>, report: &Report) -> Vec<Line> {
    let state_before = |i: usize| before.and_then(|before| before.roots.get(i)).map(|root| root.root.state);
    let changed = report.roots.iter().enumerate().filter(|(i, root)| state_before(*i) != Some(root.root.state));
    changed.filter_map(|(_, root)| root_line(&root.root)).collect()
}

/// What is registered is named file by file, and what is missing may come yet.
fn root_line(root: &Root) -> Option<Line> {
    let path = root.path.display();
    match root.state {
        RootState::Registered | RootState::Missing => None,
        RootState::NotAbsolute => {
            Some(Line::Warn(format!("skill loader: root {path} is not an absolute path, skipping")))
        }
        RootState::NotEntitled => Some(Line::Info(format!("skill loader: root {path} is not for this tier, skipping"))),
        RootState::Unreadable => Some(Line::Warn(format!(
            "skill loader: root {path} cannot be read or does not answer; what was known of it is kept, and it is tried again"
        ))),
    }
}

fn candidate_lines(before: Option<&Report>, report: &Report) -> Vec<Line> {
    // Both are in order of their keys, and most are the same.
    let mut old = before.map(|before| before.candidates.iter()).into_iter().flatten().peekable();
    let (mut lines, mut gone) = (Vec::new(), Vec::new());
    for candidate in &report.candidates {
        while let Some(old) = old.next_if(|old| old.key != candidate.key && old.key < candidate.key) {
            gone.push(gone_line(old));
        }
        let known = old.next_if(|old| old.key == candidate.key);
        if known.is_none_or(|known| known != candidate) {
            lines.push(line(candidate));
        }
    }
    lines.extend(gone);
    lines.extend(old.map(gone_line));
    lines
}

fn line(candidate: &Reported) -> Line {
    let Reported { key, name, subject, fate, .. } = candidate;
    let path = key.path.display();
    let (loader, kind) = words(*subject);
    match fate {
        Fate::Registered(_) if *subject == Subject::Agent && !candidate.diagnostics.is_empty() => {
            // A list that is not what its author meant may show an agent more than it should see.
            Line::Warn(format!("{loader}: registered {kind} {name:?} from {path}: {}", candidate.complaint()))
        }
        Fate::Registered(_) => Line::Info(format!("{loader}: registered {kind} {name:?} from {path}")),
        Fate::NameTaken if *subject == Subject::Agent => {
            Line::Warn(format!("{loader}: agent {name:?} already registered, skipping {path}"))
        }
        Fate::NameTaken => Line::Warn(format!("{loader}: skill {name:?} already registered, skipping {path}")),
        Fate::Failed(Stage::Build) if !name.is_empty() => {
            Line::Warn(format!("{loader}: build {name:?}: {}", candidate.complaint()))
        }
        Fate::Failed(Stage::Build) => Line::Warn(format!("{loader}: build {path}: {}", candidate.complaint())),
        Fate::Failed(Stage::Parse) => {
            Line::Warn(format!("{loader}: parse {path}: {}", candidate.complaint_with_place()))
        }
        Fate::PassedOver => Line::Warn(format!("{loader}: skipping {path}: {}", candidate.complaint())),
    }
}

fn gone_line(candidate: &Reported) -> Line {
    let (loader, kind) = words(candidate.subject);
    let path = candidate.key.path.display();
    match candidate.is_registered() {
        true => Line::Info(format!("{loader}: removed {kind} {:?}, {path} is gone", candidate.name)),
        false => Line::Info(format!("{loader}: {path} is gone")),
    }
}

fn words(subject: Subject) -> (&'static str, &'static str) {
    match subject {
        Subject::Subprocess => ("skill loader", "subprocess skill"),
        Subject::Playbook => ("skill loader", "playbook skill"),
        Subject::Agent => ("agent loader", "agent"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::Key;
    use super::*;
    use crate::source::{Diagnostic, RootKind, Severity};
    use skillyard::{Digest, Source};
    use std::path::Path;
    use std::time::SystemTime;

    fn reported(path: &str, name: &str, subject: Subject, fate: Fate, complaint: &str) -> Reported {
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            code: "E_X",
            message: complaint.into(),
            line: if complaint.is_empty() { 0 } else { 3 },
            column: 7,
        };
        let diagnostics = if complaint.is_empty() { Vec::new() } else { vec![diagnostic] };
        Reported {
            key: Key { root: 0, path: Path::new(path).into(), ordinal: 0 },
            name: name.into(),
            subject,
            fate,
            diagnostics,
        }
    }

    fn report(candidates: Vec<Reported>) -> Report {
        Report { loaded_at: SystemTime::UNIX_EPOCH, roots: Vec::new(), candidates }
    }

    fn registered(content: &str) -> Fate {
        Fate::Registered(Some(Digest::of(content.as_bytes())))
    }

    #[test]
    fn the_words() {
        let (json, md) = ("/etc/ongrid/skills/x/skill.json", "/c/skills/x/SKILL.md");
        for (candidate, line) in [
            (
                reported(json, "disk_cleaner", Subject::Subprocess, registered("a"), ""),
                Line::Info(format!("skill loader: registered subprocess skill \"disk_cleaner\" from {json}")),
            ),
            (
                reported(md, "x", Subject::Playbook, registered("a"), ""),
                Line::Info(format!("skill loader: registered playbook skill \"x\" from {md}")),
            ),
            (
                reported(json, "broken_one", Subject::Subprocess, Fate::NameTaken, "taken"),
                Line::Warn(format!("skill loader: skill \"broken_one\" already registered, skipping {json}")),
            ),
            (
                reported(json, "", Subject::Subprocess, Fate::Failed(Stage::Parse), "expected `,`"),
                Line::Warn(format!("skill loader: parse {json}: line 3 column 7: expected `,`")),
            ),
            (
                reported(json, "", Subject::Subprocess, Fate::Failed(Stage::Parse), "expected `,` at line 3 column 7"),
                Line::Warn(format!("skill loader: parse {json}: expected `,` at line 3 column 7")),
            ),
            (
                reported(json, "bad_path", Subject::Subprocess, Fate::Failed(Stage::Build), "entry"),
                Line::Warn("skill loader: build \"bad_path\": entry".into()),
            ),
        ] {
            assert_eq!(super::line(&candidate), line);
        }
    }

    #[test]
    fn a_name_makes_no_line_of_its_own() {
        assert_eq!(on_one_line("from /e/é x/skill.json"), "from /e/é x/skill.json");
        assert_eq!(on_one_line("/e/a\nINFO b\u{1b}[2K\u{2028}"), "/e/a\\nINFO b\\u{1b}[2K\\u{2028}");
    }

    #[test]
    fn after_a_rescan_only_what_changed() {
        let skill =
            |name: &str, content| reported(&format!("/{name}"), name, Subject::Subprocess, registered(content), "");
        let before = report(vec![skill("a", "1"), skill("b", "1"), skill("c", "1")]);
        let after = report(vec![skill("a", "1"), skill("b", "2"), skill("d", "1")]);
        let info = |text: &str| Line::Info(format!("skill loader: {text}"));
        assert_eq!(candidate_lines(None, &before).len(), 3);
        assert_eq!(candidate_lines(Some(&before), &before), []);
        assert_eq!(
            candidate_lines(Some(&before), &after),
            [
                info("registered subprocess skill \"b\" from /b"),
                info("registered subprocess skill \"d\" from /d"),
                info("removed subprocess skill \"c\", /c is gone"),
            ]
        );
    }

    #[test]
    fn roots_when_their_state_changes() {
        let report = |state| {
            let root = Root { path: "relative".into(), kind: RootKind::Skills(Source::External), state };
            let roots = vec![super::super::report::RootReport { root, registered: 0, skipped: 0 }];
            Report { loaded_at: SystemTime::UNIX_EPOCH, roots, candidates: Vec::new() }
        };
        let skipped = report(RootState::NotAbsolute);
        let line = Line::Warn("skill loader: root relative is not an absolute path, skipping".into());
        assert_eq!(root_lines(None, &skipped), [line]);
        assert_eq!(root_lines(Some(&skipped), &skipped), []);
        assert_eq!(root_lines(None, &report(RootState::Missing)), []);
        assert_eq!(root_lines(Some(&report(RootState::Registered)), &report(RootState::Unreadable)).len(), 1);
    }
}
