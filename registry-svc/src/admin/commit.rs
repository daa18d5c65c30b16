//! How a mirror becomes the next one: what is to be renamed is written down first, so that whoever comes after a crash
//! finishes it. Every step can be repeated.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::mirror::{Kept, Paths, State};
use super::protocol::{Entry, Manifest};
use super::tree;

/// All that is to be done, and what is then so.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Commit {
    pub(super) steps: Vec<Step>,
    /// `manifest.json` as it was.
    pub(super) before: String,
    /// And as it will be.
    pub(super) manifest: String,
    pub(super) state: State,
}

/// One rename. `mark` is of the directory that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// A staged directory comes to its folder, which is a new one or `replaces` what the sync made before.
    Place { id: String, stage: String, folder: String, mark: String, replaces: bool },
    /// A folder gets another name.
    Move { id: String, from: String, to: String, mark: String },
    /// A folder makes room, and will be placed elsewhere.
    Lift { folder: String, stage: String, mark: String },
    /// A folder goes.
    Drop { folder: String, stage: String, mark: String },
}

/// Where a skill is to be.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) id: String,
    pub(super) folder: String,
    /// Where it lies now: staged, or else in its old folder.
    pub(super) stage: Option<String>,
    pub(super) mark: String,
}

/// A folder that an earlier sync made, as it is now.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    pub(super) name: String,
    pub(super) mark: String,
}

/// The renames from what is there to the targets; folders without a target stay, those of `removed` go. No two targets
/// have one folder, and none has that of a folder that stays.
pub(super) fn steps(there: &BTreeMap<String, Folder>, targets: &[Target], removed: &[String]) -> Vec<Step> {
    let mut fresh = (0..).map(|n| format!("old-{n}"));
    let mut stage = move || fresh.next().unwrap_or_default();
    let mut at: HashMap<&str, &str> = there.iter().map(|(id, folder)| (folder.name.as_str(), id.as_str())).collect();
    let mut old: HashMap<&str, &Folder> = there.iter().map(|(id, folder)| (id.as_str(), folder)).collect();
    let mut steps = Vec::new();
    let gone =
        |folder: &Folder, stage: String| Step::Drop { folder: folder.name.clone(), stage, mark: folder.mark.clone() };
    for folder in removed.iter().filter_map(|id| old.remove(id.as_str())) {
        at.remove(folder.name.as_str());
        steps.push(gone(folder, stage()));
    }
    let place = |target: &Target, stage: &str, replaces: bool| Step::Place {
        id: target.id.clone(),
        stage: stage.to_owned(),
        folder: target.folder.clone(),
        mark: target.mark.clone(),
        replaces,
    };
    // What is to come to another folder than it has, and where it lies now, if not in its old one.
    let mut pending: Vec<(&Target, Option<String>)> = Vec::new();
    for target in targets {
        let stays = old.get(target.id.as_str()).is_some_and(|folder| folder.name == target.folder);
        match &target.stage {
            Some(stage) if stays => steps.push(place(target, stage, true)),
            None if stays => {}
            stage => pending.push((target, stage.clone())),
        }
    }
    while !pending.is_empty() {
        let before = pending.len();
        let mut blocked = Vec::new();
        for (target, stage_now) in pending {
            if at.contains_key(target.folder.as_str()) {
                blocked.push((target, stage_now));
                continue;
            }
            let folder = old.remove(target.id.as_str());
            if let Some(folder) = folder {
                at.remove(folder.name.as_str());
            }
            at.insert(&target.folder, &target.id);
            match (stage_now, folder) {
                (Some(from), folder) => {
                    steps.push(place(target, &from, false));
                    steps.extend(folder.map(|folder| gone(folder, stage())));
                }
                (None, Some(folder)) => steps.push(Step::Move {
                    id: target.id.clone(),
                    from: folder.name.clone(),
                    to: target.folder.clone(),
                    mark: target.mark.clone(),
                }),
                (None, None) => {}
            }
        }
        pending = blocked;
        if pending.len() < before {
            continue;
        }
        // They stand in each other's way: the one in the way of the first steps aside.
        let way = at.remove(pending[0].0.folder.as_str());
        let aside = pending.iter_mut().find(|(target, _)| Some(target.id.as_str()) == way);
        match aside.and_then(|(target, stage_now)| Some((old.remove(target.id.as_str())?, stage_now))) {
            Some((folder, Some(_))) => steps.push(gone(folder, stage())),
            Some((folder, stage_now)) => {
                let stage = stage();
                *stage_now = Some(stage.clone());
                steps.push(Step::Lift { folder: folder.name.clone(), stage, mark: folder.mark.clone() });
            }
            // It has no other place to go to; the plan has no such thing.
            None => drop(pending.remove(0)),
        }
    }
    steps
}

