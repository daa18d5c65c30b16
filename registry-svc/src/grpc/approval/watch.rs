//! WatchApprovals: what is there at the beginning, and every change after it, whichever registry made it.

use std::collections::HashMap;

use skillyard::pb::registry::v1 as pb;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{has_ended, store_failed, wire};
use crate::catalog::reload::Unavailable;
use crate::store::approval::{Approval, State};
use crate::store::approvals::{Cursor, Filter};
use crate::store::{Store, StoreError};

/// Approvals that are read at once.
const BATCH: usize = 100;
/// Messages that wait for a slow client: the next is made when one of them is taken.
const AHEAD: usize = 2;

type Sender = mpsc::Sender<Result<pb::WatchApprovalsResponse, Status>>;

/// Begins to send. The approvals are read as the client takes them.
pub(super) async fn start(
    store: Store,
    filter: Filter,
) -> Result<ReceiverStream<Result<pb::WatchApprovalsResponse, Status>>, StoreError> {
    let (sender, receiver) = mpsc::channel(AHEAD);
    // Before anything is read: what changes meanwhile comes once more, and nothing is missed.
    let cursor = store.cursor().await?;
    tokio::spawn(async move {
        let watch = Watch { store, filter, sender: sender.clone(), sent: HashMap::new() };
        tokio::select! {
            () = sender.closed() => {}
            result = watch.run(cursor) => if let Err(End::Failed(status)) = result {
                // The client may have gone.
                let _ = sender.send(Err(*status)).await;
            },
        }
    });
    Ok(ReceiverStream::new(receiver))
}

struct Watch {
    store: Store,
    filter: Filter,
    sender: Sender,
    /// The last change of those sent at the beginning, which may come again.
    sent: HashMap<uuid::Uuid, i64>,
}

/// Why a watch ends.
enum End {
    Gone,
    Failed(Box<Status>),
}

impl From<StoreError> for End {
    fn from(error: StoreError) -> Self {
        Self::Failed(Box::new(store_failed(error).into()))
    }
}

impl Watch {
    async fn run(mut self, mut cursor: Cursor) -> Result<(), End> {
        let mut clock = self.store.subscribe();
        self.beginning().await?;
        loop {
            clock.borrow_and_update();
            loop {
                let (changes, next) = self.store.changes(&self.filter, &cursor, BATCH).await?;
                cursor = next;
                let full = changes.len() == BATCH;
                for approval in changes {
                    if self.sent.remove(&approval.id) == Some(approval.changed) {
                        continue;
                    }
                    let ended = self.filter.id.is_some() && has_ended(approval.state);
                    self.send(approval).await?;
                    if ended {
                        return Ok(());
                    }
                }
                if !full {
                    break;
                }
            }
            self.sent.clear();
            if clock.changed().await.is_err() {
                let status = super::unavailable(Unavailable::Stopping).into();
                return Err(End::Failed(Box::new(status)));
            }
        }
    }

    /// Those that something may become of, where the client did not say which.
    async fn beginning(&mut self) -> Result<(), End> {
        let mut filter = self.filter.clone();
        if filter.id.is_none() && filter.states.is_empty() {
            filter.states = vec![State::Pending, State::Approved];
        }
        let mut after = None;
        loop {
            let found = self.store.approvals(&filter, after, BATCH).await?;
            after = found.last().map(|last| last.id);
            let full = found.len() == BATCH;
            for approval in found {
                self.sent.insert(approval.id, approval.changed);
                self.send(approval).await?;
            }
            if !full {
                return Ok(());
            }
        }
    }

    async fn send(&self, approval: Approval) -> Result<(), End> {
        let response = pb::WatchApprovalsResponse { approval: Some(wire::short(approval)) };
        self.sender.send(Ok(response)).await.map_err(|_| End::Gone)
    }
}
