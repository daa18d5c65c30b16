//! A wire between a client and a service: a TCP proxy that can hold back what the service says, and cut connections.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Carries all connections to one address, until it is dropped.
#[derive(Debug)]
pub struct Wire {
    /// Where clients connect.
    pub address: SocketAddr,
    state: Arc<watch::Sender<State>>,
    task: tokio::task::JoinHandle<()>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct State {
    is_held: bool,
    cuts: u64,
}

impl Wire {
    /// To a service.
    ///
    /// # Panics
    /// When there is no free port.
    pub async fn to(service: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(State::default()));
        let task = tokio::spawn({
            let state = Arc::clone(&state);
            async move {
                loop {
                    let (client, _) = listener.accept().await.unwrap();
                    tokio::spawn(carry(client, service, state.subscribe()));
                }
            }
        });
        Self { address, state, task }
    }

    /// From now on nothing that the service says gets through.
    pub fn hold_answers(&self) {
        self.state.send_modify(|state| state.is_held = true);
    }

    /// Cuts all connections; those that follow get through whole.
    pub fn cut(&self) {
        self.state.send_modify(|state| *state = State { is_held: false, cuts: state.cuts + 1 });
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.task.abort();
        self.cut();
    }
}

async fn carry(client: TcpStream, service: SocketAddr, mut state: watch::Receiver<State>) {
    let cuts = state.borrow().cuts;
    let Ok(service) = TcpStream::connect(service).await else { return };
    let ((mut from_client, mut to_client), (mut from_service, mut to_service)) =
        (client.into_split(), service.into_split());
    let mut held = state.clone();
    // An end of either direction, or an error, is the end of both.
    let asks = async { tokio::io::copy(&mut from_client, &mut to_service).await.map(drop) };
    let answers = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_service.read(&mut buffer).await?;
            if read == 0 || held.wait_for(|state| !state.is_held).await.is_err() {
                return Ok::<_, std::io::Error>(());
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        biased;
        _ = state.wait_for(|state| state.cuts != cuts) => {}
        _ = asks => {}
        _ = answers => {}
    }
}
