//! One skill: from its manifest over its files to its digest. Looks for no other.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use skillyard::skill::{Card, Kind, Subprocess};
use skillyard::{Digest, Skill, Source};

use super::findings::{Fault, Findings};
use super::manifest::Manifest;
use super::memory::Remembered;
use super::package::{self, Digests, Item, Rules};
use super::playbook::{self, Identity, Sheet};
use super::text::{MAX_PLAYBOOK_BYTES, MAX_SKILL_JSON_BYTES};
use super::{Candidate, FoundSkill, Look, Package, SourceFile, Stage, Tier, codes, entry, manifest};

/// Where a manifest was found.
pub(crate) struct Place<'a> {
    pub(crate) root: &'a Path,
    pub(crate) canonical: &'a Path,
    pub(crate) source: Source,
    pub(crate) ids: &'a HashMap<String, String>,
    pub(crate) look: &'a Look,
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

/// What is made of one manifest, and what of it is remembered.
type Made = (Candidate<FoundSkill>, Option<Remembered>);

/// One skill, from its manifest to its digest; `None` where the manifest went meanwhile.
///
/// An editor's file that went between the listing and the reading is no fault of the package: it is listed again.
pub(crate) fn read(
    place: &Place<'_>,
    path: &Path,
    known: Option<(&Candidate<FoundSkill>, &Remembered)>,
) -> Option<Made> {
    const ATTEMPTS: usize = 3;
    let mut made = read_once(place, path, known);
    for _ in 1..ATTEMPTS {
        if std::fs::symlink_metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            return None;
        }
        if !made.1.as_ref().is_some_and(Remembered::lost_a_file) {
            break;
        }
        made = read_once(place, path, known);
    }
    Some(made)
}

fn read_once(place: &Place<'_>, path: &Path, known: Option<(&Candidate<FoundSkill>, &Remembered)>) -> Made {
    let path = path.to_owned();
    let logical = path.parent().unwrap_or(place.root).to_owned();
    let identity = place.identity(&logical);
    // A playbook has its name before it is read.
    let name = if place.source == Source::External { String::new() } else { identity.name() };
    let mut findings = Findings::default();
    let opened = match open_manifest(place, &path) {
        Ok(opened) => opened,
        Err(fault) => {
            findings.fault(fault);
            return (Candidate::new(path, name, None, findings), None);
        }
    };
    let (rules, most) = match place.source {
        Source::External => (Rules::Subprocess, MAX_SKILL_JSON_BYTES),
        _ => (Rules::Playbook, MAX_PLAYBOOK_BYTES),
    };
    let items = package::list(&opened.directory, rules, &mut findings);
    let mut now = Remembered::new(place.canonical, &opened.directory, identity.clone(), items, findings.clone());
    if let Some((candidate, before)) = known
        && before.still(&now)
    {
        return (candidate.clone(), Some(before.clone()));
    }
    let text = match now.read(&opened.manifest, most) {
        Ok(text) => text,
        Err(fault) => {
            findings.fault(fault);
            return (Candidate::new(path, name, None, findings), Some(now));
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
            let sheet = playbook::read(&text, &identity, place.look.strict, &mut findings).filter(|_| valid);
            (name, sheet.and_then(|sheet| book(&work, sheet, &mut now, &mut findings)))
        }
    };
    (Candidate::new(path, name, value.map(Arc::new), findings), Some(now))
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
        tier: Some(Tier::Free),
    })
}

fn book(work: &Work<'_>, sheet: Sheet, now: &mut Remembered, findings: &mut Findings) -> Option<FoundSkill> {
    if let Some(host) = &work.place.look.host {
        let mut watched = Vec::new();
        host.check(&sheet.playbook.requires, sheet.requires_at, &mut watched, findings);
        now.watch(watched);
    }
    let items = now.items().to_vec();
    let (files, digest) = hashed(work, &items, now, findings)?;
    let tier = own_tier(&sheet.extra);
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
        tier,
    })
}

/// What a playbook's own file says about whom it is for.
pub(crate) fn own_tier(extra: &serde_json::Map<String, serde_json::Value>) -> Option<Tier> {
    match extra.get("tier") {
        None => Some(Tier::Free),
        Some(tier) => tier.as_str().and_then(|tier| tier.parse().ok()),
    }
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
