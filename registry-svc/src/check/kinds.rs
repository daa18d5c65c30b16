//! Looks at a target as a root of either kind, and takes away what is said only because it was looked at as both.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use skillyard::Source;

use super::target::Target;
use crate::source::{
    Candidate, Diagnostic, FoundSkill, Look, Root, RootKind, RootState, Severity, SkillScan, codes, scan_skills_with,
};

const TOO_DEEP: &str = "a root is looked at one level deep: move the directory directly under the root, or check the \
                        directory above it";
const ALSO_A_ROOT: &str = "there are playbooks in the directories beside it: where this directory is a root, a SKILL.md \
                           directly in it is no skill";

/// What a target holds, by the kind of root that it was looked at as.
pub(super) struct Kinds {
    pub(super) programs: Vec<SkillScan>,
    pub(super) books: Vec<SkillScan>,
}

impl Kinds {
    /// Looks at a target.
    pub(super) fn of(target: &Target, look: &Look) -> Self {
        let scan = |whole, source| scan(target, look, whole, source);
        let mut kinds = Self {
            programs: target.programs().map(|whole| scan(whole, Source::External)).into_iter().collect(),
            books: target.books().into_iter().map(|whole| scan(whole, Source::Override)).collect(),
        };
        kinds.books_once(target);
        kinds.programs_beside_books();
        kinds
    }

    /// The subprocess skills that lie among them are found as such; the playbook that the directory is, is none that lies
    /// in the wrong place.
    fn books_once(&mut self, target: &Target) {
        for scan in &mut self.books {
            scan.candidates.retain(|candidate| !says(candidate, codes::W_KIND_NOT_HERE));
        }
        let [one, root] = self.books.as_mut_slice() else { return };
        let at_top = |candidate: &Candidate<FoundSkill>| candidate.path.parent() == Some(target.directory());
        root.candidates.retain(|candidate| !(at_top(candidate) && says(candidate, codes::W_LEVEL)));
        if root.candidates.iter().any(is_playbook) {
            for candidate in &mut one.candidates {
                candidate.diagnostics.push(Diagnostic {
                    severity: Severity::Warning,
                    code: codes::W_LEVEL,
                    message: ALSO_A_ROOT.to_owned(),
                    line: 0,
                    column: 0,
                });
            }
        }
    }

    /// The playbooks that the walk for programs comes upon are found as such, or are files of one, or lie too deep.
    fn programs_beside_books(&mut self) {
        let books = || self.books.iter().flat_map(|scan| &scan.candidates);
        let seen: HashSet<Arc<Path>> = books().map(|candidate| Arc::clone(&candidate.path)).collect();
        let playbooks: HashSet<PathBuf> = books()
            .filter(|candidate| is_playbook(candidate))
            .filter_map(|candidate| Some(candidate.path.parent()?.to_owned()))
            .collect();
        for scan in &mut self.programs {
            scan.candidates.retain(|candidate| {
                let stray = says(candidate, codes::W_KIND_NOT_HERE);
                let of_a_playbook = || candidate.path.ancestors().skip(1).any(|dir| playbooks.contains(dir));
                !(seen.contains(&candidate.path) || (stray && of_a_playbook()))
            });
            let diagnostics = scan.candidates.iter_mut().flat_map(|candidate| &mut candidate.diagnostics);
            for diagnostic in diagnostics.filter(|diagnostic| diagnostic.code == codes::W_KIND_NOT_HERE) {
                (diagnostic.code, diagnostic.message) = (codes::W_LEVEL, TOO_DEEP.to_owned());
            }
        }
    }
}

/// What was asked for of one look: at the whole directory as a root, or at the directory under its own root.
fn scan(target: &Target, look: &Look, whole: bool, source: Source) -> SkillScan {
    let directory = target.directory().to_owned();
    let (path, within) = if whole { (directory, None) } else { (target.parent().to_owned(), Some(directory)) };
    let root = Root { path, kind: RootKind::Skills(source), state: RootState::Registered };
    let mut scan = scan_skills_with(&Look { within, ..look.clone() }, &root, None);
    scan.candidates.retain(|candidate| target.means(&candidate.path));
    scan
}

/// What could not be told a playbook has no name.
fn is_playbook(candidate: &Candidate<FoundSkill>) -> bool {
    !candidate.name.is_empty()
}

fn says(candidate: &Candidate<FoundSkill>, code: &str) -> bool {
    candidate.diagnostics.iter().any(|diagnostic| diagnostic.code == code)
}
