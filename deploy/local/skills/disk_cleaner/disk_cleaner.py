#!/usr/bin/env python3
"""Deletes old files below one directory, oldest first. Deletes nothing unless dry_run is false.

Arguments come as one JSON object on stdin, the result goes as one to stdout, and every deletion as a line to stderr,
so that it is known even of a run that was ended in the middle.
"""

import fnmatch
import heapq
import json
import os
import pwd
import stat
import sys
import time
from datetime import datetime, timezone

# Nothing in these, nor anything that holds one of them.
SYSTEM_TREES = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/nix", "/proc", "/run", "/sbin", "/sys", "/usr",
    "/var/lib", "/var/spool",
]
# Not these themselves; a directory below them is somebody's decision.
TOP_DIRECTORIES = ["/home", "/media", "/mnt", "/opt", "/root", "/srv", "/tmp", "/var/cache", "/var/log", "/var/tmp"]
# A directory that holds one of these is a working copy of version control: old files in it are not waste.
WORKING_COPY = {".git", ".hg", ".svn"}
LISTED = 200
REPORT_EVERY = 1000


class Refused(Exception):
    """The arguments ask for something that this skill does not do."""


def main():
    arguments = json.load(sys.stdin)
    # Absent, null or anything but false is a dry run: the arguments must say in so many words that files are to go.
    dry_run = arguments.get("dry_run") is not False
    root = checked_root(arguments["directory"])
    found, more = oldest_files(
        root,
        before=time.time() - arguments["older_than_days"] * 86400,
        min_bytes=arguments.get("min_bytes", 0),
        pattern=arguments.get("pattern", "*"),
        limit=arguments.get("max_files", 1000),
    )
    skipped = []
    gone = [] if dry_run else delete(root, found, skipped)
    listed = found if dry_run else gone
    json.dump(
        {
            "dry_run": dry_run,
            "directory": shown(root),
            "found": totals(found),
            "deleted": totals(gone),
            "files": [
                {"path": shown(os.path.join(root, file.path)), "bytes": file.size, "modified": iso(file.modified)}
                for file in listed[:LISTED]
            ],
            "files_not_listed": max(0, len(listed) - LISTED),
            "more_than_max_files": more,
            "skipped": skipped[:LISTED],
            "skipped_count": len(skipped),
        },
        sys.stdout,
    )


def checked_root(directory):
    """The directory without links in its path, or Refused."""
    if not os.path.isabs(directory):
        raise Refused(f"{shown(directory)} is not an absolute path")
    real = os.path.realpath(directory)
    if not os.path.isdir(real):
        raise Refused(f"{shown(directory)} is not a directory")
    homes = [entry.pw_dir for entry in pwd.getpwall()]
    for tree in SYSTEM_TREES:
        for name in {tree, os.path.realpath(tree)}:
            if within(real, name) or within(name, real):
                raise Refused(f"{shown(real)} belongs to the system, or holds {name}: choose a directory of its own")
    for name in TOP_DIRECTORIES + homes:
        if within(os.path.realpath(name), real):
            raise Refused(f"{shown(real)} is or holds {name}: choose a directory further down")
    if within(os.getcwd(), real):
        raise Refused(f"{shown(real)} holds this skill")
    if WORKING_COPY & set(os.listdir(real)):
        raise Refused(f"{shown(real)} is a working copy of version control")
    return real


def within(path, directory):
    return os.path.commonpath([path, directory]) == directory


class File:
    """A file that was found, relative to the root, and what shows later whether it is still the same."""

    def __init__(self, path, status):
        self.path = path
        self.size = status.st_size
        self.modified = status.st_mtime
        self.identity = identity(status)

    def __lt__(self, other):
        return (self.modified, self.path) < (other.modified, other.path)


def identity(status):
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def oldest_files(root, before, min_bytes, pattern, limit):
    """The oldest matching files, oldest first, and whether there were more than `limit`."""
    device = os.stat(root).st_dev
    seen = matching = 0

    def candidates():
        nonlocal seen, matching
        for directory, subdirectories, names, fd in os.fwalk(root, follow_symlinks=False):
            subdirectories[:] = sorted(name for name in subdirectories if enters(name, fd, device))
            for name in names:
                seen += 1
                if seen % REPORT_EVERY == 0:
                    progress(seen, None, f"looked at {seen} files, {matching} match")
                try:
                    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except OSError:
                    continue
                if not stat.S_ISREG(status.st_mode) or status.st_mtime >= before or status.st_size < min_bytes:
                    continue
                if fnmatch.fnmatchcase(name, pattern):
                    matching += 1
                    yield File(os.path.relpath(os.path.join(directory, name), root), status)

    found = heapq.nsmallest(limit, candidates())
    return found, matching > limit


def enters(name, parent, device):
    """Whether a directory is looked into: not if it is another file system or a working copy."""
    try:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode) or status.st_dev != device:
            return False
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except OSError:
        return False
    try:
        return not WORKING_COPY & set(os.listdir(fd))
    finally:
        os.close(fd)


def delete(root, files, skipped):
    """Deletes them one by one and returns those that are gone. What changed since it was found stays."""
    gone = []
    for number, file in enumerate(files, 1):
        try:
            remove(root, file)
        except (OSError, Refused) as error:
            why = error.strerror if isinstance(error, OSError) else str(error)
            skipped.append({"path": shown(os.path.join(root, file.path)), "why": why})
        else:
            gone.append(file)
            print(f"deleted {shown(os.path.join(root, file.path))!r} ({file.size} bytes)", file=sys.stderr)
        if number % 50 == 0 or number == len(files):
            progress(number, len(files), f"deleted {len(gone)} files")
    return gone


def remove(root, file):
    # Down from the root one directory at a time, never through a link: a path that was swapped meanwhile is an error.
    *parents, name = file.path.split(os.sep)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    fd = os.open(root, flags)
    try:
        for parent in parents:
            below = os.open(parent, flags, dir_fd=fd)
            os.close(fd)
            fd = below
        if identity(os.stat(name, dir_fd=fd, follow_symlinks=False)) != file.identity:
            raise Refused("changed since it was found")
        os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


def totals(files):
    return {"files": len(files), "bytes": sum(file.size for file in files)}


def iso(seconds):
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def shown(path):
    """The path as text: names that are not UTF-8 could not stand in JSON."""
    return os.fsencode(path).decode("utf-8", "replace")


def progress(done, total, message):
    step = {"progress": done, "message": message}
    if total is not None:
        step["total"] = total
    print("::progress " + json.dumps(step), file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main()
    except Refused as refusal:
        sys.exit(f"disk_cleaner: {refusal}")
