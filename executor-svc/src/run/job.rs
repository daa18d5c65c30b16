//! One run, from its place in the queue to its end.

use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use skillyard::schema::LARGE;
use skillyard::service::error::{Reason, Refusal};
use tracing::{error, warn};

use crate::mirror::Held;
use crate::run::admission::{RETRY_AFTER, Ticket};
use crate::run::approval::Guarded;
use crate::run::budget::Share;
use crate::run::explain;
use crate::run::journal::Journal;
use crate::run::outcome::{Cause, Finished, Remains};
use crate::run::patience::Patience;
use crate::run::pipes::Pipes;
use crate::run::scratch::{RunScratch, Scratch, TMPDIR};
use crate::run::table::Run;
use crate::run::tally::RunTally;
use crate::run::watch::{End, Watch};
use crate::slot::{self, Flavour, Pool, Slot};

/// A run that was accepted.
#[derive(Debug)]
pub struct Job {
    /// Its entry in the table.
    pub run: Arc<Run>,
    /// Where its start is noted.
    pub journal: Journal,
    /// Its place.
    pub ticket: Ticket,
    /// What it needs before it starts, unless it is safe.
    pub guarded: Option<Guarded>,
    /// Its package, kept until it ends.
    pub package: Held,
    /// The executable, relative to the package.
    pub entry: String,
    /// Names of the variables that the manifest allows.
    pub env_allow: Vec<String>,
    /// Its whole environment.
    pub environment: Vec<(String, String)>,
    /// What it reads on stdin.
    pub arguments: Vec<u8>,
    /// Its limit, from Started.
    pub limit: Duration,
    /// The call's deadline.
    pub deadline: Option<Instant>,
    /// Where slots come from.
    pub pool: Pool,
    /// Of what kind it is to have one.
    pub flavour: Flavour,
    /// Its share of the memory for all runs, with its arguments.
    pub memory: Share,
    /// Where scratch directories are.
    pub scratch: Scratch,
    /// Where it is counted.
    pub tally: RunTally,
}

/// What became of a run.
#[derive(Debug)]
pub struct Done {
    /// How it ended.
    pub finished: Finished,
    /// Its result, if it succeeded.
    pub result: Option<Arc<str>>,
    /// The first and last parts of its stderr, for the record.
    pub stderr: String,
}

impl Job {
    /// Runs it to its end.
    ///
    /// # Errors
    /// A refusal says that nothing was started.
    pub async fn execute(self) -> Result<Done, Refusal> {
        let accepted = Instant::now();
        let Self { run, journal, ticket, guarded, package, entry, .. } = self;
        let Self { env_allow, environment, arguments, limit, deadline, .. } = self;
        let (pool, flavour, memory, scratch, tally) = (self.pool, self.flavour, self.memory, self.scratch, self.tally);
        let mut patience = Patience::new(Arc::clone(&run), deadline);
        let ended_early = |cause: &Cause| {
            let mut remains = Remains::default();
            remains.figures.queued = accepted.elapsed();
            Ok(Done { finished: remains.ended_by(cause, None), result: None, stderr: String::new() })
        };
        let permit = match while_wanted(&run, &mut patience, ticket.slot()).await {
            Ok(permit) => permit?,
            Err(cause) => return ended_early(&cause),
        };
        tally.waited(accepted.elapsed());
        if let Some(guarded) = guarded {
            match while_wanted(&run, &mut patience, Box::pin(guarded.obtain(&permit))).await {
                Ok(obtained) => obtained?,
                Err(cause) => return ended_early(&cause),
            }
            // Its end may have been asked for at the very moment of the answer.
            if let Err(cause) = patience.check(Instant::now()) {
                return ended_early(&cause);
            }
        }
        let given = accepted.elapsed();
        // A run that waits takes no memory for what it does once it has its slot.
        let with_slot = async move {
            let program = package.path().join(&entry);
            let mut environment = environment;
            let to_have = env_allow.iter().any(|name| name == TMPDIR).then_some(&scratch);
            let started = start(&pool, flavour, &program, package.path(), &mut environment, to_have).await;
            let (mut slot, mut pipes, own) = started.map_err(|error| {
                warn!(%error, "a run could not be given to a slot");
                let message = format!("the run could not be given to a slot process: {error}; nothing was started");
                if error.is_for_want_of_room() {
                    Refusal::new(Reason::ExecutorFull, message).retry_after(RETRY_AFTER)
                } else if error.may_pass() {
                    Refusal::new(Reason::NotReady, message).retry_after(RETRY_AFTER)
                } else {
                    Refusal::new(Reason::Internal, message)
                }
            })?;
            pipes.write_arguments(arguments);
            let watch = Watch::new(Arc::clone(&run), journal, patience, limit, accepted, memory);
            let (remains, end) = watch.follow(&mut slot, &mut pipes).await;
            if run.started_at().is_some() {
                tally.spawned(remains.figures.queued.saturating_sub(given));
            }
            // The slot's next run finds nothing of this one, neither in its own directory nor beside it.
            drop(own);
            if let Some(place) = slot.scratch() {
                scratch.clear(place);
            }
            // The slot is free for the next run before the result is looked at.
            drop(slot);
            drop(permit);
            let package = match end {
                End::SpawnFailed(_) => still_whole(package).await?,
                _ => package,
            };
            let large = remains.stdout.len() > LARGE;
            let conclude = move || {
                let _held = package;
                let stderr = remains.stderr.clone().into_text();
                let (finished, result) = match end {
                    End::Stopped(cause, exit) => (remains.ended_by(&cause, exit), None),
                    End::SpawnFailed(errno) => {
                        (remains.spawn_failed(explain::spawn_failure(&entry, &program, errno)), None)
                    }
                    End::Exited(exit) => remains.exited(exit, |code| explain::exit_hint(code, &program, &env_allow)),
                };
                Done { finished, result: result.map(Arc::from), stderr }
            };
            if large {
                return Ok(tokio::task::spawn_blocking(conclude).await.unwrap_or_else(|error| {
                    error!(%error, "a result could not be looked at");
                    Done { finished: Remains::default().unreadable(), result: None, stderr: String::new() }
                }));
            }
            Ok(conclude())
        };
        Box::pin(with_slot).await
    }
}

