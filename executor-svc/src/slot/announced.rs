//! What the first slot of each flavour found to be in force, which the executor tells and every later slot must have.
//! Knows no process.

use std::io;

use crate::isolation::{Flavour, InForce, Isolation, Level};

/// By flavour.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Announced {
    safe: InForce,
    writing: InForce,
    self_confined: InForce,
}

impl Announced {
    pub(super) fn of(&self, flavour: Flavour) -> InForce {
        match flavour {
            Flavour::Safe => self.safe,
            Flavour::Writing => self.writing,
            Flavour::SelfConfined => self.self_confined,
        }
    }

    pub(super) fn set(&mut self, flavour: Flavour, in_force: InForce) {
        match flavour {
            Flavour::Safe => self.safe = in_force,
            Flavour::Writing => self.writing = in_force,
            Flavour::SelfConfined => self.self_confined = in_force,
        }
    }

    /// What all slots have but the self-confined ones.
    pub(super) fn common(&self) -> InForce {
        self.safe.and(self.writing)
    }

    /// # Errors
    /// It is less than what is required.
    pub(super) fn check(&self, isolation: &Isolation) -> io::Result<()> {
        let (required, level) = (isolation.required.unwrap_or(Level::None), self.common().level());
        if level >= required {
            return Ok(());
        }
        let has = self.common().names().join(", ");
        let reason = match required {
            Level::Files => "it needs Landlock ABI 3 (Linux 6.2), switched on in the kernel",
            Level::FilesAndSignals => "it needs Landlock ABI 6 (Linux 6.12), switched on in the kernel",
            _ => "the kernel, or what this process runs in, does not offer it",
        };
        Err(io::Error::other(format!(
            "isolation {required} is required, and what can be had here is {level} (in force: {has}): {reason}; require less, \
             or run it elsewhere"
        )))
    }

    /// For GetStatus and the log.
    pub(super) fn told(&self, isolation: &Isolation) -> Vec<String> {
        let common = self.common();
        let mut told = common.names();
        for flavour in [Flavour::Safe, Flavour::Writing] {
            let more = self.of(flavour).names().into_iter().filter(|name| !common.names().contains(name));
            told.extend(more.map(|name| format!("{name} ({flavour} alone)")));
        }
        if let Some(run_as) = isolation.run_as {
            told.push(format!("run-as {run_as}"));
        } else if rustix::process::geteuid().is_root() {
            told.push("warning: skills run as root, whom little holds: give --run-as UID".to_owned());
        }
        if isolation.deny_network {
            told.push("deny-network".to_owned());
        }
        if !isolation.self_confined.is_empty() {
            let names: Vec<_> = isolation.self_confined.iter().map(String::as_str).collect();
            told.push(format!("none of these levels for self-confined: {}", names.join(", ")));
        }
        told
    }
}
