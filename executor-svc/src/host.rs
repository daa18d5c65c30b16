//! What this machine has, or the container that is around this process: memory, process ids, open files.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Bytes of memory that this process and all that it starts may use.
#[must_use]
pub fn memory() -> Option<u64> {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
        line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
    });
    smallest(total, cgroup_limit("memory", "memory.max", "memory.limit_in_bytes"))
}

/// Processes and threads that there may be at once.
#[must_use]
pub fn process_ids() -> Option<u64> {
    let all = fs::read_to_string("/proc/sys/kernel/pid_max").ok().and_then(|text| text.trim().parse().ok());
    smallest(all, cgroup_limit("pids", "pids.max", "pids.max"))
}

/// Lets this process have as many open files as it may, and returns how many it had, and may have. Programs that look at
/// all their descriptors, or use select(2), want the lower number: skills start with it.
#[must_use]
pub fn raise_open_files() -> (u64, u64) {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (before, most) = (current.unwrap_or(u64::MAX), maximum.unwrap_or(u64::MAX));
    match setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        Ok(()) => (before, most),
        Err(error) => {
            tracing::warn!(%error, before, most, "the limit on open files cannot be raised");
            (before, before)
        }
    }
}

fn smallest(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    one.into_iter().chain(other).min()
}

/// The lowest limit of the groups that this process is in, from its own to the root that can be seen.
fn cgroup_limit(controller: &str, v2: &str, v1: &str) -> Option<u64> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let places = groups.lines().filter_map(|line| place(line, controller, v2, v1));
    places.flat_map(|(root, group, file)| limits(&root, &group, file)).min()
}

/// Where a line of /proc/self/cgroup says that a limit may be: the mount, the group in it, the file.
fn place<'a>(line: &str, controller: &str, v2: &'a str, v1: &'a str) -> Option<(PathBuf, PathBuf, &'a str)> {
    let mut parts = line.splitn(3, ':');
    let (_, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
    let group = PathBuf::from(group.trim_start_matches('/'));
    let mount = Path::new("/sys/fs/cgroup");
    match controllers {
        "" => Some((mount.to_owned(), group, v2)),
        names => names.split(',').any(|name| name == controller).then(|| (mount.join(controller), group, v1)),
    }
}

fn limits(root: &Path, group: &Path, file: &str) -> Vec<u64> {
    // In a container the group may be told as it is seen from outside: then only the root is there.
    let read = |group: &Path| fs::read_to_string(root.join(group).join(file)).ok()?.trim().parse().ok();
    group.ancestors().filter_map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_some() {
        assert!(memory().unwrap() > 64 << 20);
        assert!(process_ids().unwrap() > 100);
    }

    #[test]
    fn groups_are_found_in_both_versions() {
        let at = |line| place(line, "memory", "memory.max", "memory.limit_in_bytes");
        let v2 = (PathBuf::from("/sys/fs/cgroup"), PathBuf::from("a/b"), "memory.max");
        assert_eq!(at("0::/a/b"), Some(v2));
        let v1 = (PathBuf::from("/sys/fs/cgroup/memory"), PathBuf::from("x"), "memory.limit_in_bytes");
        assert_eq!(at("9:hugetlb,memory:/x"), Some(v1));
        assert_eq!(at("9:cpu:/x"), None);
        assert_eq!(at("nonsense"), None);
    }

    #[test]
    fn the_lowest_on_the_way_counts() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("a/b")).unwrap();
        fs::write(root.path().join("a/b/memory.max"), "max\n").unwrap();
        fs::write(root.path().join("a/memory.max"), "4096\n").unwrap();
        fs::write(root.path().join("memory.max"), "8192\n").unwrap();
        assert_eq!(limits(root.path(), Path::new("a/b"), "memory.max"), [4096, 8192]);
        assert_eq!(limits(root.path(), Path::new("not/seen"), "memory.max"), [8192]);
    }
}
