//! All skills in pages of 1,000, against encoding each of them anew: what the registry does itself, with all of gRPC, and
//! beside it what it takes with the kernel's part, which moves the bytes.

use std::hint::black_box;

use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use skillyard::pb::registry::v1::{ListSkillsRequest, ListSkillsResponse};
use skillyard::wire;

use crate::Options;
use crate::catalog::herd;
use crate::catalog::registry::Registry;
use crate::table::{Goal, Table};

const SKILLS: usize = 10_000;
/// The kernel counts in hundredths of a second.
const TIMES: usize = 100;

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    let registry = Registry::start(crate::place(), |root| herd::write(root, SKILLS)).await;
    let mut client = registry.catalog().await.max_decoding_message_size(16 << 20);
    for round in 0..=options.rounds {
        let (before, before_user, mut listed) = (registry.cpu(), registry.user(), Vec::new());
        for _ in 0..TIMES {
            listed.clear();
            let mut page_token = String::new();
            loop {
                let request = ListSkillsRequest { page_size: 1000, page_token, ..Default::default() };
                let page = client.list_skills(request).await.unwrap().into_inner();
                listed.extend(page.skills);
                page_token = page.next_page_token;
                if page_token.is_empty() {
                    break;
                }
            }
        }
        let (list, list_user) = (registry.cpu() - before, registry.user() - before_user);
        assert_eq!(listed.len(), SKILLS);
        let values: Vec<_> = listed.into_iter().map(|skill| wire::skill_from_wire(skill).unwrap()).collect();
        let began = own();
        for _ in 0..TIMES {
            for page in values.chunks(1000) {
                let skills = page.iter().map(wire::skill_to_wire).collect();
                black_box(ListSkillsResponse { skills, ..Default::default() }.encode_to_vec());
            }
        }
        let anew = own() - began;
        // The first encodes, for all later ones.
        if round > 0 {
            let per = |seconds: f64| seconds * 1e3 / TIMES as f64;
            let what = format!("ListSkills of {SKILLS}, user time");
            table.add(what, "encoding each anew", Goal::AtMost(0.25), list_user / anew);
            table.add(format!("ListSkills of {SKILLS}, ms of processor"), "", Goal::None, per(list));
        }
    }
}

/// Processor time of this thread, in seconds.
fn own() -> f64 {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}
