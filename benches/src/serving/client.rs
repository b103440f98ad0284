//! Plain HTTP client, which measures the server without an SDK's overhead.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use cantle_core::ids::RunId;
use futures_util::stream;
use http::request::Builder;
use http::{Method, Request};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// Key in the format that some SDK versions validate.
pub(crate) const KEY: &str = "e2b_0000000000000000000000000000000000000000";

/// Chunk size of SDK uploads.
const PIECE: &[u8] = &[0; 64 * 1024];

type Body = BoxBody<Bytes, Infallible>;

/// Client with a connection pool, as in SDKs.
pub(crate) struct Client {
    address: SocketAddr,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    sender: SendRequest<Body>,
    _driver: AbortOnDropHandle<()>,
}

/// Created sandbox.
pub(crate) struct Made {
    id: String,
    token: String,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self {
            address,
            idle: Mutex::default(),
        }
    }

    pub(crate) async fn create(&self) -> Result<Made> {
        let request = Request::post("/v2/sandboxes")
            .header("x-api-key", KEY)
            .header("idempotency-key", RunId::new().to_string());
        let message = json!({ "templateID": "base", "timeout": 3600 });
        let answer = self.ask(request, message.to_string()).await?;
        let answer: Value = serde_json::from_slice(&answer)?;
        let text = |name: &str| {
            let text = answer[name].as_str();
            text.map(str::to_owned).context("it was not made")
        };
        Ok(Made {
            id: text("sandboxID")?,
            token: text("envdAccessToken")?,
        })
    }

    pub(crate) async fn kill(&self, made: &Made) -> Result<()> {
        let path = format!("/sandboxes/{}", made.id);
        let request = Request::delete(path).header("x-api-key", KEY);
        self.ask(request, String::new()).await?;
        Ok(())
    }

    /// Runs a line of bash, which must succeed, and returns the number of bytes received.
    pub(crate) async fn run(&self, made: &Made, line: &str) -> Result<u64> {
        let message = json!({
            "process": { "cmd": "/bin/bash", "args": ["-l", "-c", line] }, "stdin": false
        });
        let message = message.to_string();
        let mut envelope = vec![0];
        envelope.extend(u32::try_from(message.len())?.to_be_bytes());
        envelope.extend(message.as_bytes());
        let request = made
            .request(Method::POST, "/process.Process/Start")
            .header("content-type", "application/connect+json");
        let (mut count, mut last) = (0, Vec::new());
        let body = Full::from(envelope).boxed();
        self.send(request, body, |piece| {
            count += piece.len() as u64;
            // The end event may be split across pieces.
            last.extend_from_slice(&piece[piece.len().saturating_sub(1024)..]);
            last.drain(..last.len().saturating_sub(1024));
        })
        .await?;
        let last = String::from_utf8_lossy(&last);
        ensure!(last.contains("exit status 0"), "{line} failed: {last}");
        Ok(count)
    }

    /// Uploads a file of `bytes` bytes.
    pub(crate) async fn upload(&self, made: &Made, name: &str, bytes: usize) -> Result<()> {
        let pieces = (0..bytes.div_ceil(PIECE.len())).map(move |number| {
            let left = bytes - number * PIECE.len();
            let piece = PIECE.get(..left).unwrap_or(PIECE);
            Ok(Frame::data(Bytes::from_static(piece)))
        });
        let request = made
            .request(Method::POST, &format!("/files?path={name}"))
            .header("content-type", "application/octet-stream")
            .header("content-length", bytes);
        let body = StreamBody::new(stream::iter(pieces)).boxed();
        self.send(request, body, |_| {}).await
    }

    /// Downloads a file and returns the number of bytes received.
    pub(crate) async fn download(&self, made: &Made, name: &str) -> Result<u64> {
        let request = made.request(Method::GET, &format!("/files?path={name}"));
        let mut count = 0;
        let body = Full::default().boxed();
        self.send(request, body, |piece| count += piece.len() as u64)
            .await?;
        Ok(count)
    }

    /// Calls a tool of the service, which must succeed.
    pub(crate) async fn call_tool(&self, tool: &str, arguments: &Value) -> Result<Value> {
        let request = Request::post("/execute").header("authorization", format!("Bearer {KEY}"));
        let message = json!({ "tool_name": tool, "arguments": arguments });
        let mut answer: Value =
            serde_json::from_slice(&self.ask(request, message.to_string()).await?)?;
        ensure!(answer["success"] == true, "{answer}");
        Ok(answer["result"].take())
    }

    async fn ask(&self, request: Builder, message: String) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        let request = request.header("content-type", "application/json");
        let body = Full::from(message).boxed();
        self.send(request, body, |piece| answer.extend_from_slice(piece))
            .await?;
        Ok(answer)
    }

    /// Sends a request and passes the answer to `take`.
    async fn send(&self, request: Builder, body: Body, mut take: impl FnMut(&Bytes)) -> Result<()> {
        let kept = self.idle().pop();
        let mut connection = match kept.filter(|kept| kept.sender.is_ready()) {
            Some(kept) => kept,
            None => Connection::open(self.address).await?,
        };
        let request = request
            .header("host", self.address.to_string())
            .body(body)?;
        let mut response = connection.sender.send_request(request).await?;
        let status = response.status();
        while let Some(frame) = response.frame().await {
            if let Some(piece) = frame?.data_ref() {
                take(piece);
            }
        }
        ensure!(status.is_success(), "the answer is {status}");
        self.idle().push(connection);
        Ok(())
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connection {
    async fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let (sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async {
            // Errors are reported through the pending response.
            let _ = driver.await;
        });
        Ok(Self {
            sender,
            _driver: AbortOnDropHandle::new(driver),
        })
    }
}

impl Made {
    fn request(&self, method: Method, path: &str) -> Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header("e2b-sandbox-id", &self.id)
            .header("e2b-sandbox-port", "49983")
            .header("x-access-token", &self.token)
    }
}
