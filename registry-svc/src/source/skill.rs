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
use super::memory::{self, Remembered, Sight};
use super::package::{self, Item, Rules};
use super::playbook::{self, Identity, Sheet};
use super::text::{MAX_PLAYBOOK_BYTES, MAX_SKILL_JSON_BYTES};
use super::tree::Dir;
use super::{Candidate, FoundSkill, Look, Package, SourceFile, Stage, Tier, codes, entry, manifest, walk};

/// Where manifests are found.
pub(crate) struct Place<'a> {
    pub(crate) root: &'a Path,
    pub(crate) canonical: &'a Arc<Path>,
    pub(crate) source: Source,
    pub(crate) ids: &'a HashMap<String, String>,
    pub(crate) look: &'a Look,
    pub(crate) sight: Sight<'a>,
}

impl Place<'_> {
    /// What an admin server calls what is in this directory.
    fn id(&self, directory: &Path) -> Option<&str> {
        if self.ids.is_empty() {
            return None;
        }
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        self.ids.get(name.as_ref()).map(String::as_str)
    }

    /// What a playbook in this directory is called.
    fn identity(&self, directory: &Path) -> Option<Identity> {
        if self.source == Source::External {
            return None;
        }
        Some(match self.id(directory) {
            Some(id) => Identity::Cloud(id.to_owned()),
            None => Identity::Directory(directory.file_name().unwrap_or_default().to_string_lossy().into_owned()),
        })
    }
}

/// What is made of one manifest, and what of it is remembered.
type Made = (Candidate<FoundSkill>, Option<Arc<Remembered>>);

/// One skill, from its manifest to its digest; `None` where the manifest went meanwhile.
///
/// An editor's file that went between the listing and the reading is no fault of the package: it is listed again.
pub(crate) fn read(
    place: &Place<'_>,
    found: &walk::Manifest,
    known: Option<(&Candidate<FoundSkill>, &Arc<Remembered>)>,
) -> Option<Made> {
    const ATTEMPTS: usize = 3;
    let mut made = read_once(place, found, &found.dir, known);
    for _ in 1..ATTEMPTS {
        let failed = made.0.failed.is_some();
        let gone = |error: io::Error| error.kind() == io::ErrorKind::NotFound;
        if failed && std::fs::symlink_metadata(&found.path).is_err_and(gone) {
            return None;
        }
        let Some(remembered) = made.1.as_ref().filter(|_| failed) else { break };
        if !remembered.lost_a_file(place.canonical, place.sight.beneath) {
            break;
        }
        let Some(dir) = remembered.list_again(place.sight.beneath) else { break };
        made = read_once(place, found, &dir, known);
    }
    Some(made)
}

fn read_once(
    place: &Place<'_>,
    found: &walk::Manifest,
    dir: &Arc<Dir>,
    known: Option<(&Candidate<FoundSkill>, &Arc<Remembered>)>,
) -> Made {
    let logical = found.path.parent().unwrap_or(place.root);
    let id = place.id(logical);
    if let Some((candidate, before)) = known
        && let Some(real) = &found.real
        && before.is_as_it_was(real, id, dir, &place.sight)
    {
        return (candidate.clone(), Some(Arc::clone(before)));
    }
    let path: Arc<Path> = match known {
        Some((candidate, _)) => Arc::clone(&candidate.path),
        None => found.path.as_path().into(),
    };
    let identity = place.identity(logical);
    // A playbook has its name before it is read.
    let name = identity.as_ref().map(Identity::name).unwrap_or_default();
    let mut findings = Findings::default();
    let opened = match open_manifest(place, found) {
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
    let package = package::Place {
        root: place.canonical,
        beneath: place.sight.beneath,
        real: &opened.real,
        directory: &opened.directory,
    };
    let listing = package::list(&package, dir, rules, &mut findings);
    let at = memory::Place { path: opened.real.clone().into(), id: id.map(Into::into) };
    let mut now = Remembered::new(at, Some(Arc::clone(dir)), listing, &findings);
    if let Some((candidate, before)) = known
        && before.still(&now, place.sight.glances)
    {
        return (candidate.clone(), Some(Arc::new(before.listed_anew(now))));
    }
    let text = match now.read(&package, &opened.manifest, most) {
        Ok(text) => text,
        Err(fault) => {
            findings.fault(fault);
            return (Candidate::new(path, name, None, findings), Some(Arc::new(now)));
        }
    };
    let relative = logical.strip_prefix(place.root).unwrap_or(Path::new("")).to_string_lossy().into_owned();
    let work = Work { place, package, relative, before: known };
    let (name, value) = match &identity {
        None => {
            let (name, manifest) = manifest::read(&text, &mut findings);
            (name, manifest.and_then(|manifest| subprocess(&work, manifest, &mut now, &mut findings)))
        }
        Some(identity) => {
            let valid = logical.file_name().is_some_and(|name| name.to_str().is_some());
            if !valid {
                let message = "the directory's name is not UTF-8: rename it";
                findings.build(codes::E_NAME_INVALID, (0, 0), message);
            }
            let sheet = playbook::read(&text, identity, place.look.strict, &mut findings).filter(|_| valid);
            (name, sheet.and_then(|sheet| book(&work, sheet, &mut now, &mut findings)))
        }
    };
    if value.is_some() {
        now.forget_digests();
    }
    (Candidate::new(path, name, value.map(Arc::new), findings), Some(Arc::new(now)))
}

/// A manifest's real place.
struct Opened {
    /// Its directory, below the root, and whole.
    real: PathBuf,
    directory: Arc<Path>,
    manifest: PathBuf,
}

fn open_manifest(place: &Place<'_>, found: &walk::Manifest) -> Result<Opened, Fault> {
    let path = &found.path;
    if let Some(real) = &found.real {
        // No link is on the way; one that comes to be there is refused when the file is opened.
        let directory: Arc<Path> = match real.as_os_str().is_empty() {
            true => Arc::clone(place.canonical),
            false => place.canonical.join(real).into(),
        };
        let manifest = directory.join(path.file_name().unwrap_or_default());
        return Ok(Opened { real: real.clone(), directory, manifest });
    }
    let unreadable = |error: io::Error| {
        let message = match error.kind() {
            io::ErrorKind::NotFound => format!("{} is a link to nowhere: put the file itself there", path.display()),
            _ => format!("{} cannot be read: {error}", path.display()),
        };
        Fault::file(codes::E_UNREADABLE, Stage::Parse, message)
    };
    let directory = std::fs::canonicalize(path.parent().unwrap_or(place.root)).map_err(unreadable)?;
    let manifest = std::fs::canonicalize(path).map_err(unreadable)?;
    let (Ok(real), true) = (directory.strip_prefix(place.canonical), manifest.starts_with(place.canonical)) else {
        let (target, root) = (manifest.display(), place.root.display());
        let message = format!("the manifest is a link to {target}, out of the root {root}: put the file itself there");
        return Err(Fault::file(codes::E_ESCAPES_ROOT, Stage::Build, message));
    };
    if !manifest.starts_with(&directory) {
        let target = manifest.display();
        let message = format!("the manifest is a link to {target}, out of its directory: put the file itself there");
        return Err(Fault::file(codes::E_MANIFEST_OUTSIDE, Stage::Build, message));
    }
    Ok(Opened { real: real.to_owned(), directory: directory.into(), manifest })
}

/// What both kinds need to become a value.
struct Work<'a> {
    place: &'a Place<'a>,
    package: package::Place<'a>,
    relative: String,
    before: Option<(&'a Candidate<FoundSkill>, &'a Arc<Remembered>)>,
}