impl Commit {
    /// Does it, also where it was begun before. Gives the ids that could not be put in their place, each with the cause:
    /// they are as they were.
    ///
    /// # Errors
    /// What is written beside the folders cannot be written; nothing is lost, and it can be done again.
    pub(super) fn carry_out(mut self, paths: &Paths) -> io::Result<Vec<(String, io::Error)>> {
        let text = serde_json::to_vec(&self).map_err(io::Error::other)?;
        tree::replace(&paths.commit(), &paths.scratch(), &text)?;
        let mut failed = Vec::new();
        for step in &self.steps {
            if let Err(error) = step.take(paths) {
                match step {
                    Step::Place { id, .. } | Step::Move { id, .. } => failed.push((id.clone(), error)),
                    Step::Lift { .. } | Step::Drop { .. } => tracing::warn!(%error, ?step, "a folder stays"),
                }
            }
        }
        tree::sync_all(&paths.skills())?;
        if !failed.is_empty() {
            self.undo(&failed.iter().map(|(id, _)| id.as_str()).collect(), paths);
        }
        let state = serde_json::to_vec(&self.state).map_err(io::Error::other)?;
        tree::replace(&paths.state(), &paths.scratch(), &state)?;
        tree::replace(&paths.manifest(), &paths.scratch(), self.manifest.as_bytes())?;
        std::fs::remove_file(paths.commit())?;
        tree::sync(&paths.work())?;
        Ok(failed)
    }

    fn undo(&mut self, ids: &BTreeSet<&str>, paths: &Paths) {
        let before = Manifest::read(self.before.as_bytes()).unwrap_or_default();
        if let Ok(mut manifest) = Manifest::read(self.manifest.as_bytes()) {
            manifest.entries.retain(|entry| !ids.contains(entry.id.as_str()));
            let there = |entry: &Entry| tree::print(&paths.skills().join(entry.directory())).is_some();
            let old = before.entries.into_iter().filter(|entry| ids.contains(entry.id.as_str()) && there(entry));
            manifest.entries.extend(old);
            manifest.version = before.version;
            self.manifest = String::from_utf8(manifest.write()).unwrap_or_default();
        }
        self.state.skills.retain(|id, _: &mut Kept| !ids.contains(id.as_str()));
        self.state.etag = None;
    }
}

