//! ListRuns: pages of runs, newest first.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use skillyard::pb::executor::v1 as pb;
use skillyard::service::caller::Caller;
use skillyard::service::error::Refusal;
use skillyard::service::page::Page;

use super::answer::run_to_wire;
use crate::run::Runner;
use crate::run::runner::Filter;
use crate::run::table::Run;

/// The time in a token, in nanoseconds since 1970.
const TIME_BYTES: usize = 8;

/// One page.
///
/// # Errors
/// INVALID_REQUEST for a size or a token that cannot be.
pub(super) fn runs(
    runner: &Runner,
    caller: &Caller,
    request: pb::ListRunsRequest,
) -> Result<pb::ListRunsResponse, Refusal> {
    let pb::ListRunsRequest { active, skill, agent, page_size, page_token } = request;
    let filters = ["ListRuns", if active { "active" } else { "all" }, &skill, &agent];
    let page = Page::of(&filters, page_size, &page_token)?;
    let filter = Filter { active, skill, agent };
    let found = runner.list(caller, &filter, page.after().map(from_token), page.lookup());
    let (runs, next_page_token) = page.cut(found.into_iter(), to_token, |run| run_to_wire(run));
    Ok(pb::ListRunsResponse { runs, next_page_token })
}

/// Where a run stands in the list.
fn to_token(run: &Arc<Run>) -> Vec<u8> {
    let since = run.call.accepted_at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    [nanos.to_be_bytes().as_slice(), run.call.id.as_str().as_bytes()].concat()
}

/// A token that was made up is some place, too.
fn from_token(bytes: &[u8]) -> (SystemTime, &str) {
    let (time, id) = bytes.split_at(bytes.len().min(TIME_BYTES));
    let mut nanos = [0; TIME_BYTES];
    nanos[..time.len()].copy_from_slice(time);
    let at = SystemTime::UNIX_EPOCH + Duration::from_nanos(u64::from_be_bytes(nanos));
    (at, std::str::from_utf8(id).unwrap_or_default())
}
