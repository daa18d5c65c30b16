//! The capabilities that a slot of root gives up for good, with all that it starts: those that lead around Landlock and
//! the filters. Others (files, users, network, time) are what skills of root are for. Knows no flavour.

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities};

/// Since Linux 6.13 who may monitor performance reads every process' memory and environment in /proc, whatever Landlock
/// says; `SYS_ADMIN` counts as that, and as `BPF`. The others change the kernel, or read what it hides.
const GIVEN_UP: CapabilitySet = CapabilitySet::SYS_PTRACE
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_MODULE)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::CHECKPOINT_RESTORE);

/// Gives them up: this process has one thread. Nothing happens where it has none of them.
pub(super) fn give_up() -> Result<(), Errno> {
    let mut sets = capabilities(None)?;
    // Before the others: it takes a capability. Without that one nothing can be gained from the set, for a slot whose
    // capabilities are given up has given up new privileges before.
    if sets.effective.contains(CapabilitySet::SETPCAP) {
        for capability in GIVEN_UP.iter() {
            match remove_capability_from_bounding_set(capability) {
                // An older kernel does not know it.
                Ok(()) | Err(Errno::INVAL) => {}
                Err(error) => return Err(error),
            }
        }
    }
    if !(sets.permitted | sets.inheritable).intersects(GIVEN_UP) {
        return Ok(());
    }
    // The ambient ones go with these.
    sets.effective.remove(GIVEN_UP);
    sets.permitted.remove(GIVEN_UP);
    sets.inheritable.remove(GIVEN_UP);
    set_capabilities(None, sets)
}
