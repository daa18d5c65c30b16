//! Looks at a root: finds, reads and packages what lies there. Never fails: what cannot be read is a candidate with a
//! reason, and the rest loads. What did not change since the scan before is not read again.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::skill::{Card, Kind, Subprocess};
use skillyard::{Agent, Digest, Skill, Source};

use super::findings::{Fault, Findings};
use super::manifest::Manifest;
use super::memory::{Memory, Remembered};
use super::package::{self, Digests, Item, Rules};
use super::playbook::{self, Identity, Sheet};
use super::walk::{self, Walk};
use super::{
    AgentScan, Candidate, FoundSkill, Package, Root, RootKind, RootState, Scan, SkillScan, SourceFile, Stage,
    agent_file, cloud, codes, entry, manifest,
};

/// Looks at a root of skills.
#[must_use]
pub fn scan_skills(root: &Root, previous: Option<&SkillScan>) -> SkillScan {
    let RootKind::Skills(source) = root.kind else { return Scan::new(root.clone(), Vec::new()) };
    let canonical = match open_root(root) {
        Ok(canonical) => canonical,
        Err(scan) => return scan,
    };
    let Walk { manifests, others: mut candidates } = match source {
        Source::External => walk::subprocess(&root.path, &canonical),
        _ => walk::playbooks(&root.path, &canonical),
    };
    let mut ids = HashMap::new();
    if source == Source::Cloud
        && let Some(path) = root.path.parent().map(|dir| dir.join("manifest.json"))
    {
        let mut findings = Findings::default();
        ids = cloud::ids(&path, &mut findings);
        if findings.failed().is_some() {
            candidates.push(finish(path, String::new(), None, findings));
        }
    }
    let mut memory = Memory::default();
    for path in manifests {
        let place = Place { root: &root.path, canonical: &canonical, source, ids: &ids };
        let known = previous.and_then(|scan| Some((scan.candidate(&path)?, scan.memory.get(&path)?)));
        let (candidate, remembered) = skill(&place, path, known);
        if let Some(remembered) = remembered {
            memory.insert(candidate.path.clone(), remembered);
        }
        candidates.push(candidate);
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
    let candidate = finish(root.path.clone(), String::new(), None, findings);
    Scan::new(Root { state: RootState::Unreadable, ..root.clone() }, vec![candidate])
}

fn finish_scan<T>(root: &Root, mut candidates: Vec<Candidate<T>>, memory: Memory) -> Scan<T> {
    candidates.sort_by(|a, b| a.path.cmp(&b.path));
    let root = Root { state: RootState::Registered, ..root.clone() };
    Scan { memory, ..Scan::new(root, candidates) }
}

/// A candidate with what was found about it; the value is kept only where nothing failed.
fn finish<T>(path: PathBuf, name: String, value: Option<Arc<T>>, findings: Findings) -> Candidate<T> {
    let failed = findings.failed();
    let value = value.filter(|_| failed.is_none());
    Candidate { path, name, value, diagnostics: findings.into_diagnostics(), failed }
}

/// Where a manifest was found.
struct Place<'a> {
    root: &'a Path,
    canonical: &'a Path,
    source: Source,
    ids: &'a HashMap<String, String>,
}

impl Place<'_> {
    /// What a playbook in this directory is called.
    fn identity(&self, directory: &Path) -> Identity {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        match self.ids.get(&name) {
            Some(id) => Identity::Cloud(id.clone()),
            None => Identity::Directory(name),
        }
    }
}

/// A manifest's real place.
struct Opened {
    directory: PathBuf,
    manifest: PathBuf,
}

