//! What is left of runs that have ended: processes, scratch directories, descriptors. Looks, and says what it found; it
//! ends and removes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use crate::process::{self, Process};
use crate::world::tree;
use crate::{World, eventually};

/// Waits until a world has slots and nothing else: no process of a skill, no zombie, no scratch directory but that of
/// each slot; at most so many. Returns the slots.
///
/// # Panics
/// When there is more, and stays.
pub async fn only_slots(world: &mut World, most: usize) -> Vec<Process> {
    let executor = world.executor_pid();
    let mut found = (Vec::new(), Vec::new());
    // What is left is in the panic, not only that something is.
    let settled = tokio::time::timeout(
        crate::PATIENCE / 2,
        eventually("nothing but slots is left", async || {
            found = (process::descendants(executor), scratch(world));
            let (slots, scratch) = &found;
            let own: BTreeSet<_> = slots.iter().filter_map(own_scratch).collect();
            let is_idle = |p: &Process| p.parent == executor && p.lives() && is_slot(p);
            slots.len() <= most
                && slots.iter().all(is_idle)
                && scratch.iter().all(|path| own.contains(path))
                && world.skill_processes().is_empty()
        }),
    );
    assert!(settled.await.is_ok(), "more than {most} slots is left: {found:#?}, {:#?}", world.skill_processes());
    found.0
}

/// Whether a process is a slot.
#[must_use]
pub fn is_slot(process: &Process) -> bool {
    own_scratch(process).is_some()
}

/// All that there is of scratch directories, those of the slots included.
fn scratch(world: &World) -> Vec<PathBuf> {
    let state = world.path("state").canonicalize().unwrap();
    ["scratch", "discarded"].iter().flat_map(|name| tree(&state.join(name))).collect()
}

/// The directory of a slot, as it was started with. Its program is not for everybody to see.
fn own_scratch(process: &Process) -> Option<PathBuf> {
    let words = std::fs::read(format!("/proc/{}/cmdline", process.pid)).ok()?;
    let path = words.split(|byte| *byte == 0).find_map(|word| word.strip_prefix(b"--scratch="))?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)).components().collect())
}

const OF_ANY_KIND: &str = "of any kind";

/// What a process has when nothing goes on.
#[derive(Debug)]
pub struct Held {
    /// Bytes.
    pub memory: u64,
    /// Descriptors, by kind.
    pub descriptors: BTreeMap<String, usize>,
}

impl Held {
    /// What it has now.
    ///
    /// # Panics
    /// When there is no such process.
    #[must_use]
    pub fn of(pid: i32) -> Self {
        let mut descriptors = BTreeMap::new();
        let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
            // Whoever is not root sees how many the executor has, and not what they are.
            descriptors.insert(OF_ANY_KIND.to_owned(), process::open_files(pid));
            return Self { memory: process::memory(pid, "VmRSS"), descriptors };
        };
        for entry in entries.flatten() {
            let Ok(target) = std::fs::read_link(entry.path()) else { continue };
            // The number of a socket or pipe is another each time.
            let target = target.to_string_lossy();
            let kind = target.split_once(":[").map_or(&*target, |(kind, _)| kind).to_owned();
            *descriptors.entry(kind).or_insert(0) += 1;
        }
        Self { memory: process::memory(pid, "VmRSS"), descriptors }
    }

    /// Waits until a process has no more than this but for so much memory, and what so many more slots take; what it has
    /// then.
    ///
    /// # Panics
    /// When it does not come to that.
    pub async fn no_more_is_held(&self, pid: i32, memory: u64, slots: usize) -> Self {
        let mut now = Self::of(pid);
        let waited = tokio::time::timeout(
            crate::PATIENCE / 2,
            eventually("no more is held than before", async || {
                now = Self::of(pid);
                let had = |kind: &str| self.descriptors.get(kind).copied().unwrap_or_default();
                // A socket, and a descriptor of the process.
                let more = |kind: &str| if kind == OF_ANY_KIND { 2 * slots } else { slots };
                let within = |(kind, now): (&String, &usize)| *now <= had(kind) + more(kind);
                now.memory <= self.memory + memory && now.descriptors.iter().all(within)
            }),
        );
        assert!(waited.await.is_ok(), "{pid}, with {slots} more slots: {now:#?}, and before {self:#?}");
        now
    }
}
