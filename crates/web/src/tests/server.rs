//! A scripted HTTP server.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use cantle_core::policy::HostName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::target::{Reach, Resolver};

/// Answer of the server to a request.
pub(super) enum Reply {
    /// Sends these bytes and closes.
    Bytes(Vec<u8>),
    /// Sends these bytes and then nothing, for ever.
    Stall(Vec<u8>),
    /// Sends these bytes, and then the second ones for ever.
    Endless(Vec<u8>, Vec<u8>),
}

/// A response with status, headers and body.
pub(super) fn response(status: &str, headers: &[&str], body: impl AsRef<[u8]>) -> Reply {
    let body = body.as_ref();
    let mut head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n", body.len());
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    head.push_str("\r\n");
    Reply::Bytes([head.as_bytes(), body].concat())
}

/// Starts a server that answers by the text of a request; it ends with the test's runtime.
pub(super) async fn serve(reply: impl Fn(&str) -> Reply + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let reply = Arc::new(reply);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let reply = Arc::clone(&reply);
            tokio::spawn(async move {
                let _ = answer(stream, &*reply).await;
            });
        }
    });
    address
}

async fn answer(
    mut stream: TcpStream,
    reply: &(dyn Fn(&str) -> Reply + Send + Sync),
) -> io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let length = text
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "));
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    match reply(&(text + &String::from_utf8_lossy(&body))) {
        Reply::Bytes(bytes) => {
            stream.write_all(&bytes).await?;
            stream.shutdown().await
        }
        Reply::Stall(bytes) => {
            stream.write_all(&bytes).await?;
            std::future::pending().await
        }
        Reply::Endless(first, then) => {
            stream.write_all(&first).await?;
            loop {
                stream.write_all(&then).await?;
            }
        }
    }
}

/// A resolver with one list of addresses per question; the last one is repeated.
#[derive(Debug, Default)]
pub(super) struct Scripted {
    pub(super) answers: Vec<Vec<IpAddr>>,
    pub(super) questions: AtomicUsize,
}

#[async_trait]
impl Resolver for Scripted {
    async fn resolve(&self, _: &HostName) -> io::Result<Vec<IpAddr>> {
        let question = self.questions.fetch_add(1, Ordering::SeqCst);
        let answer = self.answers.get(question).or_else(|| self.answers.last());
        Ok(answer.cloned().unwrap_or_default())
    }
}

/// Rules under which every name leads to this machine and `server` alone is reachable.
pub(super) fn reach(server: SocketAddr) -> Reach {
    Reach {
        resolver: Arc::new(Scripted {
            answers: vec![vec![server.ip()]],
            ..Scripted::default()
        }),
        exempt: vec![server],
        ..Reach::default()
    }
}
