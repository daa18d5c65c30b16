//! The signals that a service heeds: SIGTERM and SIGINT ask it to stop, a second one to be quick about it. SIGHUP changes
//! nothing, since files are followed by themselves.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tracing::info;

/// Resolves when the service is asked to stop.
pub struct Stop {
    asked: Pin<Box<dyn Future<Output = ()> + Send>>,
    count: watch::Receiver<u32>,
}

impl Stop {
    /// Heeds signals from now on, for the rest of the process. To be called in a runtime.
    ///
    /// # Errors
    /// The handlers cannot be set.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let (counter, count) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                let signal = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    _ = hangup.recv() => {
                        info!("SIGHUP: files are followed by themselves, and nothing else changes");
                        continue;
                    }
                };
                counter.send_modify(|count| *count += 1);
                match *counter.borrow() {
                    1 => info!(signal, "stopping"),
                    _ => info!(signal, "stopping at once"),
                }
            }
        });
        Ok(Self { asked: Box::pin(times(count.clone(), 1)), count })
    }

    /// Resolves when it is asked a second time.
    pub fn hastened(&self) -> impl Future<Output = ()> + Send + use<> {
        times(self.count.clone(), 2)
    }
}

impl Future for Stop {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.asked.as_mut().poll(context)
    }
}

impl std::fmt::Debug for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stop").field("count", &*self.count.borrow()).finish_non_exhaustive()
    }
}

async fn times(mut count: watch::Receiver<u32>, times: u32) {
    if count.wait_for(|count| *count >= times).await.is_err() {
        // The runtime is going away.
        std::future::pending().await
    }
}
