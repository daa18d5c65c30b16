//! What people browse and search, asked of the real binary over a real socket.

use skillyard::pb::registry::v1 as pb;
use tonic::{Code, Status};

use super::world::{Registry, World};
use super::{catalog, refusal, refused, reload};

async fn search(registry: &Registry, request: pb::SearchSkillsRequest) -> Result<pb::SearchSkillsResponse, Status> {
    Ok(catalog(registry).search_skills(request).await?.into_inner())
}

async fn names(registry: &Registry, query: &str, agent: &str) -> Vec<String> {
    let request = pb::SearchSkillsRequest { query: query.into(), agent: agent.into(), limit: 0 };
    let hits = search(registry, request).await.unwrap().hits;
    assert!(hits.iter().all(|hit| hit.score > 0.0) && hits.is_sorted_by(|a, b| a.score >= b.score));
    hits.into_iter().map(|hit| hit.skill.unwrap().name).collect()
}

async fn categories(registry: &Registry, agent: &str) -> Result<Vec<(String, Option<i32>, i32)>, Status> {
    let request = pb::ListCategoriesRequest { agent: agent.into() };
    let response = catalog(registry).list_categories(request).await?.into_inner();
    Ok(response.categories.into_iter().map(|c| (c.name, c.order, c.skills)).collect())
}

/// The cards of a category, in pages of this size, and how many there are.
async fn cards(registry: &Registry, category: &str, agent: &str, page_size: i32) -> (String, i32) {
    let (mut cards, mut page_token) = (Vec::new(), String::new());
    loop {
        let (category, agent) = (category.into(), agent.into());
        let request = pb::ListSkillsRequest { category, agent, page_size, page_token, ..Default::default() };
        let page = catalog(registry).list_skills(request).await.unwrap().into_inner();
        cards.extend(page.skills.into_iter().map(|skill| skill.name));
        if page.next_page_token.is_empty() {
            return (cards.join(" "), page.total_size);
        }
        page_token = page.next_page_token;
    }
}

fn described(world: &World, name: &str, description: &str, more: &str) {
    let text = format!("---\nname: {name}\ndescription: {description}\n{more}\n---\nDo.\n");
    world.write(&format!("playbooks/{name}/SKILL.md"), text);
}

#[tokio::test]
async fn skills_are_found_by_what_they_say() {
    let world = World::new();
    world.skill("disk_cleaner", "");
    described(&world, "log-guide", "How logs are read", "summary: disk");
    described(&world, "数据清洗", "整理表格里的数据，去掉重复的行", "");
    described(&world, "secret", "The disk of secrets", "");
    world.agent("narrow", "disallowed_skills: [secret]");
    world.agent("nothing", "disallowed_skills: ['*']");
    let registry = world.serve(&[]).await;
    assert_eq!(names(&registry, "cleaning a disk", "").await, ["disk_cleaner", "secret"]);
    assert_eq!(
        names(&registry, "cleaning a disk", "narrow").await,
        ["disk_cleaner"],
        "and nothing that people alone see"
    );
    assert_eq!(names(&registry, "cleaning a disk", "nothing").await, [""; 0]);
    assert_eq!(names(&registry, "重复数据", "").await, ["数据清洗"]);
    assert_eq!(names(&registry, "?!", "").await, [""; 0]);

    let first = pb::SearchSkillsRequest { query: "disk".into(), limit: 1, ..Default::default() };
    let first = search(&registry, first).await.unwrap();
    assert_eq!(first.hits.len(), 1);
    let before = reload(&registry).await;
    assert_eq!(first.catalog_version, before.catalog_version);
    world.playbook("disk");
    let after = reload(&registry).await;
    let found = pb::SearchSkillsRequest { query: "disk".into(), ..Default::default() };
    let found = search(&registry, found).await.unwrap();
    assert_eq!(found.hits[0].skill.as_ref().unwrap().name, "disk");
    assert_eq!((found.hits.len(), found.catalog_version), (3, after.catalog_version));

    let invalid = refusal(Code::InvalidArgument, "INVALID_REQUEST");
    for (query, limit) in [("", 0), (" \n", 0), (&*"x".repeat(1001), 0), ("disk", -1)] {
        let request = pb::SearchSkillsRequest { query: query.into(), limit, ..Default::default() };
        assert_eq!(refused(search(&registry, request).await), invalid, "{query:?} {limit}");
    }
    let longest = pb::SearchSkillsRequest { query: "é ".repeat(500), limit: i32::MAX, ..Default::default() };
    assert_eq!(search(&registry, longest).await.unwrap().hits.len(), 0);
    let nobody = pb::SearchSkillsRequest { query: "x".into(), agent: "nobody".into(), limit: 0 };
    assert_eq!(refused(search(&registry, nobody).await), refusal(Code::NotFound, "UNKNOWN_AGENT"));
}

#[tokio::test]
async fn categories_and_cards_in_their_order() {
    let world = World::new();
    world.skill("program", "");
    for (name, card) in [
        ("z", "category: data\ncategory_order: -1"),
        ("b", "category: data\ncategory_order: 5"),
        ("a", "category: data\ncategory_order: 5"),
        ("c", "category: data"),
        ("m", "category: ops\ncategory_order: 2"),
        ("n", "category: later"),
        ("none", "summary: s"),
    ] {
        described(&world, name, "d", card);
    }
    world.agent("narrow", "disallowed_skills: [z, m]");
    let registry = world.serve(&[]).await;
    let of = |name: &str, order, skills| (name.to_owned(), order, skills);
    let all = [of("data", Some(-1), 4), of("ops", Some(2), 1), of("external", None, 1), of("later", None, 1)];
    assert_eq!(categories(&registry, "").await.unwrap(), all);
    let narrow = [of("data", Some(5), 3), of("external", None, 1), of("later", None, 1)];
    assert_eq!(categories(&registry, "narrow").await.unwrap(), narrow);
    for page_size in [0, 1, 2, 3] {
        assert_eq!(cards(&registry, "data", "", page_size).await, ("z a b c".to_owned(), 4));
        assert_eq!(cards(&registry, "data", "narrow", page_size).await, ("a b c".to_owned(), 3));
        assert_eq!(cards(&registry, "", "", page_size).await, ("a b c m n none program z".to_owned(), 8));
        assert_eq!(cards(&registry, "nobody's", "", page_size).await, (String::new(), 0));
    }
    assert_eq!(refused(categories(&registry, "nobody").await), refusal(Code::NotFound, "UNKNOWN_AGENT"));
}