/// The future's value, unless the run is to end before.
async fn while_wanted<T>(run: &Run, patience: &mut Patience, future: impl Future<Output = T>) -> Result<T, Cause> {
    let mut future = pin!(future);
    loop {
        patience.check(Instant::now())?;
        tokio::select! {
            biased;
            value = &mut future => return Ok(value),
            () = run.events.touched() => {}
            () = until(patience.due()) => {}
        }
    }
}

/// Makes the pipes, and the scratch directory of a run that is to have one, and hands the job to a slot.
async fn start(
    pool: &Pool,
    flavour: Flavour,
    program: &Path,
    directory: &Path,
    environment: &mut Vec<(String, String)>,
    scratch: Option<&Scratch>,
) -> Result<(Slot, Pipes, Option<RunScratch>), StartError> {
    let (pipes, stdio) = Pipes::open().map_err(StartError::Pipes)?;
    let mut slot = pool.take(flavour).await?;
    let scratch = scratch.map(|scratch| make_in(scratch, &slot)).transpose().map_err(StartError::Scratch)?;
    if let Some(scratch) = &scratch {
        // Whatever the executor's own is.
        environment.retain(|(name, _)| name != TMPDIR);
        environment.push((TMPDIR.to_owned(), utf8(scratch.path())?));
    }
    slot.start(&slot::Job { program, directory, environment }, stdio)?;
    Ok((slot, pipes, scratch))
}

/// In the slot's own directory, which no other slot may read, where files are confined.
fn make_in(scratch: &Scratch, slot: &Slot) -> io::Result<RunScratch> {
    let Some(place) = slot.scratch() else { return scratch.make(None) };
    let own = scratch.make(Some(place.path()))?;
    place.give(own.path())?;
    Ok(own)
}

fn utf8(path: &Path) -> Result<String, StartError> {
    path.to_str().map(str::to_owned).ok_or_else(|| {
        StartError::Scratch(io::Error::new(io::ErrorKind::InvalidData, "the state directory's path is not UTF-8"))
    })
}

/// What is in the store could be started when it was put there, or was refused by the registry: it may have been changed
/// by somebody's hand.
async fn still_whole(package: Held) -> Result<Held, Refusal> {
    let digest = *package.digest();
    let looked_at = tokio::task::spawn_blocking(move || package.is_whole().then_some(package)).await;
    looked_at.ok().flatten().ok_or_else(|| {
        let message = format!(
            "the files of the skill were changed on this executor, and nothing was started: they are fetched again, so try again in {RETRY_AFTER:?}"
        );
        Refusal::new(Reason::PackageChanged, message).with("digest", digest.to_string()).retry_after(RETRY_AFTER)
    })
}

#[derive(Debug, thiserror::Error)]
enum StartError {
    #[error("there is no pipe for it: {0}")]
    Pipes(#[source] io::Error),
    #[error("no scratch directory can be made for it: {0}")]
    Scratch(#[source] io::Error),
    #[error(transparent)]
    Slot(#[from] slot::SlotError),
}

impl StartError {
    /// Whether the system has no descriptor, process or memory left, and may have one when another run has ended.
    fn is_for_want_of_room(&self) -> bool {
        use rustix::io::Errno;
        matches!(self.errno(), Some(Errno::MFILE | Errno::NFILE | Errno::AGAIN | Errno::NOMEM))
    }

    /// Whether slots were killed from outside, or the disk is full: another executor can do it, and later this one.
    fn may_pass(&self) -> bool {
        use rustix::io::Errno;
        matches!(self, Self::Slot(slot::SlotError::Gone(_)))
            || matches!(self.errno(), Some(Errno::NOSPC | Errno::DQUOT))
    }

    fn errno(&self) -> Option<rustix::io::Errno> {
        let (Self::Pipes(error)
        | Self::Scratch(error)
        | Self::Slot(slot::SlotError::Spawn { source: error, .. } | slot::SlotError::Scratch(error))) = self
        else {
            return None;
        };
        rustix::io::Errno::from_io_error(error)
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => tokio::time::sleep_until(time.into()).await,
        None => std::future::pending().await,
    }
}
