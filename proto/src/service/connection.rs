//! A client's connection: plain or encrypted, and closed so that the client gets all that was said before.
//!
//! A socket that is closed while bytes of the client wait in it is reset, and one whose host goes away with it (a pod that
//! ends) is forgotten: both may take the last answers with them. So the end lingers until the client has closed too.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::tls::Peer;

/// How long a client may take to close after the server has.
const LINGER: Duration = Duration::from_secs(1);

/// A client's connection, ready to be served.
pub(crate) struct Connection {
    stream: Stream,
    /// The server has said its last, and the client may until then.
    lingering: Option<Pin<Box<Sleep>>>,
}

enum Stream {
    /// As it came.
    Plain(TcpStream),
    /// After the handshake.
    Encrypted(Box<TlsStream<TcpStream>>),
}

impl Connection {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self { stream: Stream::Plain(stream), lingering: None }
    }

    pub(super) fn encrypted(stream: TlsStream<TcpStream>) -> Self {
        Self { stream: Stream::Encrypted(Box::new(stream)), lingering: None }
    }

    /// Until the client has closed, or has had its time.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let until = self.lingering.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        let stream = match &mut self.stream {
            Stream::Plain(stream) => stream,
            Stream::Encrypted(stream) => stream.get_mut().0,
        };
        let mut unread = [0_u8; 4096];
        while until.as_mut().poll(context).is_pending() {
            let mut buffer = ReadBuf::new(&mut unread);
            match std::task::ready!(Pin::new(&mut *stream).poll_read(context, &mut buffer)) {
                Ok(()) if !buffer.filled().is_empty() => {}
                Ok(()) | Err(_) => break,
            }
        }
        Poll::Ready(())
    }
}

impl Connected for Connection {
    type ConnectInfo = Option<Peer>;

    fn connect_info(&self) -> Option<Peer> {
        match &self.stream {
            Stream::Plain(_) => None,
            Stream::Encrypted(stream) => Peer::of(stream),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(context, buffer),
            Stream::Encrypted(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(context, bytes),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(context),
            Stream::Encrypted(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let connection = self.get_mut();
        if connection.lingering.is_none() {
            std::task::ready!(match &mut connection.stream {
                Stream::Plain(stream) => Pin::new(stream).poll_shutdown(context),
                Stream::Encrypted(stream) => Pin::new(stream).poll_shutdown(context),
            })?;
        }
        connection.poll_linger(context).map(Ok)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Stream::Encrypted(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    /// A client that was still speaking, and the end of its connection at the server.
    async fn speaking() -> (TcpStream, tokio::task::JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(&[1; 10_000]).await.unwrap();
        server.readable().await.unwrap();
        let mut connection = Connection::plain(server);
        connection.write_all(b"last words").await.unwrap();
        (client, tokio::spawn(async move { connection.shutdown().await.unwrap() }))
    }

    #[tokio::test]
    async fn what_was_said_last_arrives_while_the_client_still_speaks() {
        let (mut client, closed) = speaking().await;
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.expect("closed, and not reset");
        assert_eq!(heard, b"last words");
        client.write_all(&[2; 10_000]).await.expect("it is still listened to");
        assert!(!closed.is_finished());
        drop(client);
        closed.await.unwrap();
    }

    #[tokio::test]
    async fn a_client_that_never_closes_is_not_waited_for_long() {
        let (client, closed) = speaking().await;
        tokio::time::timeout(30 * LINGER, closed).await.expect("it ends").unwrap();
        drop(client);
    }
}