impl Step {
    fn take(&self, paths: &Paths) -> io::Result<()> {
        let is = |path: &Path, wanted: &str| tree::print(path).is_some_and(|print| print.mark == wanted);
        match self {
            Self::Place { stage, folder, mark, replaces, .. } => {
                let (from, to) = (paths.stage().join(stage), paths.skills().join(folder));
                if is(&to, mark) {
                    Ok(())
                } else if *replaces && is(&from, mark) && std::fs::symlink_metadata(&to).is_ok() {
                    tree::exchange(&from, &to, &paths.stage().join(format!("{stage}-aside")))
                } else {
                    tree::rename(&from, &to)
                }
            }
            Self::Move { from, to, mark, .. } => {
                let (from, to) = (paths.skills().join(from), paths.skills().join(to));
                if is(&to, mark) { Ok(()) } else { tree::rename(&from, &to) }
            }
            Self::Lift { folder, stage, mark } | Self::Drop { folder, stage, mark } => {
                let from = paths.skills().join(folder);
                if is(&from, mark) { tree::rename(&from, &paths.stage().join(stage)) } else { Ok(()) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs;

    /// A mirror with folders by id, each with a file that says whose it is and in which version.
    struct Bed {
        dir: tempfile::TempDir,
        paths: Paths,
        there: BTreeMap<String, Folder>,
    }

    impl Bed {
        fn new(folders: &[(&str, &str)]) -> Self {
            let dir = tempfile::tempdir().unwrap();
            let paths = Paths::new(dir.path());
            fs::create_dir_all(paths.skills()).unwrap();
            fs::create_dir_all(paths.stage()).unwrap();
            let mut there = BTreeMap::new();
            for (id, name) in folders {
                let mark = write(&paths.skills().join(name), &format!("{id} old"));
                there.insert((*id).to_owned(), Folder { name: (*name).to_owned(), mark });
            }
            Self { dir, paths, there }
        }

        /// `id folder` for what moves, `id folder new` for what is new.
        fn targets(&self, texts: &[&str]) -> Vec<Target> {
            let target = |text: &&str| {
                let words: Vec<_> = text.split(' ').collect();
                let (id, folder) = (words[0].to_owned(), words[1].to_owned());
                let stage = words.get(2).map(|_| format!("new-{id}"));
                let mark = match &stage {
                    Some(stage) => write(&self.paths.stage().join(stage), &format!("{id} new")),
                    None => self.there[&id].mark.clone(),
                };
                Target { id, folder, stage, mark }
            };
            texts.iter().map(target).collect()
        }

        fn commit(&self, steps: Vec<Step>) -> Commit {
            Commit {
                steps,
                before: r#"{"skills":[]}"#.into(),
                manifest: r#"{"skills":[]}"#.into(),
                state: State::default(),
            }
        }

        fn seen(&self) -> Vec<String> {
            let mut seen: Vec<_> =
                fs::read_dir(self.paths.skills()).unwrap().map(|entry| entry.unwrap().path()).collect();
            seen.sort();
            let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
            seen.iter().map(|path| format!("{}: {}", name(path), fs::read_to_string(path.join("f")).unwrap())).collect()
        }
    }

    fn write(directory: &Path, content: &str) -> String {
        fs::create_dir(directory).unwrap();
        tree::create(&directory.join("f"), content.as_bytes(), false).unwrap();
        tree::print(directory).unwrap().mark
    }

    const THERE: [(&str, &str); 6] = [("a", "a"), ("b", "b"), ("c", "c"), ("d", "d"), ("e", "e"), ("gone", "gone")];
    /// One changed, three in a ring of which one is changed, one that moves into what goes, a new one in its place.
    const WANTED: [&str; 6] = ["a a new", "b c", "c d new", "d b", "e gone", "f e new"];
    const THEN: [&str; 6] = ["a: a new", "b: d old", "c: b old", "d: c new", "e: f new", "gone: e old"];

    #[test]
    fn every_kind_of_change_in_one_commit() {
        let bed = Bed::new(&THERE);
        let steps = steps(&bed.there, &bed.targets(&WANTED), &["gone".to_owned()]);
        assert!(bed.commit(steps).carry_out(&bed.paths).unwrap().is_empty());
        assert_eq!(bed.seen(), THEN);
        assert!(bed.paths.manifest().exists() && !bed.paths.commit().exists());
    }

    #[test]
    fn a_commit_that_was_cut_off_anywhere_is_finished() {
        let all = steps(&Bed::new(&THERE).there, &Bed::new(&THERE).targets(&WANTED), &["gone".to_owned()]).len();
        for cut in 0..=all {
            let bed = Bed::new(&THERE);
            let steps = steps(&bed.there, &bed.targets(&WANTED), &["gone".to_owned()]);
            for step in &steps[..cut] {
                step.take(&bed.paths).unwrap();
            }
            for _ in 0..2 {
                assert!(bed.commit(steps.clone()).carry_out(&bed.paths).unwrap().is_empty(), "cut after {cut}");
                assert_eq!(bed.seen(), THEN, "cut after {cut}");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        /// Any skills in any folders, of which some go, some are changed, and all may change places; cut off anywhere.
        #[test]
        fn any_change_ends_as_it_is_wanted(
            folders in Just((0..8).collect::<Vec<_>>()).prop_shuffle(),
            then in Just((0..8).collect::<Vec<_>>()).prop_shuffle(),
            kinds in proptest::collection::vec(0..4, 8),
            cut in any::<proptest::sample::Index>(),
        ) {
            let name = |prefix: &str, n: i32| format!("{prefix}{n}");
            let (ids, old): (Vec<_>, Vec<_>) = (0..8).map(|n| (name("id", n), name("f", folders[n as usize]))).unzip();
            // 0 is new, 1 goes, 2 stays as it is, 3 is changed.
            let there = ids.iter().zip(&old).zip(&kinds).filter(|(_, kind)| **kind != 0);
            let bed = Bed::new(&there.map(|((id, folder), _)| (id.as_str(), folder.as_str())).collect::<Vec<_>>());
            let wanted = ids.iter().zip(&then).zip(&kinds).filter(|(_, kind)| **kind != 1);
            let texts: Vec<_> = wanted
                .map(|((id, folder), kind)| format!("{id} f{folder}{}", if *kind == 2 { "" } else { " new" }))
                .collect();
            let targets = bed.targets(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let removed: Vec<_> = ids.iter().zip(&kinds).filter(|(_, kind)| **kind == 1).map(|(id, _)| id.clone()).collect();
            let steps = steps(&bed.there, &targets, &removed);
            for step in &steps[..cut.index(steps.len() + 1)] {
                step.take(&bed.paths).unwrap();
            }
            prop_assert!(bed.commit(steps).carry_out(&bed.paths).unwrap().is_empty());
            let mut expected: Vec<_> = targets
                .iter()
                .map(|target| {
                    let age = if target.stage.is_some() { "new" } else { "old" };
                    format!("{}: {} {age}", target.folder, target.id)
                })
                .collect();
            expected.sort();
            prop_assert_eq!(bed.seen(), expected);
        }
    }

    #[test]
    fn what_somebody_put_there_meanwhile_is_not_touched() {
        let bed = Bed::new(&[("a", "a")]);
        let steps = steps(&bed.there, &bed.targets(&["a x new", "b y new"]), &[]);
        write(&bed.paths.skills().join("x"), "mine");
        let mut commit = bed.commit(steps);
        commit.before = r#"{"skills":[{"id":"a","hash":"1"}],"version":"1"}"#.into();
        commit.manifest =
            r#"{"skills":[{"id":"a","hash":"2","dirname":"x"},{"id":"b","hash":"1","dirname":"y"}],"version":"2"}"#
                .into();
        let failed = commit.carry_out(&bed.paths).unwrap();
        assert_eq!(failed.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(), ["a"]);
        assert_eq!(bed.seen()[0], "x: mine", "{:?}", bed.dir);
    }
}
