//! A connection of our own to the engine, for a container's streams.
//!
//! The client has one, too, but gives what comes in pieces of a few kilobytes and takes what goes one
//! buffer at a time; a gigabyte takes a fifth longer through it. What can't be had this way (TLS, a
//! pipe of Windows, an engine that refuses) is the client's, who says why where it is refused.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::stream::{Complaints, Stream};
use crate::engine::Engine;
use crate::engine::address::Address;

/// Bytes that are read at once.
const READ_BYTES: usize = 64 * 1024;
/// Bytes before each piece, which say what it is of and how long.
const HEAD_BYTES: usize = 8;
/// The most that an answer's head may be.
const MOST_HEAD: usize = 16 * 1024;
/// How long the engine may take to answer.
const DEADLINE: Duration = Duration::from_secs(120);

/// Attaches to a container's streams; `None` where that is the client's to do.
pub(super) async fn attach(engine: &Engine, container: &str) -> Option<Stream> {
    let version = &engine.report().api_version;
    let path = format!(
        "/v{version}/containers/{container}/attach?stream=true&stdin=true&stdout=true&stderr=true"
    );
    let attached = timeout(DEADLINE, async {
        match engine.address() {
            #[cfg(unix)]
            Address::Socket(socket) => {
                let mut stream = tokio::net::UnixStream::connect(socket).await?;
                let came = upgrade(&mut stream, "localhost", &path).await?;
                let (reader, writer) = stream.into_split();
                io::Result::Ok(connected(reader, came, writer))
            }
            Address::Tcp { host, tls: None } => {
                let mut stream = TcpStream::connect(host).await?;
                stream.set_nodelay(true)?;
                let came = upgrade(&mut stream, host, &path).await?;
                let (reader, writer) = stream.into_split();
                Ok(connected(reader, came, writer))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    });
    match attached.await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a container's streams go through the client");
            None
        }
        Err(_) => None,
    }
}

/// Asks for a connection to be a stream from now on; what has come of that already.
async fn upgrade(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    host: &str,
    path: &str,
) -> io::Result<BytesMut> {
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\
         Content-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut came = BytesMut::with_capacity(READ_BYTES);
    loop {
        if let Some(end) = came.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = came.split_to(end + 4);
            if head.starts_with(b"HTTP/1.1 101 ") {
                return Ok(came);
            }
            return Err(io::Error::other(
                String::from_utf8_lossy(&head).into_owned(),
            ));
        }
        if came.len() > MOST_HEAD || stream.read_buf(&mut came).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

fn connected(
    reader: impl AsyncRead + Send + Unpin + 'static,
    came: BytesMut,
    writer: impl AsyncWrite + Send + 'static,
) -> Stream {
    let complaints = Complaints::default();
    let reader = Parted {
        reader,
        came,
        source: Source::Output,
        left: 0,
        complaints: complaints.clone(),
    };
    Stream {
        reader: Box::pin(reader),
        writer: Box::pin(writer),
        complaints,
    }
}

/// The standard output of two that come as one, in pieces.
struct Parted<R> {
    reader: R,
    came: BytesMut,
    /// What the piece is of.
    source: Source,
    /// What is left of the piece.
    left: usize,
    complaints: Complaints,
}

#[derive(Clone, Copy)]
enum Source {
    Output,
    Errors,
}

impl<R> Parted<R> {
    /// Hands on what has come, as far as there is room.
    fn hand_on(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<()> {
        loop {
            if self.left == 0 {
                let Some(&[source, _, _, _, a, b, c, d]) = self.came.first_chunk::<HEAD_BYTES>()
                else {
                    return Ok(());
                };
                self.source = match source {
                    1 => Source::Output,
                    2 => Source::Errors,
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                };
                self.left = u32::from_be_bytes([a, b, c, d]) as usize;
                self.came.advance(HEAD_BYTES);
                continue;
            }
            let here = self.left.min(self.came.len());
            let length = match self.source {
                Source::Output => here.min(buffer.remaining()),
                Source::Errors => here,
            };
            if length == 0 {
                return Ok(());
            }
            let bytes = self.came.get(..length).unwrap_or_default();
            match self.source {
                Source::Output => buffer.put_slice(bytes),
                Source::Errors => self.complaints.add(bytes),
            }
            self.came.advance(length);
            self.left -= length;
        }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Parted<R> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        loop {
            this.hand_on(buffer)?;
            if buffer.filled().len() > before || buffer.remaining() == 0 {
                return Poll::Ready(Ok(()));
            }
            // All that is left is a part of a head.
            this.came.reserve(READ_BYTES - HEAD_BYTES);
            let reader = Pin::new(&mut this.reader);
            if ready!(tokio_util::io::poll_read_buf(reader, cx, &mut this.came))? == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_comes_in_pieces_of_any_length_is_put_together() {
        let piece = |source: u8, text: &[u8]| {
            let length = u32::try_from(text.len()).unwrap().to_be_bytes();
            [&[source, 0, 0, 0], &length[..], text].concat()
        };
        let large = vec![b'x'; 3 * READ_BYTES];
        let all = [
            piece(1, b"one"),
            piece(2, b"oh "),
            piece(1, b""),
            piece(1, &large),
            piece(2, b"no"),
            piece(1, b"two"),
        ]
        .concat();
        for step in [1, 7, 100_000] {
            let (mut writer, reader) = tokio::io::duplex(step);
            let (first, rest) = all.split_at(5);
            let mut stream = connected(reader, BytesMut::from(first), tokio::io::sink());
            let writing = async {
                writer.write_all(rest).await.unwrap();
                drop(writer);
            };
            let mut text = Vec::new();
            let reading = stream.reader.read_to_end(&mut text);
            let (read, ()) = tokio::join!(reading, writing);
            assert_eq!(read.unwrap(), text.len());
            assert_eq!(text, [&b"one"[..], &large, b"two"].concat());
            assert_eq!(stream.complaints.text(), "oh no");
        }
    }

    #[tokio::test]
    async fn an_answer_that_is_no_stream_is_none() {
        for (answer, came) in [
            (
                "HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nfirst",
                Some("first"),
            ),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", None),
            ("HTTP/1.1 101", None),
        ] {
            let (mut engine, mut ours) = tokio::io::duplex(1024);
            engine.write_all(answer.as_bytes()).await.unwrap();
            engine.shutdown().await.unwrap();
            let upgraded = upgrade(&mut ours, "host", "/path").await;
            assert_eq!(upgraded.ok().as_deref(), came.map(str::as_bytes));
        }
    }
}
