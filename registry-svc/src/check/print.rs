//! What was found, for people and for programs. Decides nothing.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::json;

use super::Checked;
use crate::source::{Diagnostic, Severity};

/// `path:line:column: severity CODE message` for every problem, and a summary. Line and column are 0 where the whole
/// file, or the whole line, is meant.
pub(super) fn text(checked: &[Checked], out: &mut impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    for one in checked {
        let path = one.path.to_string_lossy();
        for diagnostic in &one.diagnostics {
            let Diagnostic { severity, code, line, column, .. } = diagnostic;
            let (severity, message) = (word(*severity), message(diagnostic));
            writeln!(out, "{}", on_one_line(&format!("{path}:{line}:{column}: {severity} {code} {message}")))?;
        }
    }
    let registered = checked.iter().filter(|one| one.registered).count();
    let total = |severity| checked.iter().map(|one| one.count(severity)).sum::<usize>();
    let (errors, warnings) = (total(Severity::Error), total(Severity::Warning));
    let (skills, left_out) = (plural(registered, "skill"), checked.len() - registered);
    writeln!(
        out,
        "{skills} registered, {left_out} left out: {}, {}",
        plural(errors, "error"),
        plural(warnings, "warning")
    )?;
    out.flush()
}

/// An array of all that was found, a line each.
pub(super) fn json(checked: &[Checked], out: &mut impl Write) -> io::Result<()> {
    let mut out = io::BufWriter::new(out);
    out.write_all(b"[")?;
    for (index, one) in checked.iter().enumerate() {
        out.write_all(if index == 0 { b"\n" } else { b",\n" })?;
        let diagnostics: Vec<_> = one
            .diagnostics
            .iter()
            .map(|diagnostic| {
                let Diagnostic { severity, code, line, column, .. } = diagnostic;
                json!({
                    "severity": word(*severity), "code": code, "message": message(diagnostic),
                    "line": line, "column": column,
                })
            })
            .collect();
        let value = json!({
            "path": one.path.to_string_lossy(), "name": one.name, "registered": one.registered,
            "diagnostics": diagnostics,
        });
        serde_json::to_writer(&mut out, &value)?;
    }
    out.write_all(if checked.is_empty() { b"]\n" } else { b"\n]\n" })?;
    out.flush()
}

/// A directory may be called anything, and a message may quote anything: nothing of it makes a line of its own, or does
/// something to a terminal.
pub(super) fn on_one_line(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}')
    };
    if !text.contains(hidden) {
        return text.into();
    }
    text.chars().map(|c| if hidden(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Without the place, which is said already.
fn message(diagnostic: &Diagnostic) -> &str {
    let Diagnostic { message, line, column, .. } = diagnostic;
    let places = [format!("line {line} column {column}: "), format!("line {line}: ")];
    places.iter().find_map(|place| message.strip_prefix(place.as_str())).unwrap_or(message)
}

fn word(severity: Severity) -> &'static str {
    match severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    }
}

fn plural(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
