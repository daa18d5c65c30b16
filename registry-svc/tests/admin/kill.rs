//! `registry-svc sync` as a process: killed at any moment, and what it says by its exit code.

#![expect(clippy::disallowed_methods, reason = "tests start the real binary")]

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::bed::{Admin, Bed, Skill, Trick};
use crate::world::{PATIENCE, eventually, memory_kib};

/// A sync that goes on.
pub(crate) struct Sync(Child);

impl Sync {
    pub(crate) fn start(bed: &Bed, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_registry-svc"));
        command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.args(["sync", "--admin-url", &bed.admin.url(), "--cloud-dir"]).arg(bed.path("")).args(more);
        Self(command.spawn().unwrap())
    }

    pub(crate) async fn ended(mut self) -> i32 {
        eventually(async || self.0.try_wait().unwrap()).await.code().unwrap()
    }

    /// How it ended, and the most memory that it had, in KiB.
    pub(crate) async fn ended_with_memory(mut self) -> (i32, u64) {
        let (pid, end) = (self.0.id(), Instant::now() + 2 * PATIENCE);
        let mut most = 0;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return (status.code().unwrap(), most);
            }
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            if status.contains("VmHWM") {
                most = most.max(memory_kib(pid, "VmHWM"));
            }
            assert!(Instant::now() < end, "it does not end");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sync {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn exit_codes() {
    let bed = Bed::new().await;
    bed.admin.put("a", Skill::new("a", "1"));
    assert_eq!(Sync::start(&bed, &[]).ended().await, 0);
    assert_eq!(Sync::start(&bed, &[]).ended().await, 0, "nothing is new");
    bed.admin.put("a", Skill::new("a", "2"));
    bed.admin.trick("a", [Trick::Status(404)]);
    assert_eq!(Sync::start(&bed, &[]).ended().await, 1, "one has failed");
    bed.admin.trick("manifest", [Trick::Status(401)]);
    assert_eq!(Sync::start(&bed, &[]).ended().await, 9, "no answer");
    assert_eq!(Sync::start(&bed, &["--tier", "gold"]).ended().await, 64);
    bed.admin.asked();
    let before = bed.tree();
    assert_eq!(Sync::start(&bed, &["--offline"]).ended().await, 0);
    assert_eq!((bed.admin.asked().len(), bed.tree()), (0, before), "offline");
    assert_eq!(Sync::start(&bed, &[]).ended().await, 0);
    assert_eq!(bed.tree(), bed.admin.tree());
}

/// Two editions of some skills: every file of one says which it is.
fn publish(admin: &Admin, edition: usize) {
    admin.publish(|shop| {
        shop.skills.clear();
        for i in 0..30 {
            let (id, text) = (format!("s{i}"), format!("edition {edition}"));
            let mut skill = Skill::new(&id, &text).file("one.md", &text).file("more/two.md", &text);
            match i {
                // These come and go, change their folders, and change places.
                0..5 if edition.is_multiple_of(2) => continue,
                5..10 => skill = skill.in_dir(&format!("folder {i} {}", edition % 3)),
                10..20 => skill = skill.in_dir(&format!("place {}", (i + edition) % 10)),
                _ => {}
            }
            shop.skills.insert(id, skill);
        }
    });
}

/// Every skill is whole, and of one edition.
fn check(bed: &Bed, edition: usize) {
    let mut folders: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (path, content) in bed.tree() {
        let (folder, _) = path.split_once('/').unwrap();
        let text = String::from_utf8(content).unwrap();
        let text = text.trim_end().rsplit('\n').next().unwrap().to_owned();
        folders.entry(folder.to_owned()).or_default().push(text);
    }
    for (folder, texts) in folders {
        let now = format!("edition {edition}");
        let before = format!("edition {}", edition.saturating_sub(1));
        assert!(texts.len() == 3 && texts.iter().all(|text| *text == texts[0]), "{folder}: {texts:?}");
        assert!(texts[0] == now || texts[0] == before, "{folder} is of {}, and published is {now}", texts[0]);
    }
}

/// `SKILLYARD_TEST_KILLS` makes it more often than in the usual run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_at_any_moment_it_ends_in_what_is_published() {
    let kills = std::env::var("SKILLYARD_TEST_KILLS").map_or(25, |kills| kills.parse().unwrap());
    let bed = Bed::new().await;
    publish(&bed.admin, 0);
    let began = Instant::now();
    assert_eq!(Sync::start(&bed, &[]).ended().await, 0);
    let mut whole = began.elapsed();
    let mut cut_off = 0;
    for edition in 1..=kills {
        publish(&bed.admin, edition);
        let began = Instant::now();
        let mut sync = Sync::start(&bed, &[]);
        let share = f64::from(u32::try_from(edition * 7919 % 1000).unwrap()) / 1000.0;
        if edition.is_multiple_of(2) {
            // Somewhere between its start and its end.
            tokio::time::sleep(whole.mul_f64(share)).await;
        } else {
            // In the middle of the renames.
            while !bed.path(".sync/commit.json").exists() && sync.0.try_wait().unwrap().is_none() {
                tokio::time::sleep(Duration::from_micros(50)).await;
            }
            tokio::time::sleep(Duration::from_millis(10).mul_f64(share)).await;
        }
        sync.kill();
        cut_off += usize::from(bed.path(".sync/commit.json").exists());
        check(&bed, edition);
        assert_eq!(Sync::start(&bed, &[]).ended().await, 0);
        whole = (whole + began.elapsed().min(2 * whole)) / 2;
        assert_eq!(bed.tree(), bed.admin.tree(), "after kill {edition}");
        let left: Vec<_> = std::fs::read_dir(bed.path(".sync/stage")).unwrap().collect();
        assert!(left.is_empty() && !bed.path(".sync/commit.json").exists(), "{left:?}");
    }
    println!("{cut_off} of {kills} were killed in the middle of the renames");
}
