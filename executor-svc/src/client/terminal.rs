//! What a person sees of a run. To a terminal no control character of a skill's text gets through, so that a skill can
//! neither rewrite what was printed nor make the terminal do anything; a pipe gets the text as it is.

use std::borrow::Cow;
use std::error::Error as _;
use std::io::{self, IsTerminal as _, Write as _};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use skillyard::pb::executor::v1::{Finished, Log, Outcome, Progress};
use tonic::Status;
use tonic_types::StatusExt as _;

/// Begins a line of stderr that says how far the skill is; it comes as an event too.
const PROGRESS: &str = "::progress ";
/// A bar's steps, whatever the skill's unit is.
const STEPS: u64 = 1000;
const TEMPLATE: &str = "{bar:30} {prefix} {wide_msg}";

/// The two streams of this process.
pub(super) struct Terminal {
    stderr: bool,
    stdout: bool,
    bar: Option<ProgressBar>,
    /// A line that has not ended. While there is a bar it is not printed: the bar would be drawn over it.
    line: String,
    /// The last line printed has not ended.
    open: bool,
}

impl Terminal {
    pub(super) fn new() -> Self {
        let (stderr, stdout) = (io::stderr().is_terminal(), io::stdout().is_terminal());
        Self { stderr, stdout, bar: None, line: String::new(), open: false }
    }

    /// A sentence of ours.
    pub(super) fn say(&mut self, sentence: &str) {
        self.end_line();
        let sentence = self.shown(sentence).into_owned();
        self.print(&format!("skillyard: {sentence}\n"));
    }

    /// What the skill wrote to stderr. Lines of progress are left to [`Self::progress`].
    pub(super) fn log(&mut self, log: &Log) {
        if log.dropped_lines > 0 {
            self.say(&format!("{} lines of the skill were lost", log.dropped_lines));
        }
        let mut text = std::mem::take(&mut self.line);
        text.extend(log.text.split_inclusive('\n').filter(|line| !is_progress(line)));
        if self.bar.is_some() {
            let end = text.rfind('\n').map_or(0, |end| end + 1);
            self.line = text.split_off(end);
        }
        if !text.is_empty() {
            let text = self.shown(&text).into_owned();
            self.print(&text);
        }
    }

    /// A bar where there is a terminal and a total, a line elsewhere.
    pub(super) fn progress(&mut self, progress: &Progress) {
        let total = progress.total.filter(|total| *total > 0.0 && progress.progress.is_finite() && total.is_finite());
        let far = match total {
            Some(total) => format!("{}/{total}", progress.progress),
            None => progress.progress.to_string(),
        };
        let (Some(total), true) = (total, self.stderr) else {
            self.end_line();
            let message = self.shown(&progress.message).replace('\n', " ");
            let line = format!("progress: {far} {message}");
            return self.print(&format!("{}\n", line.trim_end()));
        };
        if self.bar.is_none() {
            self.end_line();
        }
        let bar = self.bar.get_or_insert_with(|| {
            let style = ProgressStyle::with_template(TEMPLATE).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr()).with_style(style)
        });
        let share = (progress.progress / total).clamp(0.0, 1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and STEPS")]
        bar.set_position((share * STEPS as f64) as u64);
        bar.set_prefix(far);
        bar.set_message(visible(&progress.message).replace(['\n', '\t'], " "));
    }

    /// How the run ended; nothing where it succeeded.
    pub(super) fn finished(&mut self, finished: &Finished) {
        self.end_bar();
        self.end_line();
        let outcome = finished.outcome();
        if outcome == Outcome::Succeeded {
            return;
        }
        let name = outcome.as_str_name().trim_start_matches("OUTCOME_");
        let mut text = format!("run {}: {name}", finished.run_id);
        if !finished.reason.is_empty() {
            text += &format!(" ({})", finished.reason);
        }
        if !finished.message.is_empty() {
            text += &format!(": {}", finished.message);
        }
        self.say(&text);
        if outcome == Outcome::InvalidResult && !finished.stdout_head.is_empty() {
            let head: String = finished.stdout_head.chars().take(500).collect();
            self.say(&format!("its stdout begins with: {head}"));
        }
    }

