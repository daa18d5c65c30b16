//! What was measured, round by round, and what is to be reached.

/// A row a figure: its values, and the goal.
#[derive(Default)]
pub(crate) struct Rows(Vec<(String, Goal, Vec<f64>)>);

/// What is to be reached.
#[derive(Clone, Copy)]
pub(crate) enum Goal {
    None,
    AtMost(f64),
    AtLeast(f64),
}

impl Rows {
    pub(crate) fn add(&mut self, what: impl Into<String>, value: f64, goal: Goal) {
        let what = what.into();
        match self.0.iter_mut().find(|row| row.0 == what) {
            Some(row) => row.2.push(value),
            None => self.0.push((what, goal, vec![value])),
        }
    }

    pub(crate) fn print(&mut self, rounds: usize) {
        println!("{rounds} rounds: median [least..most]");
        for (what, goal, values) in &mut self.0 {
            values.sort_by(f64::total_cmp);
            let (least, middle, most) = (values[0], values[values.len() / 2], values[values.len() - 1]);
            let said = |reached| if reached { "reached" } else { "missed" };
            let verdict = match *goal {
                Goal::None => String::new(),
                Goal::AtMost(goal) => format!("at most {goal}: {}", said(middle <= goal)),
                Goal::AtLeast(goal) => format!("at least {goal}: {}", said(middle >= goal)),
            };
            println!("{what:>58} {middle:>9.3} [{least:.3}..{most:.3}]  {verdict}");
        }
    }
}
