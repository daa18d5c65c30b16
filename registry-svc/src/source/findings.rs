//! What is found wrong or doubtful while a candidate is read, until it becomes the candidate's diagnostics.

use super::{Diagnostic, Severity, Stage};

/// Most errors, and most warnings, of one candidate that are kept: a report is sent and read.
const MOST: usize = 100;
/// Most characters of a message, which may quote what the file says.
const MOST_CHARS: usize = 1000;

/// An error: the candidate stays out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) code: &'static str,
    pub(crate) stage: Stage,
    pub(crate) message: String,
    pub(crate) line: u32,
    pub(crate) column: u32,
}

impl Fault {
    /// One that means the whole file.
    pub(crate) fn file(code: &'static str, stage: Stage, message: impl Into<String>) -> Self {
        Self::at(code, stage, (0, 0), message)
    }

    /// One with a position.
    pub(crate) fn at(code: &'static str, stage: Stage, (line, column): (u32, u32), message: impl Into<String>) -> Self {
        Self { code, stage, message: message.into(), line, column }
    }
}

/// All that was found about one candidate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Findings {
    warnings: Vec<Diagnostic>,
    faults: Vec<Fault>,
    /// How many more there were.
    left_out: usize,
}

impl Findings {
    /// Adds an error.
    pub(crate) fn fault(&mut self, fault: Fault) {
        if self.is_full() {
            self.left_out += 1;
            return;
        }
        let message = shortened(fault.message, MOST_CHARS);
        self.faults.push(Fault { message, ..fault });
    }

    /// Whether no more errors are kept, so that looking for more is in vain.
    pub(crate) fn is_full(&self) -> bool {
        self.faults.len() >= MOST
    }

    /// Whether no more warnings are kept.
    pub(crate) fn has_all_warnings(&self) -> bool {
        self.warnings.len() >= MOST
    }

    /// Adds an error in JSON, YAML or types.
    pub(crate) fn parse(&mut self, code: &'static str, position: (u32, u32), message: impl Into<String>) {
        self.fault(Fault::at(code, Stage::Parse, position, message));
    }

    /// Adds an error in values or files.
    pub(crate) fn build(&mut self, code: &'static str, position: (u32, u32), message: impl Into<String>) {
        self.fault(Fault::at(code, Stage::Build, position, message));
    }

    /// Adds a warning.
    pub(crate) fn warn(&mut self, code: &'static str, (line, column): (u32, u32), message: impl Into<String>) {
        if self.has_all_warnings() {
            self.left_out += 1;
            return;
        }
        let message = shortened(message.into(), MOST_CHARS);
        self.warnings.push(Diagnostic { severity: Severity::Warning, code, message, line, column });
    }

    /// Which half failed, if any.
    pub(crate) fn failed(&self) -> Option<Stage> {
        match self.faults.iter().any(|fault| fault.stage == Stage::Parse) {
            true => Some(Stage::Parse),
            false => self.faults.first().map(|_| Stage::Build),
        }
    }

    /// In order of their lines. Where parsing failed, what building made of the rest is left out: it would mislead.
    pub(crate) fn into_diagnostics(self) -> Vec<Diagnostic> {
        let failed = self.failed();
        let mut all = self.warnings;
        all.extend(self.faults.into_iter().filter(|fault| Some(fault.stage) == failed).map(diagnostic));
        all.sort_by_key(|d| (d.line, d.column));
        if let Some(last) = all.last_mut().filter(|_| self.left_out > 0) {
            last.message.push_str(&format!("; {} more are left out here", self.left_out));
        }
        all
    }
}

/// At most so many characters, with a mark where some are missing.
pub(crate) fn shortened(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// An error in parsing says where in its text too, for the loader's log line has nothing else.
fn diagnostic(fault: Fault) -> Diagnostic {
    let Fault { code, stage, message, line, column } = fault;
    let message = match (stage, line, column) {
        (Stage::Build, ..) | (_, 0, _) => message,
        (Stage::Parse, _, 0) => format!("line {line}: {message}"),
        (Stage::Parse, ..) => format!("line {line} column {column}: {message}"),
    };
    Diagnostic { severity: Severity::Error, code, message, line, column }
}
