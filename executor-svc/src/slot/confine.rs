//! What a slot does to itself once, at its start, so that a run costs nothing: a session of its own, clean signals, no
//! descriptor to pass on, and then its isolation, in an order in which each step still may be taken. Everything here is
//! inherited by the skills. Knows no job.

use std::fs::{File, OpenOptions, read_dir, read_to_string};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Pid, Signal, Uid, chdir, getppid, set_child_subreaper, set_dumpable_behavior, setsid,
    test_kill_process,
};
use rustix::stdio::dup2_stdin;
use rustix::thread::{set_name, set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::capabilities;
use super::files::{self, Support};
use super::settings::{Settings, SlotFiles};
use super::syscalls;
use crate::isolation::{InForce, Level, RunAs};

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
    hide()?;
    Ok(socket)
}

/// Keeps other processes of the user from reading this one's memory and environment.
pub(super) fn hide() -> io::Result<()> {
    Ok(set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Applies what the settings ask for and the kernel can do, and returns what that was.
///
/// # Errors
/// Something that the kernel can do failed, or it is less than the settings ask for at least: this process must not
/// become a slot.
pub(super) fn apply(settings: &Settings) -> io::Result<InForce> {
    let wanted = settings.at_most;
    let support = Support::probe();
    let files = settings.files.as_ref().filter(|_| wanted >= Level::Files && support.has_files());
    let outsider = getppid().filter(|outsider| test_kill_process(*outsider).is_ok());
    // If the outsider could not be signalled anyway, nothing would be proved below.
    let signals = wanted >= Level::FilesAndSignals && settings.signal_scope && support.signals && outsider.is_some();
    // Paths are opened while that is still allowed.
    let rules = files::rules(support, settings.flavour, files, signals)?;
    let filters = if wanted >= Level::Seccomp && syscalls::supported() {
        syscalls::filters(settings.flavour, settings.deny_network)?
    } else {
        Vec::new()
    };
    let mut in_force = InForce::default();
    if wanted >= Level::NoNewPrivs {
        // A tree that cannot change its user can be signalled to its end.
        set_no_new_privs(true)?;
        in_force.no_new_privs = true;
    }
    if let Some(rules) = rules {
        rules.restrict_self().map_err(io::Error::other)?;
        in_force.files = files.is_some();
        // Within it, a signal to every process reaches this slot's tree and nobody else. Believed when it was proved.
        in_force.signals = signals && outsider.map(test_kill_process) == Some(Err(Errno::PERM));
        if in_force.no_new_privs {
            capabilities::give_up().map_err(|error| said(error.into(), "cannot give up capabilities".to_owned()))?;
        }
    }
    if let Some(run_as) = settings.run_as {
        become_user(run_as).map_err(|error| said(error, format!("cannot become user {run_as}")))?;
        hide()?;
    }
    syscalls::install(&filters)?;
    in_force.seccomp = !filters.is_empty();
    if let Some(SlotFiles { readable, .. }) = &settings.files
        && let Err(error) = read_dir(readable)
        // Somebody removed it: the next package makes it anew, and other slots are granted that.
        && error.kind() != io::ErrorKind::NotFound
    {
        let what = format!("packages in {} cannot be read by the user that skills run as", readable.display());
        return Err(said(error, what));
    }
    if in_force.and(settings.at_least) != settings.at_least {
        let (has, needs) = (in_force.names().join(", "), settings.at_least.names().join(", "));
        return Err(io::Error::other(format!("it is confined by [{has}], and [{needs}] is needed")));
    }
    if settings.deny_network && !in_force.seccomp {
        return Err(io::Error::other("the network cannot be denied without seccomp"));
    }
    Ok(in_force)
}

/// For good: the user, one group and no other, and with them every capability. This process has one thread.
fn become_user(run_as: RunAs) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(run_as.uid), Gid::from_raw(run_as.gid));
    set_thread_groups(&[])?;
    set_thread_res_gid(gid, gid, gid)?;
    Ok(set_thread_res_uid(uid, uid, uid)?)
}

fn said(error: io::Error, what: String) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
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
