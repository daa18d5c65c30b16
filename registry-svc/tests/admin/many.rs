//! Ten thousand skills.

use crate::bed::{Bed, Skill};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_skills() {
    let bed = Bed::new().await;
    bed.admin.publish(|shop| {
        for i in 0..10_000 {
            let id = format!("skill-{i:05}");
            shop.skills.insert(id.clone(), Skill::new(&id, "does what it says").in_dir(&format!("Skill {i:05}")));
        }
    });
    assert_eq!(bed.sync().await.fetched, 10_000);
    bed.admin.asked();
    assert!(!bed.sync().await.changed);
    assert_eq!(bed.admin.asked().len(), 1);
    bed.admin.put("skill-07777", Skill::new("skill-07777", "does more").in_dir("Skill 07777"));
    assert_eq!(bed.sync().await.fetched, 1);
    assert_eq!(bed.admin.asked().len(), 2);
    bed.admin.publish(|shop| shop.skills.retain(|id, _| id.as_str() < "skill-00010"));
    assert_eq!(bed.sync().await.removed, 9_990);
}