fn open_manifest(place: &Place<'_>, path: &Path) -> Result<Opened, Fault> {
    let unreadable = |error: io::Error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!("{} is a link to nowhere: put the file itself there", path.display()),
            _ => format!("{} cannot be read: {error}", path.display()),
        };
        Fault::file(codes::E_UNREADABLE, Stage::Parse, message)
    };
    let directory = std::fs::canonicalize(path.parent().unwrap_or(place.root)).map_err(unreadable)?;
    let manifest = std::fs::canonicalize(path).map_err(unreadable)?;
    if !directory.starts_with(place.canonical) || !manifest.starts_with(place.canonical) {
        let (target, root) = (manifest.display(), place.root.display());
        let message = format!("the manifest is a link to {target}, out of the root {root}: put the file itself there");
        return Err(Fault::file(codes::E_ESCAPES_ROOT, Stage::Build, message));
    }
    if !manifest.starts_with(&directory) {
        let target = manifest.display();
        let message = format!("the manifest is a link to {target}, out of its directory: put the file itself there");
        return Err(Fault::file(codes::E_MANIFEST_OUTSIDE, Stage::Build, message));
    }
    Ok(Opened { directory, manifest })
}

/// One skill, from its manifest to its digest.
fn skill(
    place: &Place<'_>,
    path: PathBuf,
    known: Option<(&Candidate<FoundSkill>, &Remembered)>,
) -> (Candidate<FoundSkill>, Option<Remembered>) {
    let logical = path.parent().unwrap_or(place.root).to_owned();
    let identity = place.identity(&logical);
    // A playbook has its name before it is read.
    let name = if place.source == Source::External { String::new() } else { identity.name() };
    let mut findings = Findings::default();
    let opened = match open_manifest(place, &path) {
        Ok(opened) => opened,
        Err(fault) => {
            findings.fault(fault);
            return (finish(path, name, None, findings), None);
        }
    };
    let rules = if place.source == Source::External { Rules::Subprocess } else { Rules::Playbook };
    let items = package::list(&opened.directory, rules, &mut findings);
    let mut now = Remembered::new(place.canonical, &opened.directory, identity.clone(), items, findings.clone());
    if let Some((candidate, before)) = known
        && before.still(&now)
    {
        return (candidate.clone(), Some(before.clone()));
    }
    let text = match now.read(&opened.manifest) {
        Ok(text) => text,
        Err(fault) => {
            findings.fault(fault);
            return (finish(path, name, None, findings), Some(now));
        }
    };
    let digests = known.map(|(_, before)| before.digests()).unwrap_or_default();
    let relative = logical.strip_prefix(place.root).unwrap_or(Path::new("")).to_string_lossy().into_owned();
    let work = Work { place, directory: opened.directory, relative, digests };
    let (name, value) = match place.source {
        Source::External => {
            let (name, manifest) = manifest::read(&text, &mut findings);
            (name, manifest.and_then(|manifest| subprocess(&work, manifest, &mut now, &mut findings)))
        }
        _ => {
            let valid = logical.file_name().is_some_and(|name| name.to_str().is_some());
            if !valid {
                let message = "the directory's name is not UTF-8: rename it";
                findings.build(codes::E_NAME_INVALID, (0, 0), message);
            }
            let sheet = playbook::read(&text, &identity, &mut findings).filter(|_| valid);
            (name, sheet.and_then(|sheet| book(&work, sheet, &mut now, &mut findings)))
        }
    };
    (finish(path, name, value.map(Arc::new), findings), Some(now))
}

/// What both kinds need to become a value.
struct Work<'a> {
    place: &'a Place<'a>,
    directory: PathBuf,
    relative: String,
    digests: Digests,
}

