//! The mirror that is to be, from the plan and what was fetched: what stays, what moves, what is reported.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::commit::{Commit, Target, steps};
use super::fetch::Fetched;
use super::mirror::{Found, Kept, Mirror, State};
use super::plan::{self, Plan, Refused};
use super::protocol::{Entry, Manifest};
use super::pull::{SyncError, Synced};
use super::tree::{self, Print};
use crate::source::codes;
use crate::source::mirror::Report;

/// Most skills that are named in the load report because they are not synced.
const MAX_REPORTED: usize = 1000;

/// All that is known before the mirror is changed.
pub(super) struct Work {
    pub(super) mirror: Arc<Mirror>,
    pub(super) found: Found,
    pub(super) manifest: Manifest,
    pub(super) etag: Option<String>,
    pub(super) scope: String,
    pub(super) plan: Plan,
    pub(super) fetched: Fetched,
    pub(super) failed: Vec<Refused>,
}

impl Work {
    /// Makes the mirror the next one.
    pub(super) fn finish(mut self) -> Result<Synced, SyncError> {
        let entries = self.settle();
        let Found { here, folders, state, manifest: before, version, .. } = &self.found;
        let removed: HashSet<&str> = self.plan.remove.iter().map(String::as_str).collect();
        let held = |id: &str| !entries.contains_key(id) && !removed.contains(id);
        let mut next = Manifest::default();
        // In the server's order, so that the same manifest makes the same file.
        let mut seen = HashSet::new();
        for entry in self.manifest.entries.iter().filter(|entry| seen.insert(entry.id.as_str())) {
            next.entries.extend(
                entries.get(&entry.id).or_else(|| here.entries.get(&entry.id).filter(|_| held(&entry.id))).cloned(),
            );
        }
        next.entries.extend(
            here.entries.values().filter(|entry| !seen.contains(entry.id.as_str()) && held(&entry.id)).cloned(),
        );
        let above = |refused: &&Refused| refused.code == codes::W_SYNC_TIER;
        let refused: Vec<_> = self.plan.refused.iter().chain(&self.failed).cloned().collect();
        let complete = refused.iter().all(|refused| above(&refused));
        next.version = if complete { self.manifest.version.clone() } else { version.clone() };
        let mut targets = Vec::new();
        let mut kept =
            State { etag: self.etag.clone().filter(|_| complete), scope: self.scope.clone(), ..State::default() };
        for entry in &next.entries {
            let fresh = self.fetched.get(&entry.id).filter(|_| entries.contains_key(&entry.id));
            let old = state.skills.get(&entry.id);
            let folder = entry.directory().to_owned();
            let (stage, print, missing) = match fresh.and_then(|fresh| fresh.staged.as_ref()) {
                Some((stage, staged)) => (Some(stage.clone()), staged.print.clone(), staged.missing.clone()),
                None => {
                    let mark = folders.get(&entry.id).map(|folder| folder.mark.clone()).unwrap_or_default();
                    let shape = self.found.shapes.get(&entry.id).cloned().unwrap_or_default();
                    (None, Print { shape, mark }, old.map(|old| old.missing.clone()).unwrap_or_default())
                }
            };
            let etag = fresh.map_or_else(|| old.and_then(|old| old.etag.clone()), |fresh| fresh.etag.clone());
            // Of what was damaged and could not be fetched, it stays known that it is damaged.
            let intact = stage.is_some() || here.intact.contains(&entry.id);
            let shape = if intact { print.shape } else { String::new() };
            kept.skills.insert(entry.id.clone(), Kept { folder: folder.clone(), shape, etag, missing });
            targets.push(Target { id: entry.id.clone(), folder, stage, mark: print.mark });
        }
        let steps = steps(folders, &targets, &self.plan.remove);
        let text = next.write();
        let mut synced = Synced {
            version: next.version.clone(),
            skills: next.entries.len(),
            fetched: targets.iter().filter(|target| target.stage.is_some()).count(),
            removed: self.plan.remove.len(),
            above: refused.iter().filter(above).count(),
            changed: !steps.is_empty() || text != *before,
            ..Synced::default()
        };
        let mut report = Report::default();
        let more = refused.len().saturating_sub(MAX_REPORTED);
        for Refused { id, code, message } in refused {
            if report.refused.len() < MAX_REPORTED {
                report.refused.push((id.clone(), code, message.clone()));
            }
            if code != codes::W_SYNC_TIER {
                synced.failed.push((id, message));
            }
        }
        if more > 0 {
            report.refused.push((String::new(), codes::E_SYNC_SKILL, format!("{more} more skills are not synced")));
        }
        let missing = kept.skills.values().filter(|kept| !kept.missing.is_empty());
        report.missing = missing.map(|kept| (kept.folder.clone(), kept.missing.clone())).collect();
        if synced.changed {
            // What was fetched is on the disk before anything refers to it.
            tree::sync_all(&self.mirror.paths.work())?;
            let before = String::from_utf8_lossy(before).into_owned();
            let manifest = String::from_utf8(text).unwrap_or_default();
            for (id, error) in self.mirror.commit(Commit { steps, before, manifest, state: kept })? {
                let message = format!("it cannot be put into its folder: {error}");
                report.refused.push((id.clone(), codes::E_SYNC_SKILL, message.clone()));
                synced.failed.push((id, message));
            }
            self.mirror.sweep()?;
        } else if kept != *state {
            self.mirror.remember(&kept)?;
        }
        synced.reported = self.mirror.report(&report)?;
        Ok(synced)
    }

    /// What is as the server has it, by id. What could not be fetched keeps its folder, so that another may not have it.
    fn settle(&mut self) -> BTreeMap<String, Entry> {
        let ready = self.fetched.values().map(|fresh| &fresh.entry).chain(&self.plan.keep);
        let ready: HashSet<&str> = ready.map(|entry| entry.id.as_str()).collect();
        // In the server's order: the first of two comes first.
        let mut seen = HashSet::new();
        let wanted =
            self.manifest.entries.iter().filter(|entry| ready.contains(entry.id.as_str()) && seen.insert(&entry.id));
        let removed = self.plan.remove.iter().map(String::as_str).collect();
        let (settled, refused) = plan::settle(wanted.collect(), &self.found.here, &removed);
        let settled = settled.into_iter().map(|entry| (entry.id.clone(), entry.clone())).collect();
        self.failed.extend(refused);
        settled
    }
}
