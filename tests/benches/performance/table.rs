//! What was measured, round by round, and what is to be reached. Measures nothing.

use std::fmt::Write as _;

/// What a row is to reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    /// It is told beside the others.
    None,
}

/// The rows, in the order in which they were first added.
#[derive(Debug, Default)]
pub(crate) struct Table(Vec<Row>);

#[derive(Debug)]
struct Row {
    what: String,
    against: &'static str,
    goal: Goal,
    values: Vec<f64>,
}

impl Table {
    /// One round's value.
    pub(crate) fn add(&mut self, what: impl Into<String>, against: &'static str, goal: Goal, value: f64) {
        let what = what.into();
        match self.0.iter_mut().find(|row| row.what == what && row.against == against) {
            Some(row) => row.values.push(value),
            None => self.0.push(Row { what, against, goal, values: vec![value] }),
        }
    }

    pub(crate) fn print(&self) {
        crate::say(&format!("{:<56} {:<26} {:>24}  goal", "what", "against", "median [least..most]"));
        for Row { what, against, goal, values } in &self.0 {
            crate::say(&format!("{what:<56} {against:<26} {:>24}  {}", spread(values), goal.verdict(middle(values))));
        }
    }
}

impl Goal {
    fn verdict(self, value: f64) -> String {
        let (word, goal, reached) = match self {
            Self::AtLeast(goal) => ("at least", goal, value >= goal),
            Self::AtMost(goal) => ("at most", goal, value <= goal),
            Self::None => return String::new(),
        };
        format!("{word} {goal}: {}", if reached { "reached" } else { "missed" })
    }
}

/// The median, the smallest and the largest.
fn spread(values: &[f64]) -> String {
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(least, most), v| (least.min(*v), most.max(*v)));
    let digits = if most >= 100.0 { 0 } else { 2 };
    let mut text = String::new();
    // Writing to a String does not fail.
    let _ = write!(text, "{:.digits$} [{least:.digits$}..{most:.digits$}]", middle(values));
    text
}

/// The median.
pub(crate) fn middle(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