fn subprocess(
    work: &Work<'_>,
    manifest: Manifest,
    now: &mut Remembered,
    findings: &mut Findings,
) -> Option<FoundSkill> {
    let mut watched = Vec::new();
    let program = entry::check(
        &manifest.entry,
        &work.directory,
        work.place.canonical,
        &manifest.env_allow,
        &mut watched,
        findings,
    );
    now.watch(watched);
    let mut items = now.items().to_vec();
    let path = match entry::in_package(&program?, &manifest.entry, &work.directory, &items) {
        Ok(entry::Packaged::Inside(path)) => path,
        Ok(entry::Packaged::Outside(item)) => {
            let message = format!(
                "the entry {} lies outside of the skill's directory: it is packaged as {}, its neighbours are not",
                item.origin.display(),
                item.path
            );
            findings.warn(codes::W_ENTRY_OUTSIDE, manifest.entry.position, message);
            let path = item.path.clone();
            now.watch(vec![item.origin.clone()]);
            package::add(&mut items, item, findings);
            path
        }
        Err(message) => {
            findings.build(codes::E_ENTRY_NOT_PACKAGED, manifest.entry.position, message);
            return None;
        }
    };
    let kind = Kind::Subprocess(Subprocess {
        schema_json: manifest.schema_json,
        entry: path,
        env_allow: manifest.env_allow,
        timeout_seconds: manifest.timeout_seconds,
        class: manifest.class,
    });
    let card = Card { category: manifest.category, ..Card::default() };
    let (files, digest) = hashed(work, &items, now, findings)?;
    Some(FoundSkill {
        skill: Skill {
            name: manifest.name,
            description: manifest.description,
            source: work.place.source,
            digest,
            path: work.relative.clone(),
            kind,
            card,
            extra: manifest.extra,
            modified_at: modified_at(&items),
        },
        package: Package { directory: work.directory.clone(), files },
    })
}

fn book(work: &Work<'_>, sheet: Sheet, now: &mut Remembered, findings: &mut Findings) -> Option<FoundSkill> {
    let items = now.items().to_vec();
    let (files, digest) = hashed(work, &items, now, findings)?;
    Some(FoundSkill {
        skill: Skill {
            name: sheet.name,
            description: sheet.description,
            source: work.place.source,
            digest,
            path: work.relative.clone(),
            kind: Kind::Playbook(sheet.playbook),
            card: sheet.card,
            extra: sheet.extra,
            modified_at: modified_at(&items),
        },
        package: Package { directory: work.directory.clone(), files },
    })
}

/// The package's files and its digest, unless something about the package is wrong already.
fn hashed(
    work: &Work<'_>,
    items: &[Item],
    now: &mut Remembered,
    findings: &mut Findings,
) -> Option<(Vec<SourceFile>, Digest)> {
    if findings.failed().is_some() {
        return None;
    }
    // What was read for its values is hashed as it was read: values and digest are of one version.
    let mut known = work.digests.clone();
    known.extend(now.manifest_digest());
    let files = package::hash(items, &known, findings);
    now.remember(items, &files);
    let digest = Digest::of_package(&files.iter().map(|file| file.file.clone()).collect::<Vec<_>>());
    Some((files, digest))
}

fn modified_at(items: &[Item]) -> SystemTime {
    items.iter().map(|item| item.stamp.modified_at()).max().unwrap_or(SystemTime::UNIX_EPOCH)
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
            return (finish(path, String::new(), None, findings), None);
        }
    };
    if !file.starts_with(root) {
        let (file, root) = (file.display(), root.display());
        let message = format!("the agent's file is a link to {file}, out of {root}: put the file itself there");
        findings.build(codes::E_ESCAPES_ROOT, (0, 0), message);
        return (finish(path, String::new(), None, findings), None);
    }
    let identity = Identity::Directory(String::new());
    let mut now = Remembered::new(root, &file, identity, Vec::new(), Findings::default());
    now.watch(vec![file.clone()]);
    if let Some((candidate, before)) = known
        && before.still(&now)
    {
        return (candidate.clone(), Some(before.clone()));
    }
    let read = now.read(&file);
    match read {
        Ok(text) => {
            let (name, agent) = agent_file::read(&text, &mut findings);
            (finish(path, name, agent.map(Arc::new), findings), Some(now))
        }
        Err(fault) => {
            findings.fault(fault);
            (finish(path, String::new(), None, findings), Some(now))
        }
    }
}
