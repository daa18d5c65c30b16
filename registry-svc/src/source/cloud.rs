//! The mirror of an admin server, as far as its skills' names go beyond their directories: `manifest.json`, in the
//! server's shape, and what the last sync says of what is not there.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::findings::Findings;
use super::mirror::{self, Report};
use super::node::{Data, Member};
use super::text::{Text, read_bounded};
use super::{Candidate, Diagnostic, FoundSkill, Severity, Tier, codes, json, skill};

/// Most bytes of a manifest: that of 100,000 skills has about 25 MB.
pub(crate) const MAX_MANIFEST_BYTES: u64 = 32 << 20;

/// What `manifest.json` says of directories; one that is not listed is its own name.
#[derive(Debug, Default)]
pub(crate) struct Listed {
    /// The id that each directory was published under.
    pub(crate) ids: HashMap<String, String>,
    /// Whom for, where that is said.
    tiers: HashMap<String, String>,
}

/// Reads `manifest.json`.
pub(crate) fn listed(path: &Path, findings: &mut Findings) -> Listed {
    let mut listed = Listed::default();
    if matches!(std::fs::symlink_metadata(path), Err(error) if error.kind() == std::io::ErrorKind::NotFound) {
        return listed;
    }
    let read = read_bounded(path, MAX_MANIFEST_BYTES).and_then(|bytes| Text::of_file(&bytes)).and_then(|text| {
        let root = json::parse(&text)?;
        Ok((text, root))
    });
    let (text, root) = match read {
        Ok(read) => read,
        Err(mut fault) => {
            fault.code = codes::E_CLOUD_MANIFEST;
            findings.fault(fault);
            return listed;
        }
    };
    let at = text.position(root.span.start);
    let Data::Map(mut members) = root.data else {
        findings.parse(codes::E_CLOUD_MANIFEST, at, "it is not an object with \"skills\": sync again");
        return listed;
    };
    let skills = members.iter().position(|member| member.key == "skills").map(|index| members.remove(index).value);
    let Some(Data::List(skills)) = skills.map(|skills| skills.data) else {
        findings.parse(codes::E_CLOUD_MANIFEST, at, "it has no list of \"skills\": sync again");
        return listed;
    };
    for skill in skills {
        if findings.is_full() {
            break;
        }
        let at = || text.position(skill.span.start);
        let Data::Map(members) = skill.data else {
            findings.parse(codes::E_CLOUD_MANIFEST, at(), "a skill is not an object: sync again");
            continue;
        };
        let Some(id) = value(&members, "id") else {
            findings.parse(codes::E_CLOUD_MANIFEST, at(), "a skill has no \"id\": sync again");
            continue;
        };
        let directory = value(&members, "dirname").unwrap_or(id);
        if let Some(first) = listed.ids.get(directory) {
            let message =
                format!("the directory {directory:?} is listed twice, for {first:?} and for {id:?}: sync again");
            findings.parse(codes::E_CLOUD_MANIFEST, at(), message);
            continue;
        }
        listed.ids.insert(directory.to_owned(), id.to_owned());
        if let Some(tier) = value(&members, "tier") {
            listed.tiers.insert(directory.to_owned(), tier.to_owned());
        }
    }
    listed
}

/// A text that is there and not empty.
fn value<'a>(members: &'a [Member], key: &str) -> Option<&'a str> {
    let member = members.iter().find(|member| member.key == key)?;
    match &member.value.data {
        Data::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

impl Listed {
    /// Whom a skill is published for, as the server says, or else its own file.
    fn tier(&self, directory: &str, found: &FoundSkill) -> Option<Tier> {
        match self.tiers.get(directory) {
            Some(tier) => tier.parse().ok(),
            None => skill::own_tier(&found.skill.extra),
        }
    }

    /// Says of the candidates what the server and the last sync say of them, and adds what is not there.
    pub(crate) fn complete(&self, cloud_dir: &Path, candidates: &mut Vec<Candidate<FoundSkill>>) {
        let report = Report::read(cloud_dir);
        for candidate in candidates.iter_mut() {
            let directory = candidate.path.parent().and_then(Path::file_name).unwrap_or_default().to_string_lossy();
            if let Some(found) = &mut candidate.value {
                let tier = self.tier(&directory, found);
                if found.tier != tier {
                    Arc::make_mut(found).tier = tier;
                }
            }
            candidate.diagnostics.retain(|diagnostic| diagnostic.code != codes::W_SYNC_FILE_MISSING);
            candidate.diagnostics.extend(report.missing.get(directory.as_ref()).map(|paths| missing(paths)));
        }
        candidates.extend(not_there(cloud_dir, &report));
    }
}

fn missing(paths: &[String]) -> Diagnostic {
    const SHOWN: usize = 10;
    let mut message =
        format!("the admin server does not give the content of {}", paths[..paths.len().min(SHOWN)].join(", "));
    if paths.len() > SHOWN {
        message.push_str(&format!(" and {} more", paths.len() - SHOWN));
    }
    let code = codes::W_SYNC_FILE_MISSING;
    Diagnostic { severity: Severity::Warning, code, message, line: 0, column: 0 }
}

/// What the last sync could not, or need not, bring here.
fn not_there(cloud_dir: &Path, report: &Report) -> Vec<Candidate<FoundSkill>> {
    let path = cloud_dir.join(mirror::MANIFEST);
    let candidate = |name: &str, findings| Candidate::new(path.clone(), name.to_owned(), None, findings);
    let mut candidates = Vec::new();
    for (id, code, message) in &report.refused {
        let mut findings = Findings::default();
        match *code {
            codes::W_SYNC_TIER => findings.warn(code, (0, 0), message.clone()),
            code => findings.build(code, (0, 0), message.clone()),
        }
        candidates.push(candidate(id, findings));
    }
    // Last, so that it does not change the places of the others.
    if !report.failed.is_empty() {
        let mut findings = Findings::default();
        findings.build(codes::E_SYNC_SERVER, (0, 0), report.failed.clone());
        candidates.push(candidate("", findings));
    }
    candidates
}
