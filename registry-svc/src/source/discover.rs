//! Looks at a root: finds, reads and packages what lies there. Never fails: what cannot be read is a candidate with a
//! reason, and the rest loads. What did not change since the scan before is not read again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillyard::{Agent, Source};

use super::findings::Findings;
use super::memory::{Memory, Remembered};
use super::playbook::Identity;
use super::skill::Place;
use super::text::MAX_TEXT_BYTES;
use super::walk::{self, Walk};
use super::{
    AgentScan, Candidate, Look, Root, RootKind, RootState, Scan, SkillScan, agent_file, cloud, codes, mirror, parallel,
    skill,
};

/// Looks at a root of skills.
#[must_use]
pub fn scan_skills(root: &Root, previous: Option<&SkillScan>) -> SkillScan {
    scan_skills_with(&Look::default(), root, previous)
}

/// Looks at a root of skills, in this way. What is known of it must have been seen in the same way.
#[must_use]
pub fn scan_skills_with(look: &Look, root: &Root, previous: Option<&SkillScan>) -> SkillScan {
    let RootKind::Skills(source) = root.kind else { return Scan::new(root.clone(), Vec::new()) };
    let cloud_dir = root.path.parent().filter(|_| source == Source::Cloud);
    // While a sync changes folders and list, the two do not belong together.
    let _held = match cloud_dir.map_or(Ok(None), mirror::hold) {
        Ok(held) => held,
        Err(error) => return unreadable_root(root, &error),
    };
    let canonical = match open_root(root) {
        Ok(canonical) => canonical,
        // A sync that has brought nothing yet says why.
        Err(mut scan) => {
            if let Some(cloud_dir) = cloud_dir.filter(|_| scan.root.state == RootState::Missing) {
                cloud::Listed::default().complete(cloud_dir, &mut scan.candidates);
            }
            return scan;
        }
    };
    let Walk { manifests, others: mut candidates } = match (source, &look.within) {
        (Source::External, within) => walk::subprocess(within.as_ref().unwrap_or(&root.path), &root.path, &canonical),
        (_, Some(directory)) => walk::playbook(directory),
        (_, None) => walk::playbooks(&root.path, &canonical),
    };
    let mut listed = cloud::Listed::default();
    if let Some(path) = cloud_dir.map(|dir| dir.join(mirror::MANIFEST)) {
        let mut findings = Findings::default();
        listed = cloud::listed(&path, &mut findings);
        if findings.failed().is_some() {
            candidates.push(Candidate::new(path, String::new(), None, findings));
        }
    }
    let made = parallel::map(&manifests, |path| {
        let place = Place { root: &root.path, canonical: &canonical, source, ids: &listed.ids, look };
        let known = previous.and_then(|scan| Some((scan.candidate(path)?, scan.memory.get(path)?)));
        skill::read(&place, path, known)
    });
    let mut memory = Memory::with_capacity(made.len());
    for (candidate, remembered) in made.into_iter().flatten() {
        if let Some(remembered) = remembered {
            memory.insert(candidate.path.clone(), remembered);
        }
        candidates.push(candidate);
    }
    if let Some(cloud_dir) = cloud_dir {
        listed.complete(cloud_dir, &mut candidates);
    }
    finish_scan(root, candidates, memory)
}

/// Looks at a directory of agent files.
#[must_use]
pub fn scan_agents(root: &Root, previous: Option<&AgentScan>) -> AgentScan {
    let canonical = match open_root(root) {
        Ok(canonical) => canonical,
        Err(scan) => return scan,
    };
    let mut paths: Vec<PathBuf> = match std::fs::read_dir(&root.path) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) => return unreadable_root(root, &error),
    };
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.ends_with(b".md") && !name.starts_with(b".") && !path.is_dir()
    });
    let mut memory = Memory::default();
    let mut candidates = Vec::new();
    for path in paths {
        let known = previous.and_then(|scan| Some((scan.candidate(&path)?, scan.memory.get(&path)?)));
        let (candidate, remembered) = agent(&canonical, path, known);
        if let Some(remembered) = remembered {
            memory.insert(candidate.path.clone(), remembered);
        }
        candidates.push(candidate);
    }
    finish_scan(root, candidates, memory)
}

/// The root's canonical path, or a scan that says why there is nothing to look at.
fn open_root<T>(root: &Root) -> Result<PathBuf, Scan<T>> {
    if matches!(root.state, RootState::NotAbsolute | RootState::NotEntitled) {
        return Err(Scan::new(root.clone(), Vec::new()));
    }
    let opened = std::fs::canonicalize(&root.path).and_then(|path| {
        std::fs::read_dir(&path)?;
        Ok(path)
    });
    opened.map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Scan::new(Root { state: RootState::Missing, ..root.clone() }, Vec::new()),
        _ => unreadable_root(root, &error),
    })
}

fn unreadable_root<T>(root: &Root, error: &io::Error) -> Scan<T> {
    let mut findings = Findings::default();
    findings.build(codes::E_UNREADABLE, (0, 0), format!("the root {} cannot be read: {error}", root.path.display()));
    let candidate = Candidate::new(root.path.clone(), String::new(), None, findings);
    Scan::new(Root { state: RootState::Unreadable, ..root.clone() }, vec![candidate])
}

fn finish_scan<T>(root: &Root, mut candidates: Vec<Candidate<T>>, memory: Memory) -> Scan<T> {
    candidates.sort_by(|a, b| a.path.cmp(&b.path));
    let root = Root { state: RootState::Registered, ..root.clone() };
    Scan { memory, ..Scan::new(root, candidates) }
}

/// One agent, from its file.
fn agent(
    root: &Path,
    path: PathBuf,
    known: Option<(&Candidate<Agent>, &Remembered)>,
) -> (Candidate<Agent>, Option<Remembered>) {
    let mut findings = Findings::default();
    let file = match std::fs::canonicalize(&path) {
        Ok(file) => file,
        Err(error) => {
            let message = format!("{} cannot be read: {error}", path.display());
            findings.parse(codes::E_UNREADABLE, (0, 0), message);
            return (Candidate::new(path, String::new(), None, findings), None);
        }
    };
    if !file.starts_with(root) {
        let (file, root) = (file.display(), root.display());
        let message = format!("the agent's file is a link to {file}, out of {root}: put the file itself there");
        findings.build(codes::E_ESCAPES_ROOT, (0, 0), message);
        return (Candidate::new(path, String::new(), None, findings), None);
    }
    let identity = Identity::Directory(String::new());
    let mut now = Remembered::new(root, &file, identity, Vec::new(), Findings::default());
    now.watch(vec![file.clone()]);
    if let Some((candidate, before)) = known
        && before.still(&now)
    {
        return (candidate.clone(), Some(before.clone()));
    }
    let read = now.read(&file, MAX_TEXT_BYTES);
    match read {
        Ok(text) => {
            let (name, agent) = agent_file::read(&text, &mut findings);
            (Candidate::new(path, name, agent.map(Arc::new), findings), Some(now))
        }
        Err(fault) => {
            findings.fault(fault);
            (Candidate::new(path, String::new(), None, findings), Some(now))
        }
    }
}
