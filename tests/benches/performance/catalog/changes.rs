//! One skill changes, and all watchers have it: after how long, and at what cost to the registry.

use std::time::{Duration, Instant};

use skillyard::pb::registry::v1::{WatchCatalogRequest, WatchCatalogResponse};
use tokio::sync::mpsc;
use tonic::Streaming;

use crate::Options;
use crate::catalog::herd;
use crate::catalog::registry::Registry;
use crate::table::{Goal, Table};

/// How many there are, one of which changes.
const SKILLS: [usize; 2] = [1000, 10_000];
const WATCHERS: usize = 200;
/// Changes a round: the kernel counts in hundredths of a second.
const TIMES: usize = 5;
/// After a change the registry looks once more, half a second later.
const SETTLED: Duration = Duration::from_millis(900);

pub(crate) async fn measure(options: &Options, table: &mut Table) {
    let mut costs = Vec::new();
    for skills in SKILLS {
        let registry = Registry::start(crate::place(), |root| herd::write(root, skills)).await;
        let (told, mut said) = mpsc::unbounded_channel();
        let mut watching = 0;
        let mut edition = 0;
        let (mut few, mut many) = (Vec::new(), Vec::new());
        for (watchers, costs) in [(1, &mut few), (WATCHERS, &mut many)] {
            while watching < watchers {
                let mut client = registry.packages().await.max_decoding_message_size(16 << 20);
                let mut stream = client.watch_catalog(WatchCatalogRequest::default()).await.unwrap().into_inner();
                next(&mut stream).await.unwrap();
                let told = told.clone();
                tokio::spawn(async move {
                    // Until the registry ends, or nobody listens.
                    while let Some(changed) = next(&mut stream).await {
                        if told.send((Instant::now(), changed)).is_err() {
                            return;
                        }
                    }
                });
                watching += 1;
            }
            tokio::time::sleep(SETTLED).await;
            for _ in 0..options.rounds {
                let before = registry.cpu();
                for _ in 0..TIMES {
                    let began = Instant::now();
                    edition += 1;
                    herd::edit(&registry.path(), edition);
                    let mut last = began;
                    for _ in 0..watchers {
                        let (at, changed) = said.recv().await.unwrap();
                        assert_eq!(changed, 1, "it is told of what changed alone");
                        last = last.max(at);
                    }
                    let what = format!("1 change of {skills} skills, ms until {watchers} have it");
                    table.add(what, "", Goal::AtMost(1000.0), (last - began).as_secs_f64() * 1e3);
                    tokio::time::sleep(SETTLED).await;
                }
                let cost = (registry.cpu() - before) * 1e3 / TIMES as f64;
                let what = format!("1 change of {skills} skills, ms of processor, {watchers} have it");
                table.add(what, "", Goal::None, cost);
                costs.push(cost);
            }
        }
        for (few, many) in few.iter().zip(&many) {
            let watcher = (many - few).max(0.0) * 1e3 / (WATCHERS - 1) as f64;
            table.add(
                format!("1 change of {skills} skills, µs of processor for each who has it"),
                "",
                Goal::None,
                watcher,
            );
        }
        costs.push((few, many));
    }
    if let ([first, .., last], [.., most]) = (&costs[..], SKILLS) {
        let of = |costs: &(Vec<f64>, Vec<f64>), round: usize| (costs.1[round] - costs.0[round]).max(0.01);
        for round in 0..options.rounds {
            let what = format!("1 change of {most} skills, processor time for {WATCHERS}");
            table.add(what, "1 change of 1000", Goal::AtMost(2.0), of(last, round) / of(first, round));
        }
    }
}

/// The next state or change, whole: how many skills it tells of. `None` when the registry has ended.
async fn next(stream: &mut Streaming<WatchCatalogResponse>) -> Option<usize> {
    let mut told = 0;
    loop {
        let message = stream.message().await.ok().flatten()?;
        told += message.changed.len() + message.removed.len();
        // Word that nothing has changed is no news.
        if !message.more && (message.agents.is_some() || told > 0) {
            return Some(told);
        }
    }
}
