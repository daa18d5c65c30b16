//! What a slot does to itself once, at its start, so that a run costs nothing: a session of its own, clean signals, no
//! descriptor to pass on, no new privileges, and the signal scope, which is believed only when it was proved. Everything
//! here is inherited by the skills. Knows no job.

use std::fs::{File, OpenOptions, read_to_string};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use landlock::{CompatLevel, Compatible, Ruleset, RulesetAttr, Scope};
use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Pid, Signal, chdir, getppid, set_child_subreaper, set_dumpable_behavior, setsid,
    test_kill_process,
};
use rustix::stdio::dup2_stdin;
use rustix::thread::{set_name, set_no_new_privs};

/// The steps that every slot takes. Descriptor 0, its socket, is moved out of the way and returned.
pub(super) fn settle() -> io::Result<OwnedFd> {
    let socket = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)?;
    let null: File = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdin(&null)?;
    // Whoever started the executor may have left descriptors open for it; skills get none of them.
    close_fds::set_fds_cloexec(3, &[]);
    reset_signals()?;
    set_name(c"skillyard-slot")?;
    chdir("/")?;
    // A skill that reads /dev/tty would be stopped by the operator's terminal. EPERM: it leads a session already.
    match setsid() {
        Ok(_) | Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    set_child_subreaper(Some(Pid::INIT))?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(socket)
}

/// Takes away what a setuid program would give: a tree that cannot change its user can be signalled to its end.
pub(super) fn drop_privileges() -> io::Result<()> {
    Ok(set_no_new_privs(true)?)
}

/// Enters a domain that signals do not leave, and returns whether that was proved. Within it, a signal to every process
/// reaches this slot's tree and nobody else.
pub(super) fn scope_signals() -> bool {
    let Some(outsider) = getppid() else { return false };
    // If the outsider could not be signalled anyway, nothing would be proved below.
    if test_kill_process(outsider).is_err() {
        return false;
    }
    let entered = Ruleset::default()
        .set_compatibility(CompatLevel::HardRequirement)
        .scope(Scope::Signal)
        .and_then(Ruleset::create)
        .and_then(landlock::RulesetCreated::restrict_self);
    entered.is_ok() && test_kill_process(outsider) == Err(Errno::PERM)
}

/// SIGCHLD ignored would have the kernel throw the statuses of children away: undone for this process.
pub(super) fn heed_children() -> io::Result<()> {
    let signal = Signal::CHILD.as_raw();
    if ignored_signals() & bit(signal) != 0 { heed(signal) } else { Ok(()) }
}

/// Ignored and blocked signals are inherited by whatever is started, and the standard library resets only SIGPIPE.
fn reset_signals() -> io::Result<()> {
    SigSet::empty().thread_set_mask()?;
    let ignored = ignored_signals();
    for signal in (1..=64).filter(|signal| ignored & bit(*signal) != 0) {
        if !LEFT_ALONE.contains(&signal) {
            heed(signal)?;
        }
    }
    Ok(())
}

/// Those for which signal-hook sets no handler, or nobody can; SIGPIPE, which spawning resets; and two that belong to the
/// C library.
const LEFT_ALONE: [i32; 8] = [
    Signal::ILL.as_raw(),
    Signal::FPE.as_raw(),
    Signal::SEGV.as_raw(),
    Signal::KILL.as_raw(),
    Signal::STOP.as_raw(),
    Signal::PIPE.as_raw(),
    32,
    33,
];

/// A handler, unlike an ignored signal, is not inherited: exec puts the default in its place.
fn heed(signal: i32) -> io::Result<()> {
    signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false))).map(drop)
}

/// One bit a signal, the lowest for signal 1; none where /proc is missing.
fn ignored_signals() -> u64 {
    let status = read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}
