//! What becomes of memory that a service has freed: the system gets it back. Knows the C library of GNU; elsewhere it does
//! nothing.
//!
//! That library asks the system for large pieces one by one, and gives each back when it is freed; but the first that is
//! freed raises the size from which it does so, up to 32 MiB, and what its threads may keep with it, each twice that. A
//! service that has passed large results on then holds hundreds of megabytes that nobody uses, for as long as it lives.
//! Fixed, the sizes stay as they are at the start. They can be set only by a variable that is there when a program starts.

use std::env;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// From how many free bytes on at the end of the heap these are given back. Set, none of its sizes changes by itself.
const VARIABLE: &str = "MALLOC_TRIM_THRESHOLD_";
/// As the library itself begins.
const BYTES: &str = "131072";

/// Becomes the same program again with the variable set, where it is not: with the same arguments, process id and open
/// files. To be called before anything is begun. Where that cannot be done, nothing happens: only memory is lost by it.
pub fn give_back() {
    if !cfg!(target_env = "gnu") || env::var_os(VARIABLE).is_some() {
        return;
    }
    // By its path: the process is called by its last part.
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    #[expect(clippy::disallowed_methods, reason = "this starts no process, but replaces this one")]
    let mut again = Command::new(program);
    if let Some(name) = arguments.next() {
        again.arg0(name);
    }
    let _failed = again.args(arguments).env(VARIABLE, BYTES).exec();
}
