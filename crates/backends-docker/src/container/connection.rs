//! A direct connection to the engine for a container's streams.
//!
//! bollard's own `attach` reads a few kilobytes at a time and buffers whole frames, which makes a gigabyte of
//! output take a fifth longer. It remains the fall-back for TLS, Windows pipes and engines that refuse.

use std::io;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use cantle_core::sandbox::Channel;
use futures_util::stream;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::stream::{ContainerStream, StderrHead};
use crate::engine::Engine;
use crate::engine::address::Address;

/// Bytes per read.
const READ_BYTES: usize = 64 * 1024;
/// Size of a frame's header: the channel and the payload's length.
const HEADER_BYTES: usize = 8;
/// Maximum size of a response's head.
const MAX_HEAD_BYTES: usize = 16 * 1024;
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);

/// Attaches to a container's streams; returns `None` if bollard has to do it.
pub(super) async fn attach(engine: &Engine, container: &str) -> Option<ContainerStream> {
    let version = &engine.report().api_version;
    let path = format!(
        "/v{version}/containers/{container}/attach?stream=true&stdin=true&stdout=true&stderr=true"
    );
    let attached = timeout(ATTACH_TIMEOUT, async {
        match engine.address() {
            #[cfg(unix)]
            Address::Socket(socket) => {
                let mut stream = tokio::net::UnixStream::connect(socket).await?;
                let received = upgrade(&mut stream, "localhost", &path).await?;
                let (reader, writer) = stream.into_split();
                io::Result::Ok(demultiplex(reader, received, writer))
            }
            Address::Tcp { host, tls: None } => {
                let mut stream = TcpStream::connect(host).await?;
                stream.set_nodelay(true)?;
                let received = upgrade(&mut stream, host, &path).await?;
                let (reader, writer) = stream.into_split();
                Ok(demultiplex(reader, received, writer))
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    });
    match attached.await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "attaching to the container through the client library");
            None
        }
        Err(_) => None,
    }
}

/// Upgrades an HTTP connection to a raw stream; returns the stream's bytes that received with the response's head.
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
    let mut received = BytesMut::with_capacity(READ_BYTES);
    loop {
        if let Some(end) = received.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = received.split_to(end + 4);
            if head.starts_with(b"HTTP/1.1 101 ") {
                return Ok(received);
            }
            return Err(io::Error::other(
                String::from_utf8_lossy(&head).into_owned(),
            ));
        }
        if received.len() > MAX_HEAD_BYTES || stream.read_buf(&mut received).await? == 0 {
            return Err(io::ErrorKind::InvalidData.into());
        }
    }
}

fn demultiplex(
    reader: impl AsyncRead + Send + Unpin + 'static,
    received: BytesMut,
    stdin: impl AsyncWrite + Send + 'static,
) -> ContainerStream {
    let stderr = StderrHead::default();
    let demultiplexer = Demultiplexer {
        reader,
        received,
        channel: Channel::Stdout,
        remaining: 0,
        stderr: stderr.clone(),
    };
    let stdout = stream::try_unfold(demultiplexer, async |mut demultiplexer| {
        let chunk = demultiplexer.next().await?;
        Ok(chunk.map(|chunk| (chunk, demultiplexer)))
    });
    ContainerStream {
        stdout: Box::pin(stdout),
        stdin: Box::pin(stdin),
        stderr,
    }
}

/// Reader of standard output in a stream of frames; collects standard error.
struct Demultiplexer<R> {
    reader: R,
    received: BytesMut,
    /// Channel of the current frame.
    channel: Channel,
    /// Bytes of the current payload that have not been read.
    remaining: usize,
    stderr: StderrHead,
}

impl<R: AsyncRead + Unpin> Demultiplexer<R> {
    /// Returns the next part of a frame, a slice of what was read; `None` at the end.
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        loop {
            if self.remaining == 0
                && let Some(&[channel, _, _, _, a, b, c, d]) =
                    self.received.first_chunk::<HEADER_BYTES>()
            {
                self.channel = match channel {
                    1 => Channel::Stdout,
                    2 => Channel::Stderr,
                    _ => return Err(io::ErrorKind::InvalidData.into()),
                };
                self.remaining = u32::from_be_bytes([a, b, c, d]) as usize;
                self.received.advance(HEADER_BYTES);
                continue;
            }
            let length = self.remaining.min(self.received.len());
            if length > 0 {
                let bytes = self.received.split_to(length).freeze();
                self.remaining -= length;
                match self.channel {
                    Channel::Stdout => return Ok(Some(bytes)),
                    Channel::Stderr => self.stderr.append(&bytes),
                }
                continue;
            }
            self.received.reserve(READ_BYTES);
            if self.reader.read_buf(&mut self.received).await? == 0 {
                return Ok(None);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::TryStreamExt as _;

    use super::*;

    #[tokio::test]
    async fn frames_split_anywhere_are_reassembled() {
        let frame = |channel: u8, text: &[u8]| {
            let length = u32::try_from(text.len()).unwrap().to_be_bytes();
            [&[channel, 0, 0, 0], &length[..], text].concat()
        };
        let large = vec![b'x'; 3 * READ_BYTES];
        let all = [
            frame(1, b"one"),
            frame(2, b"oh "),
            frame(1, b""),
            frame(1, &large),
            frame(2, b"no"),
            frame(1, b"two"),
        ]
        .concat();
        for step in [1, 7, 100_000] {
            let (mut writer, reader) = tokio::io::duplex(step);
            let (first, rest) = all.split_at(5);
            let mut stream = demultiplex(reader, BytesMut::from(first), tokio::io::sink());
            let writing = async {
                writer.write_all(rest).await.unwrap();
                drop(writer);
            };
            let reading = (&mut stream.stdout).try_collect::<Vec<Bytes>>();
            let (read, ()) = tokio::join!(reading, writing);
            let text = read.unwrap().concat();
            assert_eq!(text, [&b"one"[..], &large, b"two"].concat());
            assert_eq!(stream.stderr.text(), "oh no");
        }
    }

    #[tokio::test]
    async fn response_without_upgrade_is_an_error() {
        for (response, received) in [
            (
                "HTTP/1.1 101 UPGRADED\r\nUpgrade: tcp\r\n\r\nfirst",
                Some("first"),
            ),
            ("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", None),
            ("HTTP/1.1 101", None),
        ] {
            let (mut engine, mut client) = tokio::io::duplex(1024);
            engine.write_all(response.as_bytes()).await.unwrap();
            engine.shutdown().await.unwrap();
            let upgraded = upgrade(&mut client, "host", "/path").await;
            assert_eq!(upgraded.ok().as_deref(), received.map(str::as_bytes));
        }
    }
}
