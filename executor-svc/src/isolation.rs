//! What slots are confined by: the levels, the kinds of slots, what the operator chose, and what is in force. Values
//! alone; a slot applies them to itself in `slot/confine.rs`.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// How far a slot is confined; each level has what is below it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Not at all.
    None,
    /// No program gives a skill more rights than its slot has.
    NoNewPrivs,
    /// Priority, processors and limits of other processes stay as they are; in safe slots modes, owners and times of
    /// files, too.
    Seccomp,
    /// Files, by Landlock: the executor's own are closed, and safe slots write nothing but their scratch directory.
    Files,
    /// Signals, tracing and abstract sockets stay within the slot.
    #[default]
    FilesAndSignals,
}

impl Level {
    /// All, from the lowest.
    pub const ALL: [Self; 5] = [Self::None, Self::NoNewPrivs, Self::Seccomp, Self::Files, Self::FilesAndSignals];

    /// As flags, logs and GetStatus write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::NoNewPrivs => "no_new_privs",
            Self::Seccomp => "seccomp",
            Self::Files => "files",
            Self::FilesAndSignals => "files+signals",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Level {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|level| level.as_str() == text).ok_or(())
    }
}

/// A kind of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// For safe skills: they write nothing but their scratch directory.
    Safe,
    /// For mutating and dangerous skills: they write what the operator lets them.
    Writing,
    /// For skills whose entry is a wrapper that confines them: no level of ours, which would keep it from that.
    SelfConfined,
}

impl Flavour {
    /// As logs, and arguments of slots, write it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Safe => "safe",
            Self::Writing => "writing",
            Self::SelfConfined => "self-confined",
        }
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The user that skills run as, when it is not the executor's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunAs {
    /// Never 0.
    pub uid: u32,
    /// Its only group.
    pub gid: u32,
}

impl fmt::Display for RunAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.uid, self.gid)
    }
}

impl FromStr for RunAs {
    type Err = ();

    /// `UID` or `UID:GID`; without a group it has the user's number.
    fn from_str(text: &str) -> Result<Self, ()> {
        let (uid, gid) = text.split_once(':').unwrap_or((text, text));
        // The highest number means "no change" to the kernel.
        let number = |text: &str| text.parse::<u32>().ok().filter(|n| *n != 0 && *n != u32::MAX).ok_or(());
        Ok(Self { uid: number(uid)?, gid: number(gid)? })
    }
}

/// What the operator chose for the slots of a pool.
#[derive(Clone, Debug, Default)]
pub struct Isolation {
    /// No slot is confined further, even where it could be.
    pub at_most: Level,
    /// A pool does not start without it.
    pub required: Option<Level>,
    /// What is open and closed at level [`Level::Files`], which is not reached without it.
    pub files: Option<Files>,
    /// Whom slots become.
    pub run_as: Option<RunAs>,
    /// Whether slots have no sockets but those of the unix domain.
    pub deny_network: bool,
    /// Names of skills that run in self-confined slots.
    pub self_confined: BTreeSet<String>,
}

impl Isolation {
    /// The kind of slot that a skill runs in. `writes` for mutating and dangerous ones.
    #[must_use]
    pub fn flavour(&self, skill: &str, writes: bool) -> Flavour {
        if self.self_confined.contains(skill) {
            Flavour::SelfConfined
        } else if writes {
            Flavour::Writing
        } else {
            Flavour::Safe
        }
    }
}

/// What is open and closed to skills.
#[derive(Clone, Debug)]
pub struct Files {
    /// The executor's state directory, which exists. Closed, but for the packages in `store`, which are read, and a
    /// slot's own directory in `scratch`.
    pub state: PathBuf,
    /// Other files of the executor that no skill may read: tokens and keys.
    pub secrets: Vec<PathBuf>,
    /// What writing slots may write; `None` for all that the user may.
    pub writable: Option<Vec<PathBuf>>,
}

/// What a slot has applied to itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InForce {
    /// [`Level::NoNewPrivs`].
    pub no_new_privs: bool,
    /// [`Level::Seccomp`].
    pub seccomp: bool,
    /// [`Level::Files`].
    pub files: bool,
    /// What [`Level::FilesAndSignals`] adds.
    pub signals: bool,
}

impl InForce {
    /// The highest level that it has with all below.
    #[must_use]
    pub fn level(self) -> Level {
        let has = [self.no_new_privs, self.seccomp, self.files, self.signals];
        Level::ALL[has.iter().take_while(|has| **has).count()]
    }

    /// What of it both have.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self::from_byte(self.to_byte() & other.to_byte())
    }

    /// For GetStatus and the log: a level that is in force is named, whatever is above it.
    #[must_use]
    pub fn names(self) -> Vec<String> {
        let signals = if self.files { Level::FilesAndSignals.as_str() } else { "signals" };
        let named = [
            (self.no_new_privs, Level::NoNewPrivs.as_str()),
            (self.seccomp, Level::Seccomp.as_str()),
            (self.files, Level::Files.as_str()),
            (self.signals, signals),
        ];
        named.into_iter().filter(|(has, _)| *has).map(|(_, name)| name.to_owned()).collect()
    }

    pub(crate) fn to_byte(self) -> u8 {
        let bits = [self.no_new_privs, self.seccomp, self.files, self.signals];
        bits.into_iter().enumerate().map(|(at, has)| u8::from(has) << at).sum()
    }

    pub(crate) fn from_byte(byte: u8) -> Self {
        let bit = |at: u8| byte & (1 << at) != 0;
        Self { no_new_privs: bit(0), seccomp: bit(1), files: bit(2), signals: bit(3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_has_all_below_it() {
        let (no_new_privs, seccomp, files, signals) = (true, true, true, true);
        let all = InForce { no_new_privs, seccomp, files, signals };
        assert_eq!(all.level(), Level::FilesAndSignals);
        assert_eq!(all.names(), ["no_new_privs", "seccomp", "files", "files+signals"]);
        assert_eq!(InForce { seccomp: false, ..all }.level(), Level::NoNewPrivs);
        assert_eq!(InForce { files: false, ..all }.names(), ["no_new_privs", "seccomp", "signals"]);
        assert_eq!(InForce::default().level(), Level::None);
        for byte in 0..16 {
            assert_eq!(InForce::from_byte(byte).to_byte(), byte);
        }
        for level in Level::ALL {
            assert_eq!(level.as_str().parse(), Ok(level));
        }
    }

    #[test]
    fn users_are_numbers_and_never_root() {
        assert_eq!("65534".parse(), Ok(RunAs { uid: 65534, gid: 65534 }));
        assert_eq!("1000:100".parse(), Ok(RunAs { uid: 1000, gid: 100 }));
        for wrong in ["", "0", "1000:0", "0:1000", "nobody", "1:2:3", "-1", "4294967295", "1:"] {
            assert_eq!(wrong.parse::<RunAs>(), Err(()), "{wrong}");
        }
    }

    #[test]
    fn a_named_skill_is_confined_by_itself_whatever_its_class() {
        let isolation = Isolation { self_confined: ["boxed".to_owned()].into(), ..Isolation::default() };
        assert_eq!(isolation.flavour("boxed", true), Flavour::SelfConfined);
        assert_eq!(isolation.flavour("other", true), Flavour::Writing);
        assert_eq!(isolation.flavour("other", false), Flavour::Safe);
    }
}
