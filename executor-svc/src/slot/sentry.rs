//! The thread of a slot that sees to it that a run stays within its limits. It is the only one that is not nicer than the
//! skills: among some hundred processes that want to run, a thread of their own priority would wait for seconds, and
//! meanwhile there would be thousands. It looks at the number of all processes of the system, which is one cheap call,
//! forty times a second, and at the run's own ten times a second; where there are many more than at the start, it stops
//! the tree before it counts, since a tree that forks holds up whoever looks at it. It reaps nobody and tells nobody.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{getpriority_process, setpriority_process};
use rustix::system::sysinfo;

use super::Excess;
use super::limits::Limits;
use super::sample::Sampler;
use super::supervisor::Tree;

/// Between two looks at the system.
const TICK: Duration = Duration::from_millis(25);
/// Without a run for so long, the thread sleeps until there is one. A wake costs more than a few idle looks.
const STAYS_AWAKE: Duration = Duration::from_secs(1);
/// So much nicer than the executor, the slot's thread that starts skills is, and with it the skills.
const NICER: i32 = 5;
/// Fewer new processes in the whole system are no reason to stop anybody.
const FEW: u64 = 128;
/// Between two looks at a tree that was stopped for it and went on.
const STOPPED_AT_MOST_EVERY: Duration = Duration::from_millis(250);
/// A tree over its limit that has not ended in this time is killed once more.
const KILLED_WITHIN: Duration = Duration::from_millis(20);
const STACK: usize = 128 * 1024;

/// The slot's end of it.
#[derive(Debug)]
pub(super) struct Sentry {
    /// `None` where nothing is limited.
    post: Option<Arc<Post>>,
}

#[derive(Debug, Default)]
struct Post {
    state: Mutex<State>,
    changed: Condvar,
}

/// What the two threads share. Nobody is killed by a pid while it is held.
#[derive(Debug, Default)]
pub(super) struct State {
    run: Option<Watched>,
    asleep: bool,
}

/// A run, from before its start to the end of its tree.
#[derive(Clone, Copy, Debug)]
struct Watched {
    began: Instant,
    /// Processes in the system when it began, or when it was last found innocent.
    before: u16,
    /// What it had too much of: the tree is killed until none is left.
    excess: Option<Excess>,
    told: bool,
}

impl Sentry {
    /// Starts the thread, and makes the calling one nicer. To be called when the slot is as confined as it will be.
    pub(super) fn start(limits: Limits, tree: Tree) -> io::Result<Self> {
        if limits.memory.is_none() && limits.processes.is_none() {
            return Ok(Self { post: None });
        }
        let post = Arc::new(Post::default());
        let own = Arc::clone(&post);
        thread::Builder::new().name("sentry".into()).stack_size(STACK).spawn(move || own.stand(limits, tree))?;
        // The kernel's niceness is a thread's. What cannot be had is not missed until somebody forks without end.
        if let Ok(now) = getpriority_process(None) {
            let _ = setpriority_process(None, now + NICER);
        }
        Ok(Self { post: Some(post) })
    }

    /// A run is about to be started.
    pub(super) fn begin(&self) {
        let Some(post) = &self.post else { return };
        let before = sysinfo().procs;
        let mut state = post.state();
        state.run = Some(Watched { began: Instant::now(), before, excess: None, told: false });
        if state.asleep {
            post.changed.notify_one();
        }
    }

    /// What the run had too much of, once.
    pub(super) fn excess(&self) -> Option<Excess> {
        let mut state = self.post.as_ref()?.state();
        let run = state.run.as_mut().filter(|run| !run.told)?;
        run.told = run.excess.is_some();
        run.excess
    }

    /// To be held while children are reaped.
    pub(super) fn quiet(&self) -> Option<MutexGuard<'_, State>> {
        self.post.as_ref().map(|post| post.state())
    }

    /// The run is over; nothing is killed from here on.
    pub(super) fn end(&self) {
        if let Some(post) = &self.post {
            post.state().run = None;
        }
    }
}

impl Post {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(&self, state: MutexGuard<'a, State>, limit: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    fn stand(&self, limits: Limits, tree: Tree) {
        let mut sampler = Sampler::new(limits, Instant::now());
        let mut looked_at = None;
        let mut last_run = Instant::now();
        let mut state = self.state();
        loop {
            let Some(run) = &mut state.run else {
                state = if last_run.elapsed() < STAYS_AWAKE {
                    self.wait(state, TICK)
                } else {
                    state.asleep = true;
                    let mut woken = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    woken.asleep = false;
                    woken
                };
                continue;
            };
            last_run = Instant::now();
            if run.excess.is_some() {
                tree.kill();
                state = self.wait(state, KILLED_WITHIN);
                continue;
            }
            if looked_at != Some(run.began) {
                looked_at = Some(run.began);
                sampler = Sampler::new(limits, run.began);
            }
            if let Some(limit) = limits.processes
                && grown(run.before) > (limit / 2).max(FEW)
                && sampler.may_look_again(STOPPED_AT_MOST_EVERY)
            {
                tree.stop();
                run.excess = sampler.measure();
                if run.excess.is_some() {
                    continue;
                }
                tree.go_on();
                // What there is now is no reason to look once more.
                run.before = sysinfo().procs;
            }
            let began = run.began;
            drop(state);
            let excess = sampler.look();
            state = self.state();
            if let Some(run) = state.run.as_mut().filter(|run| run.began == began)
                && excess.is_some()
            {
                run.excess = excess;
                continue;
            }
            state = self.wait(state, TICK);
        }
    }
}

/// How many more processes there are in the system. The kernel counts them in 16 bits.
fn grown(before: u16) -> u64 {
    let more = sysinfo().procs.wrapping_sub(before);
    // Beyond the half, there are fewer.
    if more > u16::MAX / 2 { 0 } else { more.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_counted_across_the_kernels_16_bits() {
        let now = sysinfo().procs;
        // Others start and end processes meanwhile.
        assert!(grown(now) < 5000);
        assert!((1000..6000).contains(&grown(now.wrapping_sub(1000))));
        assert_eq!(grown(now.wrapping_add(10_000)), 0);
    }
}
