//! Looks at a root: finds, reads and packages what lies there. Never fails: what cannot be read is a candidate with a
//! reason, and the rest loads. What did not change since the scan before is not read again.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillyard::{Agent, Source};

use super::beneath::Beneath;
use super::findings::Findings;
use super::glance::Glances;
use super::memory::{self, Memory, Remembered, Sight};
use super::package::Listing;
use super::skill::Place;
use super::text::{MAX_TEXT_BYTES, Text, read_bounded};
use super::walk::{self, Ground, Walk};
use super::{
    AgentScan, Candidate, Known, Look, Root, RootKind, RootState, Scan, SkillScan, agent_file, cloud, codes, mirror,
    parallel, skill,
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
            return *scan;
        }
    };
    let (canonical, beneath): (Arc<Path>, _) = match Beneath::of(&canonical) {
        Ok(beneath) => (canonical.into(), beneath),
        Err(error) => return unreadable_root(root, &error),
    };
    // Under another directory nothing is known.
    let previous = previous.filter(|scan| scan.canonical.as_ref() == Some(&canonical));
    let before = previous.map(|scan| &scan.trees);
    let ground = Ground { root: &root.path, canonical: &canonical, beneath: &beneath, before };
    let Walk { manifests, others: mut candidates, trees } = match (source, &look.within) {
        (Source::External, within) => walk::subprocess(within.as_ref().unwrap_or(&root.path), &ground),
        (_, Some(directory)) => walk::playbook(directory, &ground),
        (_, None) => walk::playbooks(&ground),
    };
    let mut listed = cloud::Listed::default();
    if let Some(path) = cloud_dir.map(|dir| dir.join(mirror::MANIFEST)) {
        let mut findings = Findings::default();
        listed = cloud::listed(&path, &mut findings);
        if findings.failed().is_some() {
            candidates.push(Candidate::new(path, String::new(), None, findings));
        }
    }
    let glances = Glances::default();
    let sight = Sight { beneath: &beneath, glances: &glances };
    let place = Place { root: &root.path, canonical: &canonical, source, ids: &listed.ids, look, sight };
    let known = previous.map(|scan| scan.known(manifests.iter().map(|found| found.path.as_path())));
    let jobs: Vec<_> = match known {
        Some(known) => manifests.iter().zip(known).collect(),
        None => manifests.iter().map(|found| (found, None)).collect(),
    };
    let made = parallel::map(&jobs, |(found, known)| skill::read(&place, found, *known));
    let mut memory: Memory = candidates.iter().map(|_| None).collect();
    for (candidate, remembered) in made.into_iter().flatten() {
        candidates.push(candidate);
        memory.push(remembered);
    }
    if let Some(cloud_dir) = cloud_dir {
        listed.complete(cloud_dir, &mut candidates);
    }
    Scan { trees, canonical: Some(canonical), ..finish_scan(root, candidates, memory) }
}

/// Looks at a directory of agent files.
#[must_use]
pub fn scan_agents(root: &Root, previous: Option<&AgentScan>) -> AgentScan {
    let canonical = match open_root(root) {
        Ok(canonical) => canonical,
        Err(scan) => return *scan,
    };
    let mut paths: Vec<PathBuf> = match std::fs::read_dir(&root.path) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect(),
        Err(error) => return unreadable_root(root, &error),
    };
    paths.retain(|path| {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        name.ends_with(b".md") && !name.starts_with(b".") && !path.is_dir()
    });
    let canonical: Arc<Path> = canonical.into();
    let glances = Glances::default();
    let mut memory = Memory::default();
    let mut candidates = Vec::new();
    paths.sort();
    let known = match previous {
        Some(scan) => scan.known(paths.iter().map(PathBuf::as_path)),
        None => paths.iter().map(|_| None).collect(),
    };
    for (path, known) in paths.iter().zip(known) {
        let (candidate, remembered) = agent(&canonical, path.clone(), known, &glances);
        candidates.push(candidate);
        memory.push(remembered);
    }
    finish_scan(root, candidates, memory)
}

/// The root's canonical path, or a scan that says why there is nothing to look at.
fn open_root<T>(root: &Root) -> Result<PathBuf, Box<Scan<T>>> {
    if matches!(root.state, RootState::NotAbsolute | RootState::NotEntitled) {
        return Err(Box::new(Scan::new(root.clone(), Vec::new())));
    }
    let opened = std::fs::canonicalize(&root.path).and_then(|path| {
        std::fs::read_dir(&path)?;
        Ok(path)
    });
    opened.map_err(|error| {
        Box::new(match error.kind() {
            io::ErrorKind::NotFound => Scan::new(Root { state: RootState::Missing, ..root.clone() }, Vec::new()),
            _ => unreadable_root(root, &error),
        })
    })
}

fn unreadable_root<T>(root: &Root, error: &io::Error) -> Scan<T> {
    let mut findings = Findings::default();
    findings.build(codes::E_UNREADABLE, (0, 0), format!("the root {} cannot be read: {error}", root.path.display()));
    let candidate = Candidate::new(root.path.clone(), String::new(), None, findings);
    Scan::new(Root { state: RootState::Unreadable, ..root.clone() }, vec![candidate])
}

/// `memory` is in the order of the candidates; of the last ones nothing may be remembered.
fn finish_scan<T>(root: &Root, candidates: Vec<Candidate<T>>, memory: Memory) -> Scan<T> {
    let memory = memory.into_iter().chain(std::iter::repeat_with(|| None));
    let mut both: Vec<_> = candidates.into_iter().zip(memory).collect();
    both.sort_by(|(a, _), (b, _)| a.path.cmp(&b.path));
    let (candidates, memory) = both.into_iter().unzip();
    let root = Root { state: RootState::Registered, ..root.clone() };
    Scan { memory, ..Scan::new(root, candidates) }
}

/// One agent, from its file.
fn agent(
    root: &Arc<Path>,
    path: PathBuf,
    known: Known<'_, Agent>,
    glances: &Glances,
) -> (Candidate<Agent>, Option<Arc<Remembered>>) {
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
    let at = memory::Place { path: file.clone().into(), id: None };
    let mut now = Remembered::new(at, None, Listing::default(), &Findings::default());
    now.watch(vec![glances.at(&file)]);
    if let Some((candidate, before)) = known
        && before.still(&now, glances)
    {
        return (candidate.clone(), Some(Arc::clone(before)));
    }
    let now = Some(Arc::new(now));
    match read_bounded(&file, MAX_TEXT_BYTES).and_then(Text::of_bytes) {
        Ok(text) => {
            let (name, agent) = agent_file::read(&text, &mut findings);
            (Candidate::new(path, name, agent.map(Arc::new), findings), now)
        }
        Err(fault) => {
            findings.fault(fault);
            (Candidate::new(path, String::new(), None, findings), now)
        }
    }
}
