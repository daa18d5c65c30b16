//! What a slot is told at its start, as arguments: the executor writes them, the slot reads them. Decides nothing.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::limits::Limits;
use crate::isolation::{Flavour, InForce, Isolation, Level, RunAs};

/// How one slot confines itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) flavour: Flavour,
    /// What it applies at most.
    pub(super) at_most: Level,
    /// Whether it takes the kernel's signal scope, where it has one.
    pub(super) signal_scope: bool,
    /// What it applies at least; short of that it does not become a slot.
    pub(super) at_least: InForce,
    pub(super) files: Option<SlotFiles>,
    pub(super) run_as: Option<RunAs>,
    pub(super) deny_network: bool,
    pub(super) limits: Limits,
}

/// What is open and closed to one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SlotFiles {
    /// Closed, with all that is below.
    pub(super) closed: Vec<PathBuf>,
    /// Read and executed, although below what is closed.
    pub(super) readable: PathBuf,
    /// The slot's own directory, likewise.
    pub(super) scratch: PathBuf,
    /// What is written by a writing slot; `None` for everything that is not closed.
    pub(super) writable: Option<Vec<PathBuf>>,
}

impl Settings {
    /// For a slot of this flavour. `files` where that level is wanted.
    pub(super) fn new(isolation: &Isolation, flavour: Flavour, signal_scope: bool, files: Option<SlotFiles>) -> Self {
        Self {
            flavour,
            at_most: if flavour == Flavour::SelfConfined { Level::None } else { isolation.at_most },
            signal_scope,
            at_least: InForce::default(),
            files,
            run_as: isolation.run_as,
            // What confines a skill itself may not take a filter without no_new_privs, and has its own ways.
            deny_network: isolation.deny_network && flavour != Flavour::SelfConfined,
            limits: Limits::default(),
        }
    }

    pub(super) fn to_arguments(&self) -> Vec<OsString> {
        let mut arguments = Vec::new();
        let mut put = |name: &str, value: &OsStr| {
            let mut argument = OsString::from(format!("--{name}="));
            argument.push(value);
            arguments.push(argument);
        };
        put("flavour", self.flavour.as_str().as_ref());
        put("at-most", self.at_most.as_str().as_ref());
        put("at-least", self.at_least.to_byte().to_string().as_ref());
        if !self.signal_scope {
            put("no-signal-scope", "".as_ref());
        }
        if let Some(files) = &self.files {
            put("readable", files.readable.as_ref());
            put("scratch", files.scratch.as_ref());
            files.closed.iter().for_each(|path| put("closed", path.as_ref()));
            if let Some(writable) = &files.writable {
                put("writable-alone", "".as_ref());
                writable.iter().for_each(|path| put("writable", path.as_ref()));
            }
        }
        if let Some(run_as) = self.run_as {
            put("run-as", run_as.to_string().as_ref());
        }
        if self.deny_network {
            put("deny-network", "".as_ref());
        }
        put("limits", self.limits.to_argument().as_ref());
        arguments
    }

    /// # Errors
    /// The argument that is not understood.
    pub(super) fn from_arguments(arguments: impl IntoIterator<Item = OsString>) -> Result<Self, OsString> {
        let mut settings = Self {
            flavour: Flavour::Safe,
            at_most: Level::default(),
            signal_scope: true,
            at_least: InForce::default(),
            files: None,
            run_as: None,
            deny_network: false,
            limits: Limits::default(),
        };
        for argument in arguments {
            settings.take(&argument).ok_or(argument)?;
        }
        Ok(settings)
    }

    fn take(&mut self, argument: &OsStr) -> Option<()> {
        let bytes = argument.as_bytes().strip_prefix(b"--")?;
        let at = bytes.iter().position(|byte| *byte == b'=')?;
        let (name, value) = (str::from_utf8(&bytes[..at]).ok()?, OsStr::from_bytes(&bytes[at + 1..]));
        let (path, text) = (|| PathBuf::from(value), value.to_str());
        match name {
            "flavour" => {
                let all = [Flavour::Safe, Flavour::Writing, Flavour::SelfConfined];
                self.flavour = all.into_iter().find(|flavour| Some(flavour.as_str()) == text)?;
            }
            "at-most" => self.at_most = text?.parse().ok()?,
            "at-least" => self.at_least = InForce::from_byte(text?.parse().ok()?),
            "no-signal-scope" => self.signal_scope = false,
            "readable" => self.files().readable = path(),
            "scratch" => self.files().scratch = path(),
            "closed" => self.files().closed.push(path()),
            "writable-alone" => self.files().writable = Some(Vec::new()),
            "writable" => self.files().writable.get_or_insert_default().push(path()),
            "run-as" => self.run_as = Some(text?.parse().ok()?),
            "deny-network" => self.deny_network = true,
            "limits" => self.limits = Limits::from_argument(text?)?,
            _ => return None,
        }
        Some(())
    }

    fn files(&mut self) -> &mut SlotFiles {
        self.files.get_or_insert_with(|| SlotFiles {
            closed: Vec::new(),
            readable: PathBuf::new(),
            scratch: PathBuf::new(),
            writable: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn settings() -> impl Strategy<Value = Settings> {
        let path = || any::<PathBuf>();
        let paths = || prop::collection::vec(path(), 0..3);
        let files = (paths(), path(), path(), prop::option::of(paths()))
            .prop_map(|(closed, readable, scratch, writable)| SlotFiles { closed, readable, scratch, writable });
        let run_as = (1..u32::MAX, 1..u32::MAX).prop_map(|(uid, gid)| RunAs { uid, gid });
        let flavour = prop_oneof![Just(Flavour::Safe), Just(Flavour::Writing), Just(Flavour::SelfConfined)].boxed();
        (flavour, 0..5_usize, any::<bool>(), 0..16_u8, prop::option::of(files), prop::option::of(run_as), any::<bool>())
            .prop_map(|(flavour, level, signal_scope, at_least, files, run_as, deny_network)| Settings {
                flavour,
                at_most: Level::ALL[level],
                signal_scope,
                at_least: InForce::from_byte(at_least),
                files,
                run_as,
                deny_network,
                limits: Limits::default(),
            })
    }

    proptest! {
        #[test]
        fn settings_are_read_as_they_were_written(settings in settings()) {
            prop_assert_eq!(Settings::from_arguments(settings.to_arguments()), Ok(settings));
        }

        #[test]
        fn no_argument_is_too_strange(text in "(--[a-z-]{0,15}=?.{0,9}|.{0,9})") {
            let _ = Settings::from_arguments([text.into()]);
        }
    }
}
