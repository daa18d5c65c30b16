//! The waiting thread: one for the whole process, since whoever waits for all children leaves none for others. It sees
//! at once when a slot stops or ends, and kills what is no slot: the orphans of a dead one. It makes the executor a fit
//! PID 1. It starts nothing, and knows nothing of jobs.

use std::collections::{HashMap, HashSet};
use std::io;
use std::process::Child;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, set_child_subreaper, wait, waitid,
};
use tracing::{debug, error, warn};

use super::{confine, tree};

/// A slot process, never mistaken for a later one that got its pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ward {
    pub(super) pid: Pid,
    serial: u64,
    pool: u64,
}

/// Waits for all children of this process.
#[derive(Debug)]
pub(super) struct Reaper {
    family: Mutex<Family>,
    /// A slot was added, or one ended.
    changed: Condvar,
}

/// This process's children, as far as they are known.
#[derive(Debug, Default)]
struct Family {
    slots: HashMap<Pid, Ward>,
    /// Those that were there before the reaper was, from whatever ran in this process before: waited for, never killed.
    elders: HashSet<Pid>,
    last_serial: u64,
    last_pool: u64,
}

impl Reaper {
    /// The process's own, started at the first call, which makes the process a subreaper.
    pub(super) fn get() -> io::Result<Arc<Self>> {
        static REAPER: OnceLock<Arc<Reaper>> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        let _starting = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(reaper) = REAPER.get() {
            return Ok(Arc::clone(reaper));
        }
        tree::check()?;
        confine::heed_children()?;
        set_child_subreaper(Some(Pid::INIT))?;
        let elders = tree::children()?.into_iter().collect();
        let reaper =
            Arc::new(Self { family: Mutex::new(Family { elders, ..Family::default() }), changed: Condvar::new() });
        let waiting = Arc::clone(&reaper);
        thread::Builder::new().name("reaper".into()).stack_size(256 * 1024).spawn(move || waiting.run())?;
        Ok(Arc::clone(REAPER.get_or_init(|| reaper)))
    }

    /// A number that tells one pool's slots from another's.
    pub(super) fn new_pool(&self) -> u64 {
        let mut family = self.family();
        family.last_pool += 1;
        family.last_pool
    }

    /// Starts a slot by `spawn`. Nobody is classified meanwhile, or a slot that is still unknown would be an orphan.
    pub(super) fn raise(&self, pool: u64, spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Ward> {
        let mut family = self.family();
        let child = spawn()?;
        family.last_serial += 1;
        let ward = Ward { pid: Pid::from_child(&child), serial: family.last_serial, pool };
        family.slots.insert(ward.pid, ward);
        drop(family);
        self.changed.notify_all();
        Ok(ward)
    }

    /// Whether it has not ended.
    pub(super) fn is_alive(&self, ward: Ward) -> bool {
        self.family().slots.get(&ward.pid) == Some(&ward)
    }

    /// SIGKILL to the slot, if it has not ended; what it leaves behind follows it.
    pub(super) fn kill(&self, ward: Ward) {
        let family = self.family();
        // Under the lock it is not reaped, so that the pid is its own.
        if family.slots.get(&ward.pid) == Some(&ward) {
            let _ = kill_process(ward.pid, Signal::KILL);
        }
    }

    /// Waits until all slots of `pool` have ended, and returns whether they have.
    pub(super) fn ended(&self, pool: u64, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut family = self.family();
        while family.slots.values().any(|ward| ward.pool == pool) {
            let Some(left) = deadline.checked_duration_since(Instant::now()) else { return false };
            (family, _) = self.changed.wait_timeout(family, left).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    fn run(&self) {
        let any = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        loop {
            match waitid(WaitId::All, any) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::CHILD) => {
                    self.park();
                    continue;
                }
                Err(error) => {
                    error!(%error, "cannot wait for children; slots that end are not noticed");
                    return;
                }
            }
            if self.collect() {
                self.kill_orphans();
            }
        }
    }

    /// There is no child at all: waits for a slot.
    fn park(&self) {
        let mut family = self.family();
        // Whoever has been waited for by others, a careless library for one, is not there any more.
        if !family.slots.is_empty() && matches!(waitid(WaitId::All, LOOK), Err(Errno::CHILD)) {
            warn!("slots were waited for by something else in this process");
            family.slots.clear();
            self.changed.notify_all();
        }
        while family.slots.is_empty() {
            family = self.changed.wait(family).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes every exit and stop that there is, and returns whether there may be orphans now. Reaping and classifying
    /// are one step under the lock: between them a new slot could get the pid.
    fn collect(&self) -> bool {
        let mut family = self.family();
        let mut orphans = false;
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            if status.stopped() {
                // A slot that is stopped serves nobody. Orphans are stopped by this thread itself.
                if family.slots.contains_key(&pid) {
                    warn!(pid = pid.as_raw_nonzero(), "slot was stopped; it is killed");
                    let _ = kill_process(pid, Signal::KILL);
                }
            } else if family.slots.remove(&pid).is_some() {
                debug!(pid = pid.as_raw_nonzero(), status = status.as_raw(), "slot ended");
                orphans = true;
                self.changed.notify_all();
            } else {
                // It may have had children; an elder's are nobody's orphans yet, but cannot be told from others.
                orphans |= !family.elders.remove(&pid);
            }
        }
        orphans
    }

    /// One attempt. Each that is killed is a reason for the next one, and an orphan appears only by another's end, so
    /// that attempts go on until none is left.
    fn kill_orphans(&self) {
        // Only this thread reaps, so that the pids stay theirs.
        let killed = tree::kill(|| {
            self.collect();
            self.orphans()
        });
        if killed > 0 {
            debug!(killed, "orphans of slots");
        }
    }

    /// Children that are neither slots nor elders.
    fn orphans(&self) -> Vec<Pid> {
        let family = self.family();
        let known = |pid: &Pid| family.slots.contains_key(pid) || family.elders.contains(pid);
        match tree::children() {
            Ok(children) => children.into_iter().filter(|pid| !known(pid)).collect(),
            Err(error) => {
                error!(%error, "cannot list children; a dead slot's processes may be left");
                Vec::new()
            }
        }
    }

    fn family(&self) -> MutexGuard<'_, Family> {
        self.family.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether there is a child at all.
const LOOK: WaitIdOptions = WaitIdOptions::EXITED.union(WaitIdOptions::NOHANG).union(WaitIdOptions::NOWAIT);