    /// Why nothing was started, and what would help.
    pub(super) fn refused(&mut self, status: &Status) {
        self.end_bar();
        let details = status.get_error_details();
        let reason = details.error_info().map_or("", |info| info.reason.as_str());
        let mut text = format!("refused: {reason}: {}", status.message());
        for violation in details.bad_request().iter().flat_map(|bad| &bad.field_violations) {
            let field = if violation.field.is_empty() { "the whole" } else { &violation.field };
            text += &format!("\n  {field}: {}", violation.description);
        }
        if let Some(delay) = details.retry_info().and_then(|info| info.retry_delay) {
            text += &format!("\n  try again in {}", humantime::format_duration(delay));
        }
        self.say(&text);
    }

    /// The result, byte for byte in a pipe.
    pub(super) fn result(&mut self, json: &str) -> io::Result<()> {
        let mut stdout = io::stdout().lock();
        if self.stdout {
            stdout.write_all(visible(json).as_bytes())?;
            if !json.ends_with('\n') {
                stdout.write_all(b"\n")?;
            }
        } else {
            stdout.write_all(json.as_bytes())?;
        }
        stdout.flush()
    }

    fn shown<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.stderr { visible(text) } else { Cow::Borrowed(text) }
    }

    fn end_line(&mut self) {
        let mut line = std::mem::take(&mut self.line);
        if !line.is_empty() || self.open {
            line.push('\n');
            let line = self.shown(&line).into_owned();
            self.print(&line);
        }
    }

    fn end_bar(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    /// A stderr that is gone changes nothing about the run.
    fn print(&mut self, text: &str) {
        self.open = !text.ends_with('\n');
        let print = || {
            let mut stderr = io::stderr().lock();
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

/// A status of somebody else, with its causes, in a line.
pub(super) fn cause(status: &Status) -> String {
    let mut text = format!("{:?}: {}", status.code(), status.message());
    let mut source = status.source();
    while let Some(error) = source {
        let further = error.to_string();
        if !text.contains(&further) {
            text = format!("{text}: {further}");
        }
        source = error.source();
    }
    text
}

fn is_progress(line: &str) -> bool {
    let Some(json) = line.strip_prefix(PROGRESS) else { return false };
    line.ends_with('\n')
        && serde_json::from_str::<serde_json::Value>(json).is_ok_and(|value| value["progress"].is_number())
}

/// Text whose control characters are written out, but for tabs and line ends; and those that reverse the text.
fn visible(text: &str) -> Cow<'_, str> {
    let hidden = |c: char| {
        (c.is_control() && c != '\n' && c != '\t')
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(hidden) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\r' if chars.peek() == Some(&'\n') => {}
            c if hidden(c) => shown.extend(c.escape_unicode()),
            c => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn control_characters_are_written_out() {
        for (text, shown) in [
            ("plain\ttext\nü 漢", "plain\ttext\nü 漢"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
            ("dos\r\nline\rover", "dos\nline\\u{d}over"),
            ("\u{9b}31m\u{7f}\0", "\\u{9b}31m\\u{7f}\\u{0}"),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(visible(text), shown);
        }
    }

    #[test]
    fn lines_of_progress() {
        assert!(is_progress("::progress {\"progress\": 3, \"total\": 10}\n"));
        for other in ["::progress 3\n", "::progress {\"total\": 10}\n", "x\n", "::progress {\"progress\": 3", ""] {
            assert!(!is_progress(other), "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_but_tabs_and_line_ends_gets_through(text in "\\PC{0,8}[\u{0}-\u{a0}]{0,16}\\PC{0,8}") {
            let shown = visible(&text);
            prop_assert!(shown.chars().all(|c| !c.is_control() || c == '\n' || c == '\t'));
        }
    }
}
