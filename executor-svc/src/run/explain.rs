//! Why a program could not be started, or could not find what it needs: told apart by looking at the file.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;

use super::elf::{self, Header};

/// How much of a file is looked at.
const HEAD_BYTES: u64 = 256;

/// What to say of a program that could not be started. The system answers ENOENT to a missing file, a missing
/// interpreter and a line end of Windows alike.
#[must_use]
pub fn spawn_failure(entry: &str, program: &Path, errno: i32) -> String {
    let error = std::io::Error::from_raw_os_error(errno);
    let why = match std::fs::metadata(program) {
        Err(missing) => format!("{missing}"),
        Ok(metadata) if !metadata.is_file() => "it is not a regular file".to_owned(),
        Ok(metadata) if metadata.permissions().mode() & 0o111 == 0 => {
            "it is not executable: set its executable bit (chmod +x)".to_owned()
        }
        Ok(_) if is_noexec(program) => {
            "the file system of the executor's state directory is mounted noexec, so that nothing in it can be started: mount it without, or give the executor another --state-dir"
                .to_owned()
        }
        Ok(_) => match (Errno::from_raw_os_error(errno), shebang(program)) {
            (Errno::NOEXEC, None) => match Header::of(program) {
                Some(header) if !header.is_for_this_machine() => format!(
                    "it is a program for {}, which this executor's machine is not ({}): build it for this one, or run it elsewhere",
                    header.machine(),
                    std::env::consts::ARCH
                ),
                Some(_) => "it is a program that this system cannot load: build it anew".to_owned(),
                None => "it is neither a program for this machine nor a script with a shebang: begin it with a line such as #!/bin/sh".to_owned(),
            },
            (Errno::NOENT | Errno::ACCESS | Errno::NOEXEC | Errno::NOTDIR, Some(line)) => interpreter_failure(&line, &error),
            (Errno::NOENT, None) => match elf::loader(program) {
                Some(loader) if !loader.exists() => format!(
                    "the loader {} that it was linked for is not on this executor: link it statically, or for this system",
                    loader.display()
                ),
                _ => error.to_string(),
            },
            (Errno::ACCESS, None) => format!("{error}: the executor's user may not execute it, or not reach it"),
            _ => error.to_string(),
        },
    };
    format!("entry {entry} could not be started: {why}")
}

/// What to say when a script exits with 126 or 127, which is how env and the shells say that a command was not found.
#[must_use]
pub fn exit_hint(code: i32, program: &Path, env_allow: &[String]) -> Option<String> {
    if !matches!(code, 126 | 127) || env_allow.iter().any(|name| name == "PATH") {
        return None;
    }
    let line = shebang(program)?;
    Some(format!(
        "a command was not found; PATH is not in env_allow, so {} finds programs in /bin and /usr/bin only: add \"PATH\" to \
         env_allow, or write absolute paths",
        line.trim()
    ))
}

fn interpreter_failure(line: &str, error: &std::io::Error) -> String {
    if line.ends_with('\r') {
        return "its shebang line ends with a carriage return: save the file with Unix line ends (LF)".to_owned();
    }
    let interpreter = line.trim_start_matches("#!").split_whitespace().next().unwrap_or_default();
    if interpreter.is_empty() {
        return "its shebang names no interpreter: write one, such as #!/bin/sh".to_owned();
    }
    match std::fs::metadata(interpreter) {
        Ok(found) if !found.is_file() => {
            format!("its interpreter {interpreter} is not a file: name a program in the shebang")
        }
        Ok(found) if found.permissions().mode() & 0o111 == 0 => {
            format!("its interpreter {interpreter} is not executable on this executor")
        }
        Ok(_) if is_noexec(Path::new(interpreter)) => {
            format!("its interpreter {interpreter} is on a file system that is mounted noexec")
        }
        Ok(_) => format!("{error}, with its interpreter {interpreter}"),
        Err(missing) => format!("its interpreter {interpreter} cannot be found on this executor ({missing})"),
    }
}

/// Whether nothing may be executed where a file is.
fn is_noexec(path: &Path) -> bool {
    statvfs(path).is_ok_and(|found| found.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// The first line of a script, with `#!`, without the line feed.
fn shebang(program: &Path) -> Option<String> {
    let mut head = Vec::new();
    File::open(program).ok()?.take(HEAD_BYTES).read_to_end(&mut head).ok()?;
    let line = head.split(|b| *b == b'\n').next()?;
    line.starts_with(b"#!").then(|| String::from_utf8_lossy(line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("#!/bin/sh\r\necho\n", 0o755, Errno::NOENT, "carriage return")]
    #[case("#!/no/such/python\n", 0o755, Errno::NOENT, "interpreter /no/such/python cannot be found")]
    #[case("echo\n", 0o755, Errno::NOEXEC, "begin it with a line such as #!/bin/sh")]
    #[case("#!/bin/sh\n", 0o644, Errno::ACCESS, "chmod +x")]
    #[case("#!/bin/sh\n", 0o755, Errno::NOMEM, "Cannot allocate memory")]
    #[case("#!/etc\n", 0o755, Errno::ACCESS, "/etc is not a file")]
    #[case("#!/etc/passwd\n", 0o755, Errno::ACCESS, "/etc/passwd is not executable")]
    #[case("\x7FELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x16\0", 0o755, Errno::NOEXEC, "a program for s390x")]
    #[case("\x7FELF", 0o755, Errno::ACCESS, "may not execute it")]
    fn told_apart(#[case] text: &str, #[case] mode: u32, #[case] errno: Errno, #[case] says: &str) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("run");
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let message = spawn_failure("run", &program, errno.raw_os_error());
        assert!(message.contains(says), "{message}");
    }

    #[test]
    fn a_loader_that_is_missing() {
        if !cfg!(all(target_pointer_width = "64", target_endian = "little")) {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("run");
        let mut text = std::fs::read("/proc/self/exe").unwrap();
        let own = elf::loader(Path::new("/proc/self/exe")).unwrap();
        let name = own.to_str().unwrap().as_bytes();
        let at = text.windows(name.len()).position(|window| window == name).unwrap();
        text[at + 1] = b'_';
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let message = spawn_failure("run", &program, Errno::NOENT.raw_os_error());
        assert!(message.contains("the loader /_") && message.contains("not on this executor"), "{message}");
    }

    #[test]
    fn what_is_not_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let message = spawn_failure("run", directory.path(), Errno::ACCESS.raw_os_error());
        assert!(message.contains("not a regular file"), "{message}");
        let message = spawn_failure("run", &directory.path().join("run"), Errno::NOENT.raw_os_error());
        assert!(message.contains("No such file"), "{message}");
    }

    #[test]
    fn path_is_named_when_it_is_missing() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("run");
        std::fs::write(&program, "#!/usr/bin/env nodejs\n").unwrap();
        assert!(exit_hint(127, &program, &[]).unwrap().contains("PATH is not in env_allow"));
        assert_eq!(exit_hint(127, &program, &["PATH".to_owned()]), None);
        assert_eq!(exit_hint(1, &program, &[]), None);
    }
}
