//! Why a program could not be started, or could not find what it needs: told apart by looking at the file.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use rustix::io::Errno;

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
        Ok(_) => match (Errno::from_raw_os_error(errno), shebang(program)) {
            (Errno::NOEXEC, None) => {
                "it is neither a program for this machine nor a script with a shebang: begin it with a line such as #!/bin/sh"
                    .to_owned()
            }
            (Errno::NOENT | Errno::ACCESS | Errno::NOEXEC | Errno::NOTDIR, Some(line)) => interpreter_failure(&line, &error),
            (Errno::ACCESS, None) => {
                format!("{error}: the file system may be mounted noexec, or the executor may not read the file")
            }
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
        Ok(_) => format!("{error}, with its interpreter {interpreter}"),
        Err(missing) => format!("its interpreter {interpreter} cannot be found on this executor ({missing})"),
    }
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
    fn told_apart(#[case] text: &str, #[case] mode: u32, #[case] errno: Errno, #[case] says: &str) {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("run");
        std::fs::write(&program, text).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(mode)).unwrap();
        let message = spawn_failure("run", &program, errno.raw_os_error());
        assert!(message.contains(says), "{message}");
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
