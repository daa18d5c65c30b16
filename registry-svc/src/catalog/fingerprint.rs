//! Hashes of what a catalog holds: of one skill, of one agent, and of all together, which is the catalog's version.
//!
//! Never of when or where: modification times, and the directories that roots lie in, differ between replicas over the
//! same files.

use skillyard::digest::Hasher;
use skillyard::skill::{Card, Kind, Playbook, Requirements, Subprocess};
use skillyard::{Agent, Digest, Skill};

/// The version of a catalog, from the fingerprints of its skills and of its agents, each in order of their names.
pub fn of_catalog<'a>(
    skills: impl ExactSizeIterator<Item = &'a Digest>,
    agents: impl ExactSizeIterator<Item = &'a Agent>,
) -> Digest {
    let mut fields = Fields::new("catalog");
    fields.number(skills.len());
    for fingerprint in skills {
        fields.bytes(fingerprint.as_bytes());
    }
    fields.number(agents.len());
    for agent in agents {
        fields.bytes(of_agent(agent).as_bytes());
    }
    fields.finish()
}

/// What a caller could see of a skill, package included, but not when its files were written.
#[must_use]
pub fn of_skill(skill: &Skill) -> Digest {
    let Skill { name, description, source, digest, path, kind, card, extra, modified_at: _ } = skill;
    let Card { category, category_order, summary, use_when, example_prompts } = card;
    let mut fields = Fields::new("skill");
    for text in [name.as_str(), description, source.as_str(), path, category, summary, use_when] {
        fields.text(text);
    }
    fields.bytes(digest.as_bytes());
    fields.text(&category_order.map(|order| order.to_string()).unwrap_or_default());
    fields.texts(example_prompts);
    match kind {
        Kind::Subprocess(Subprocess { schema_json, entry, env_allow, timeout_seconds, class }) => {
            for text in ["subprocess", schema_json, entry.as_str(), &timeout_seconds.to_string(), class.as_str()] {
                fields.text(text);
            }
            fields.texts(env_allow);
        }
        Kind::Playbook(playbook) => {
            let Playbook { when_to_use, license, compatibility, allowed_tools, tools, requires, activation } =
                &**playbook;
            for text in ["playbook", when_to_use, license, compatibility, activation] {
                fields.text(text);
            }
            let Requirements { os, bins, config } = requires;
            for list in [allowed_tools, os, bins, config] {
                fields.texts(list);
            }
            fields.number(tools.len());
            for tool in tools {
                let class = tool.class.map_or("", |class| class.as_str());
                for text in [&tool.name, &tool.implementation, class, &tool.description] {
                    fields.text(text);
                }
            }
        }
    }
    fields.number(extra.len());
    for (key, value) in extra {
        fields.text(key);
        fields.text(&value.to_string());
    }
    fields.finish()
}

fn of_agent(agent: &Agent) -> Digest {
    let Agent { name, description, skills, disallowed_skills, permission_mode } = agent;
    let mut fields = Fields::new("agent");
    fields.text(name);
    fields.text(description);
    fields.texts(skills);
    fields.texts(disallowed_skills);
    fields.text(permission_mode.as_str());
    fields.finish()
}

/// Fields one after the other, each with its length, so that no two different values hash the same bytes.
struct Fields(Hasher);

impl Fields {
    fn new(what: &str) -> Self {
        let mut fields = Self(Hasher::default());
        fields.text(what);
        fields
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len());
        self.0.update(bytes);
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn texts<'a>(&mut self, texts: impl IntoIterator<Item = &'a String, IntoIter: ExactSizeIterator>) {
        let texts = texts.into_iter();
        self.number(texts.len());
        for text in texts {
            self.text(text);
        }
    }

    fn number(&mut self, number: usize) {
        self.0.update(&(number as u64).to_le_bytes());
    }

    fn finish(self) -> Digest {
        self.0.finish()
    }
}
