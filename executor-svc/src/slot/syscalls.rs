//! The seccomp filters of one slot: system calls that Landlock does not see. One filter for each way to answer; a system
//! call of another architecture's ABI (32-bit programs) ends its process, since its number would mean something else.
//! Applies nothing by itself.

use std::collections::BTreeMap;
use std::io;

use libc::{c_int, c_long};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::isolation::Flavour;

/// Whether filters can be had on this kernel and architecture.
pub(super) fn supported() -> bool {
    architecture().is_some() && rustix::thread::secure_computing_mode().is_ok()
}

/// The filters of a slot.
pub(super) fn filters(flavour: Flavour, deny_network: bool) -> io::Result<Vec<BpfProgram>> {
    let safe = flavour == Flavour::Safe;
    let mut filters = vec![others_processes(safe)];
    if safe {
        filters.push(calls(ATTRIBUTES.iter().copied(), 0));
    }
    if safe || deny_network {
        // What is submitted to a ring is not seen by a filter: attributes are set there, and sockets made.
        filters.push(calls([libc::SYS_io_uring_setup], libc::ENOSYS));
    }
    if deny_network {
        filters.push(Filter::new(libc::EACCES).when(libc::SYS_socket, &[&[is_not(0, libc::AF_UNIX)]]));
    }
    filters.into_iter().map(Filter::compile).collect()
}

/// Installs them, for the calling thread and all that it starts. It has given up new privileges before.
pub(super) fn install(filters: &[BpfProgram]) -> io::Result<()> {
    filters.iter().try_for_each(|filter| seccompiler::apply_filter(filter).map_err(io::Error::other))
}

/// Refused: limits, priority and processors of another process than the caller. Nobody can tell his own number here, so
/// that it is refused too: 0 is the caller.
fn others_processes(safe: bool) -> Filter {
    let other = |argument| is_not(argument, 0);
    let mut filter = Filter::new(libc::EPERM);
    for call in [
        libc::SYS_prlimit64,
        libc::SYS_sched_setaffinity,
        libc::SYS_sched_setscheduler,
        libc::SYS_sched_setparam,
        libc::SYS_sched_setattr,
    ] {
        filter = filter.when(call, &[&[other(0)]]);
    }
    // A process may enter its slot's process group, and a user has many: only "this process" is taken.
    let process = c_int::try_from(libc::PRIO_PROCESS).unwrap_or(0);
    filter = filter.when(libc::SYS_setpriority, &[&[is_not(0, process)], &[other(1)]]);
    filter = filter.when(libc::SYS_ioprio_set, &[&[is_not(0, IOPRIO_WHO_PROCESS)], &[other(1)]]);
    // A lease on a file of the store, which its owner may take, would hold up whoever opens it.
    filter = filter.when(libc::SYS_fcntl, &[&[is(1, F_SETLEASE)]]);
    if safe {
        let flags: Vec<[SeccompCondition; 1]> = FILE_FLAGS.iter().map(|request| [is(1, *request)]).collect();
        let flags: Vec<&[SeccompCondition]> = flags.iter().map(<[_; 1]>::as_slice).collect();
        for call in IOCTL {
            filter = filter.when(*call, &flags);
        }
    }
    filter
}

/// Answered as if done: modes, owners, times and extended attributes, by path and by descriptor. Landlock does not see
/// them, and programs that unpack, install or copy go on.
const ATTRIBUTES: &[c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utime,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_utimes,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_futimesat,
    libc::SYS_utimensat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    SETXATTRAT,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
    REMOVEXATTRAT,
    FILE_SETATTR,
];

// The newest have one number everywhere (include/uapi/asm-generic/unistd.h).
const FCHMODAT2: c_long = 452;
const SETXATTRAT: c_long = 463;
const REMOVEXATTRAT: c_long = 466;
const FILE_SETATTR: c_long = 469;

/// Requests of ioctl(2) that an owner may make of a file that is open for reading (include/uapi/linux/fs.h, fsverity.h,
/// fscrypt.h): flags such as append-only, the generation, verity, encryption.
const FILE_FLAGS: [u32; 7] = [
    0x4008_6602, // FS_IOC_SETFLAGS
    0x4004_6602, // FS_IOC32_SETFLAGS
    0x401c_5820, // FS_IOC_FSSETXATTR
    0x4008_7602, // FS_IOC_SETVERSION
    0x4004_7602, // FS_IOC32_SETVERSION
    0x4080_6685, // FS_IOC_ENABLE_VERITY
    0x800c_6613, // FS_IOC_SET_ENCRYPTION_POLICY
];

/// The x32 ABI has a number of its own for it.
const IOCTL: &[c_long] = &[
    libc::SYS_ioctl,
    #[cfg(target_arch = "x86_64")]
    514,
];

const IOPRIO_WHO_PROCESS: c_int = 1;
const F_SETLEASE: c_int = 1024;

/// On x86_64 every call has a second number, of the x32 ABI, with the same architecture.
const X32: c_long = 0x4000_0000;

/// Calls that are all answered with one error, or with 0 as if they had been done.
struct Filter {
    error: c_int,
    rules: Vec<(c_long, Vec<Vec<SeccompCondition>>)>,
}

impl Filter {
    fn new(error: c_int) -> Self {
        Self { error, rules: Vec::new() }
    }

    /// Answers `call` when all conditions of one of `cases` hold.
    fn when(mut self, call: c_long, cases: &[&[SeccompCondition]]) -> Self {
        self.rules.push((call, cases.iter().map(|case| case.to_vec()).collect()));
        self
    }

    fn compile(self) -> io::Result<BpfProgram> {
        let architecture = architecture().ok_or(io::ErrorKind::Unsupported)?;
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
        for (call, cases) in self.rules {
            let cases: Result<Vec<_>, _> = cases.into_iter().map(SeccompRule::new).collect();
            let cases = cases.map_err(io::Error::other)?;
            if cfg!(target_arch = "x86_64") {
                rules.insert(call | X32, cases.clone());
            }
            rules.insert(call, cases);
        }
        let error = SeccompAction::Errno(self.error.unsigned_abs());
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, error, architecture).map_err(io::Error::other)?;
        BpfProgram::try_from(filter).map_err(io::Error::other)
    }
}

fn calls(calls: impl IntoIterator<Item = c_long>, error: c_int) -> Filter {
    calls.into_iter().fold(Filter::new(error), |filter, call| filter.when(call, &[]))
}

fn is(argument: u8, value: impl Into<i64>) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Eq, value.into())
}

fn is_not(argument: u8, value: impl Into<i64>) -> SeccompCondition {
    condition(argument, SeccompCmpOp::Ne, value.into())
}

/// The kernel looks at the lower half of these arguments alone, and so does the condition.
fn condition(argument: u8, operator: SeccompCmpOp, value: i64) -> SeccompCondition {
    let value = value.cast_unsigned() & u64::from(u32::MAX);
    match SeccompCondition::new(argument, SeccompCmpArgLen::Dword, operator, value) {
        Ok(condition) => condition,
        Err(_) => unreachable!("system calls have six arguments, and this file names the first two"),
    }
}

fn architecture() -> Option<TargetArch> {
    std::env::consts::ARCH.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_slot_has_filters_that_the_kernel_would_take() {
        for flavour in [Flavour::Safe, Flavour::Writing] {
            for deny_network in [false, true] {
                let filters = filters(flavour, deny_network).unwrap();
                assert!(filters.iter().all(|filter| (1..4096).contains(&filter.len())), "{flavour}");
            }
        }
    }
}
