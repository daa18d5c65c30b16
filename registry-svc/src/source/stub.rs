//! A stand-in until discovery is merged.
#![allow(missing_docs, clippy::unwrap_used, clippy::allow_attributes_without_reason)]
use super::*;
use skillyard::skill::*;
use skillyard::{Digest, PermissionMode, SkillName};
use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, SystemTime};

#[derive(Clone, Debug)]
pub struct Layout {
    pub external_dirs: Vec<PathBuf>,
    pub skill_roots: Vec<PathBuf>,
    pub cloud_dir: Option<PathBuf>,
    pub workspace: Option<PathBuf>,
    pub tier: Tier,
    pub agents_dir: Option<PathBuf>,
}
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    Free,
    Lab,
}
impl std::fmt::Display for Tier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", if *self == Tier::Free { "free" } else { "lab" })
    }
}
#[derive(Debug, thiserror::Error)]
#[error("{0:?} is no tier: write free or lab")]
pub struct TierError(String);
impl std::str::FromStr for Tier {
    type Err = TierError;
    fn from_str(s: &str) -> Result<Self, TierError> {
        match s {
            "free" => Ok(Self::Free),
            "lab" => Ok(Self::Lab),
            _ => Err(TierError(s.into())),
        }
    }
}
pub fn roots(l: &Layout) -> Vec<Root> {
    let mut v = vec![];
    let mut add = |p: PathBuf, kind, ok: bool| {
        let state = if !p.is_absolute() {
            RootState::NotAbsolute
        } else if !ok {
            RootState::NotEntitled
        } else {
            RootState::Registered
        };
        v.push(Root { path: p, kind, state });
    };
    for p in &l.external_dirs {
        add(p.clone(), RootKind::Skills(Source::External), true);
    }
    for p in &l.skill_roots {
        add(p.clone(), RootKind::Skills(Source::Override), true);
    }
    if let Some(p) = &l.cloud_dir {
        add(p.join("skills"), RootKind::Skills(Source::Cloud), true);
    }
    if let Some(p) = &l.workspace {
        add(p.join("skills"), RootKind::Skills(Source::Project), l.tier >= Tier::Lab);
        add(p.join(".omicos/skills"), RootKind::Skills(Source::ProjectLegacy), l.tier >= Tier::Lab);
    }
    if let Some(p) = &l.agents_dir {
        add(p.clone(), RootKind::Agents, true);
    }
    v
}
pub fn split_dirs(s: &str) -> Vec<PathBuf> {
    s.split([':', ',']).map(str::trim).filter(|s| !s.is_empty()).map(PathBuf::from).collect()
}
pub fn split_roots(s: &str) -> Vec<PathBuf> {
    s.split(':').map(PathBuf::from).filter(|p| !p.as_os_str().is_empty()).collect()
}
fn entries(root: &Root) -> Option<Vec<PathBuf>> {
    let mut v: Vec<_> = std::fs::read_dir(&root.path).ok()?.filter_map(|e| Some(e.ok()?.path())).collect();
    v.sort();
    Some(v)
}
impl<T> Scan<T> {
    pub fn new(root: Root, candidates: Vec<Candidate<T>>) -> Self {
        Self { root, candidates }
    }
    pub fn needs_second_look(&self) -> bool {
        false
    }
}
pub fn open(f: &SourceFile) -> std::io::Result<File> {
    File::open(&f.origin)
}
fn package(dir: &Path) -> (Package, SystemTime) {
    let mut files = vec![];
    let mut m = SystemTime::UNIX_EPOCH;
    for e in walkdir::WalkDir::new(dir).sort_by_file_name() {
        let e = e.unwrap();
        if e.file_type().is_file() {
            let c = std::fs::read(e.path()).unwrap();
            let md = e.metadata().unwrap();
            m = m.max(md.modified().unwrap());
            files.push(SourceFile {
                file: PackageFile {
                    path: e.path().strip_prefix(dir).unwrap().to_str().unwrap().parse().unwrap(),
                    size: c.len() as u64,
                    executable: md.permissions().mode() & 0o111 != 0,
                    sha256: Digest::of(&c),
                },
                origin: e.path().into(),
            });
        }
    }
    files.sort_by(|a, b| a.file.path.cmp(&b.file.path));
    (Package { directory: dir.into(), files }, m)
}
fn error(path: PathBuf, name: &str, stage: Stage, m: &str) -> Candidate<FoundSkill> {
    Candidate {
        path,
        name: name.into(),
        value: None,
        diagnostics: vec![Diagnostic {
            severity: Severity::Error,
            code: "E_STUB",
            message: m.into(),
            line: 1,
            column: 2,
        }],
        failed: Some(stage),
    }
}
pub fn scan_skills(root: &Root, _: Option<&SkillScan>) -> SkillScan {
    let RootKind::Skills(source) = root.kind else { unreachable!() };
    let Some(es) = entries(root) else {
        return Scan { root: Root { state: RootState::Missing, ..root.clone() }, candidates: vec![] };
    };
    let mut candidates = vec![];
    for dir in es {
        let external = source == Source::External;
        let path = dir.join(if external { "skill.json" } else { "SKILL.md" });
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let dirname = dir.file_name().unwrap().to_str().unwrap().to_owned();
        let (name, description, kind, card) = if external {
            let v: serde_json::Value = match serde_json::from_str(&text) {
                Ok(v) => v,
                Err(e) => {
                    candidates.push(error(path, "", Stage::Parse, &e.to_string()));
                    continue;
                }
            };
            let name = v["name"].as_str().unwrap_or("").to_owned();
            let class = match v["class"].as_str() {
                Some("mutating") => Class::Mutating,
                Some("dangerous") => Class::Dangerous,
                _ => Class::Safe,
            };
            let entry = v["entry"].as_str().unwrap_or("");
            let Ok(entry) = entry.parse() else {
                candidates.push(error(
                    path,
                    &name,
                    Stage::Build,
                    &format!("entry {entry} escapes allowlist root {}", root.path.display()),
                ));
                continue;
            };
            let sub =
                Subprocess { schema_json: EMPTY_SCHEMA.into(), entry, env_allow: vec![], timeout_seconds: 30, class };
            let card = Card { category: v["category"].as_str().unwrap_or("external").into(), ..Card::default() };
            (name, v["description"].as_str().unwrap_or("").to_owned(), Kind::Subprocess(sub), card)
        } else {
            (dirname.clone(), text.clone(), Kind::Playbook(Playbook::default()), Card::default())
        };
        let name: SkillName = name.parse().unwrap();
        let (package, modified_at) = package(&dir);
        let files: Vec<_> = package.files.iter().map(|f| f.file.clone()).collect();
        let skill = Skill {
            name: name.clone(),
            description,
            source,
            digest: Digest::of_package(&files),
            path: dirname,
            kind,
            card,
            extra: Default::default(),
            modified_at,
        };
        candidates.push(Candidate {
            path,
            name: name.to_string(),
            value: Some(Arc::new(FoundSkill { skill, package })),
            diagnostics: vec![],
            failed: None,
        });
    }
    Scan { root: root.clone(), candidates }
}
pub fn scan_agents(root: &Root, _: Option<&AgentScan>) -> AgentScan {
    let Some(es) = entries(root) else {
        return Scan { root: Root { state: RootState::Missing, ..root.clone() }, candidates: vec![] };
    };
    let mut candidates = vec![];
    for path in es {
        let Ok(text) = std::fs::read_to_string(&path) else { continue };
        let mut a = Agent {
            name: String::new(),
            description: String::new(),
            skills: Default::default(),
            disallowed_skills: Default::default(),
            permission_mode: PermissionMode::ReadOnly,
        };
        for line in text.lines() {
            let Some((k, v)) = line.split_once(':') else { continue };
            let list = || {
                v.trim()
                    .trim_matches(['[', ']'])
                    .split(',')
                    .map(|s| s.trim().trim_matches('"').to_owned())
                    .filter(|s| !s.is_empty())
                    .collect()
            };
            match k {
                "name" => a.name = v.trim().into(),
                "skills" => a.skills = list(),
                "disallowed_skills" => a.disallowed_skills = list(),
                _ => {}
            }
        }
        candidates.push(Candidate {
            path,
            name: a.name.clone(),
            value: Some(Arc::new(a)),
            diagnostics: vec![],
            failed: None,
        });
    }
    Scan { root: root.clone(), candidates }
}
pub fn unused(_: Duration) {}