fn subprocess(
    work: &Work<'_>,
    manifest: Manifest,
    now: &mut Remembered,
    findings: &mut Findings,
) -> Option<FoundSkill> {
    let glances = work.place.sight.glances;
    let program = entry::check(&manifest.entry, &work.package, &manifest.env_allow, now, glances, findings)?;
    let outside = match entry::in_package(&program, &manifest.entry, work.package.directory, now.items()) {
        Ok(packaged) => packaged,
        Err(message) => {
            findings.build(codes::E_ENTRY_NOT_PACKAGED, manifest.entry.position, message);
            return None;
        }
    };
    let (path, files) = match outside {
        entry::Packaged::Inside(path) => (path, hashed(work, now.items(), now, findings)?),
        entry::Packaged::Outside(item) => {
            let message = format!(
                "the entry {} lies outside of the skill's directory: it is packaged as {}, its neighbours are not",
                program.path.display(),
                item.path
            );
            findings.warn(codes::W_ENTRY_OUTSIDE, manifest.entry.position, message);
            now.watch(vec![glances.at(&program.path)]);
            let (path, mut items) = (item.path.clone(), now.items().to_vec());
            package::add(&mut items, item, findings);
            (path, hashed(work, &items, now, findings)?)
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
    Some(FoundSkill {
        skill: Skill {
            name: manifest.name,
            description: manifest.description,
            source: work.place.source,
            digest: files.digest,
            path: work.relative.clone(),
            kind,
            card,
            extra: manifest.extra,
            modified_at: files.modified_at,
        },
        package: Package { directory: Arc::clone(work.package.directory), files: files.files },
        tier: Some(Tier::Free),
    })
}

fn book(work: &Work<'_>, sheet: Sheet, now: &mut Remembered, findings: &mut Findings) -> Option<FoundSkill> {
    if let Some(host) = &work.place.look.host {
        let mut watched = Vec::new();
        host.check(&sheet.playbook.requires, sheet.requires_at, &mut watched, findings);
        now.watch(watched.iter().map(|path| work.place.sight.glances.at(path)).collect());
    }
    let files = hashed(work, now.items(), now, findings)?;
    let tier = own_tier(&sheet.extra);
    Some(FoundSkill {
        skill: Skill {
            name: sheet.name,
            description: sheet.description,
            source: work.place.source,
            digest: files.digest,
            path: work.relative.clone(),
            kind: Kind::Playbook(sheet.playbook.into()),
            card: sheet.card,
            extra: sheet.extra,
            modified_at: files.modified_at,
        },
        package: Package { directory: Arc::clone(work.package.directory), files: files.files },
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

/// The files of a package, read.
struct Hashed {
    files: Vec<SourceFile>,
    digest: Digest,
    modified_at: SystemTime,
}

/// The package's files and its digest, unless something about the package is wrong already.
fn hashed(work: &Work<'_>, items: &[Item], now: &Remembered, findings: &mut Findings) -> Option<Hashed> {
    if findings.failed().is_some() {
        return None;
    }
    // What was read for its values is hashed as it was read: values and digest are of one version.
    let before = |item: &Item| {
        let (candidate, remembered) = work.before?;
        let files = candidate.value.as_ref().map(|found| found.package.files.as_slice()).unwrap_or_default();
        remembered.known(item, files)
    };
    let known = |item: &Item| now.noted(item).or_else(|| before(item));
    let files = package::hash(&work.package, items, known, findings);
    let digest = Digest::of_package(files.iter().map(|file| &file.file));
    let modified_at = items.iter().map(|item| item.stamp.modified_at()).max().unwrap_or(SystemTime::UNIX_EPOCH);
    Some(Hashed { files, digest, modified_at })
}
