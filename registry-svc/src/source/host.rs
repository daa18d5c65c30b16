//! The host that a playbook's requirements are held against: its system, its programs, its settings. Is told what the
//! environment holds, and never reads it.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use skillyard::skill::Requirements;

use super::codes;
use super::findings::Findings;

/// Where skills are used, as far as it can be known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    os: &'static str,
    /// Where programs are looked for.
    path: Vec<PathBuf>,
    /// Names of the environment variables that are set.
    variables: BTreeSet<String>,
}

impl Host {
    /// This one, with its PATH and the names of the environment variables that are set.
    #[must_use]
    pub fn new(path: &OsStr, variables: impl IntoIterator<Item = String>) -> Self {
        let path = std::env::split_paths(path).filter(|directory| directory.is_absolute()).collect();
        Self { os: std::env::consts::OS, path, variables: variables.into_iter().collect() }
    }

    /// Warns of what a playbook needs and this host has not. `watched` gets the paths that the answer depends on.
    pub(crate) fn check(
        &self,
        needed: &Requirements,
        at: (u32, u32),
        watched: &mut Vec<PathBuf>,
        findings: &mut Findings,
    ) {
        if !needed.os.is_empty() && !needed.os.iter().any(|os| self.is(os)) {
            let (needed, os) = (needed.os.join(" or "), self.os);
            let message =
                format!("it is for {needed}, and this host is {os}: add {os} to metadata.os if it works there too");
            findings.warn(codes::W_REQUIRES_OS, at, message);
        }
        for name in needed.bins.iter().filter(|name| !self.has_program(name, watched)) {
            let message = format!("it needs the program {name:?}, which is not on this host's PATH: install it");
            findings.warn(codes::W_REQUIRES_BIN, at, message);
        }
        for name in needed.config.iter().filter(|name| !self.has_setting(name)) {
            let variable = variable(name);
            let message = format!("it needs the setting {name:?}, which this host does not have: set {variable}");
            findings.warn(codes::W_REQUIRES_CONFIG, at, message);
        }
    }

    fn is(&self, os: &str) -> bool {
        match os.to_ascii_lowercase().as_str() {
            "any" | "all" | "*" => true,
            "darwin" | "mac" | "osx" => self.os == "macos",
            "win32" | "win" => self.os == "windows",
            other => self.os == other,
        }
    }

    fn has_program(&self, name: &str, watched: &mut Vec<PathBuf>) -> bool {
        let mut there = |path: PathBuf| {
            let found = is_program(&path);
            watched.push(path);
            found
        };
        match Path::new(name) {
            path if path.is_absolute() => there(path.to_owned()),
            path => self.path.iter().any(|directory| there(directory.join(path))),
        }
    }

    /// A setting is an environment variable, called as it is or as variables are (`aws.region`: `AWS_REGION`).
    fn has_setting(&self, name: &str) -> bool {
        self.variables.contains(name) || self.variables.contains(&variable(name))
    }
}

fn is_program(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

fn variable(name: &str) -> String {
    name.chars().map(|c| if c.is_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_and_what_is_not() {
        let bin = tempfile::tempdir().unwrap();
        std::fs::write(bin.path().join("tool"), "").unwrap();
        std::fs::write(bin.path().join("text"), "").unwrap();
        std::fs::set_permissions(bin.path().join("tool"), std::fs::Permissions::from_mode(0o755)).unwrap();
        let host = Host::new(bin.path().as_os_str(), ["AWS_REGION".to_owned(), "as.it.is".to_owned()]);
        let codes = |os: &[&str], bins: &[&str], config: &[&str]| {
            let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
            let needed = Requirements { os: texts(os), bins: texts(bins), config: texts(config) };
            let (mut findings, mut watched) = (Findings::default(), Vec::new());
            host.check(&needed, (3, 1), &mut watched, &mut findings);
            let found = findings.into_diagnostics();
            (found.into_iter().map(|d| d.code).collect::<Vec<_>>(), watched.len())
        };
        assert_eq!(codes(&[], &[], &[]), (vec![], 0));
        assert_eq!(codes(&["win32", std::env::consts::OS], &["tool"], &["aws.region", "as.it.is"]), (vec![], 1));
        assert_eq!(
            codes(&["plan9"], &["tool", "text", "none"], &["aws.key"]),
            (vec![codes::W_REQUIRES_OS, codes::W_REQUIRES_BIN, codes::W_REQUIRES_BIN, codes::W_REQUIRES_CONFIG], 3)
        );
        let tool = bin.path().join("tool").display().to_string();
        assert_eq!(codes(&["any"], &[&tool], &[]), (vec![], 1));
    }
}
