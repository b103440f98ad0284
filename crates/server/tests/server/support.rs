//! A server over the local backend, and an independent HTTP client.

use std::io::{BufRead as _, BufReader, Lines};
use std::net::SocketAddr;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_backends_local::LocalBackend;
use cantle_server::{ServeError, Server, ServerBuilder};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

/// Deadline for every wait, generous for slow machines.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// A running server with its own directory for sandboxes.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) directory: tempfile::TempDir,
    shutdown: CancellationToken,
    serving: JoinHandle<Result<(), ServeError>>,
}

/// A client of a server in another process.
pub(crate) fn client(address: SocketAddr) -> TestServer {
    TestServer {
        address,
        directory: shared_tempdir(),
        shutdown: CancellationToken::new(),
        serving: tokio::spawn(async { Ok(()) }),
    }
}

/// A server in another process; killed on drop.
pub(crate) struct ServerProcess {
    child: Child,
    pub(crate) address: SocketAddr,
    /// The test harness of the server ends if it can't write to it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl ServerProcess {
    /// Runs a test of this program that serves and prints `serving ADDRESS`.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let address = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let address = line.strip_prefix("serving ")?;
            Some(address.parse().unwrap())
        });
        Self {
            child,
            address: address.expect("the server starts"),
            _output: lines,
        }
    }

    /// Counts its open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        let open = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.unwrap().count()
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A directory for sandboxes that other users may traverse.
pub(crate) fn shared_tempdir() -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;

    let directory = tempfile::tempdir().unwrap();
    let open = std::fs::Permissions::from_mode(0o711);
    std::fs::set_permissions(directory.path(), open).unwrap();
    directory
}

pub(crate) fn builder(directory: &tempfile::TempDir) -> ServerBuilder {
    let backend = LocalBackend::new()
        .in_directory(directory.path())
        .workspace_at("/home/user");
    Server::builder(backend)
}

pub(crate) async fn serve() -> TestServer {
    serve_with(|builder| builder).await
}

pub(crate) async fn serve_with(change: impl FnOnce(ServerBuilder) -> ServerBuilder) -> TestServer {
    serve_in(shared_tempdir(), change).await
}

pub(crate) async fn serve_in(
    directory: tempfile::TempDir,
    change: impl FnOnce(ServerBuilder) -> ServerBuilder,
) -> TestServer {
    serve_bound(directory, change, async |server| server).await
}

/// Serves with a change of the server that needs its address.
pub(crate) async fn serve_bound(
    directory: tempfile::TempDir,
    change: impl FnOnce(ServerBuilder) -> ServerBuilder,
    complete: impl AsyncFnOnce(Server) -> Server,
) -> TestServer {
    let builder = change(builder(&directory));
    let server = builder.bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let server = complete(server).await;
    let (address, shutdown) = (server.address(), CancellationToken::new());
    let serving = tokio::spawn(server.serve(shutdown.clone()));
    TestServer {
        address,
        directory,
        shutdown,
        serving,
    }
}

impl TestServer {
    /// Stops the server and returns its directory.
    pub(crate) async fn stop(self) -> tempfile::TempDir {
        self.shutdown.cancel();
        let ended = timeout(DEADLINE, self.serving).await;
        ended.expect("the server ends").unwrap().unwrap();
        self.directory
    }

    /// Drops the server without stopping it, and returns its directory.
    pub(crate) async fn abort(self) -> tempfile::TempDir {
        self.serving.abort();
        // It was aborted.
        let _ = self.serving.await;
        self.directory
    }

    /// Counts the sandbox directories on disk.
    pub(crate) fn sandbox_directories(&self) -> usize {
        sandbox_directories(&self.directory)
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Response<Incoming> {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        timeout(DEADLINE, sender.send_request(request))
            .await
            .expect("an answer")
            .unwrap()
    }

    /// Sends a request with a streamed body and reads the whole response.
    pub(crate) async fn send_streamed<B>(&self, request: Request<B>) -> TestResponse
    where
        B: hyper::body::Body<Data = Bytes, Error = std::convert::Infallible>
            + Send
            + Unpin
            + 'static,
    {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
        tokio::spawn(connection);
        let response = timeout(DEADLINE, sender.send_request(request)).await;
        TestResponse::of(response.expect("an answer").unwrap()).await
    }

    /// Sends a request to the control plane.
    pub(crate) async fn control(
        &self,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> TestResponse {
        self.control_as("key", method, path, body).await
    }

    pub(crate) async fn control_as(
        &self,
        key: &str,
        method: Method,
        path: &str,
        body: Option<Value>,
    ) -> TestResponse {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.address.to_string())
            .header("x-api-key", key)
            .header("content-type", "application/json");
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        self.ask(request.body(Full::from(body)).unwrap()).await
    }

    /// Sends a request and reads the whole response.
    pub(crate) async fn ask(&self, request: Request<Full<Bytes>>) -> TestResponse {
        TestResponse::of(self.send(request).await).await
    }

    /// Creates a sandbox.
    pub(crate) async fn create(&self, body: Value) -> Sandbox<'_> {
        let answer = self
            .control(Method::POST, "/v2/sandboxes", Some(body))
            .await;
        assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
        let made = answer.json();
        Sandbox {
            server: self,
            id: made["sandboxID"].as_str().unwrap().to_owned(),
            token: made["envdAccessToken"].as_str().unwrap().to_owned(),
        }
    }

    pub(crate) async fn create_default(&self) -> Sandbox<'_> {
        self.create(json!({ "templateID": "base" })).await
    }
}

/// Counts the sandbox directories in `directory`.
pub(crate) fn sandbox_directories(directory: &tempfile::TempDir) -> usize {
    std::fs::read_dir(directory.path()).unwrap().count()
}

/// A complete response.
#[derive(Debug)]
pub(crate) struct TestResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: http::HeaderMap,
    pub(crate) body: Bytes,
}

impl TestResponse {
    pub(crate) async fn of(response: Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        let body = timeout(DEADLINE, body.collect())
            .await
            .expect("the whole answer");
        Self {
            status: head.status,
            headers: head.headers,
            body: body.unwrap().to_bytes(),
        }
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {:?} {:?}", self.status, self.body))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }
}

/// A sandbox of the server.
pub(crate) struct Sandbox<'s> {
    pub(crate) server: &'s TestServer,
    pub(crate) id: String,
    pub(crate) token: String,
}

impl Sandbox<'_> {
    pub(crate) fn request(&self, method: Method, path: &str) -> http::request::Builder {
        Request::builder()
            .method(method)
            .uri(path)
            .header("host", self.server.address.to_string())
            .header("e2b-sandbox-id", &self.id)
            .header("e2b-sandbox-port", "49983")
            .header("x-access-token", &self.token)
    }

    pub(crate) async fn get(&self, path: &str) -> TestResponse {
        let request = self.request(Method::GET, path);
        self.server
            .ask(request.body(Full::default()).unwrap())
            .await
    }

    /// Uploads one file.
    pub(crate) async fn put(&self, path: &str, content: impl Into<Bytes>) -> TestResponse {
        let request = self
            .request(Method::POST, &format!("/files?path={path}"))
            .header("content-type", "application/octet-stream");
        self.server
            .ask(request.body(Full::new(content.into())).unwrap())
            .await
    }

    /// Makes a unary call.
    pub(crate) async fn call(&self, method: &str, message: Value) -> TestResponse {
        let request = self
            .request(Method::POST, &format!("/{method}"))
            .header("content-type", "application/json");
        self.server
            .ask(request.body(Full::from(message.to_string())).unwrap())
            .await
    }

    /// Makes a streaming call.
    pub(crate) async fn stream(
        &self,
        method: &str,
        message: Value,
        headers: &[(&str, &str)],
    ) -> Stream {
        let mut request = self
            .request(Method::POST, &format!("/{method}"))
            .header("content-type", "application/connect+json");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = Full::from(enveloped(&message));
        let response = self.server.send(request.body(body).unwrap()).await;
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(
            response.headers()["content-type"],
            "application/connect+json"
        );
        Stream {
            body: response.into_body(),
            buffer: Vec::new(),
        }
    }

    /// Starts a bash command line.
    pub(crate) async fn start(&self, line: &str, headers: &[(&str, &str)]) -> Stream {
        let message = json!({
            "process": { "cmd": "/bin/bash", "args": ["-l", "-c", line] }, "stdin": false
        });
        self.stream("process.Process/Start", message, headers).await
    }

    /// Runs a bash command line and returns its output and end event.
    pub(crate) async fn run(&self, line: &str) -> (String, Value) {
        let mut stream = self.start(line, &[]).await;
        let (mut written, mut end) = (Vec::new(), Value::Null);
        while let Some(event) = stream.event().await {
            let data = &event["data"];
            for channel in ["stdout", "stderr"] {
                if let Some(text) = data[channel].as_str() {
                    written.extend(STANDARD.decode(text).unwrap());
                }
            }
            if !event["end"].is_null() {
                end = event["end"].clone();
            }
        }
        (String::from_utf8(written).unwrap(), end)
    }

    pub(crate) async fn kill(&self) -> StatusCode {
        let path = format!("/sandboxes/{}", self.id);
        self.server
            .control(Method::DELETE, &path, None)
            .await
            .status
    }
}

pub(crate) fn enveloped(message: &Value) -> Vec<u8> {
    let message = message.to_string();
    let mut envelope = vec![0];
    envelope.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
    envelope.extend(message.as_bytes());
    envelope
}

/// Reader of a response stream.
pub(crate) struct Stream {
    body: Incoming,
    buffer: Vec<u8>,
}

/// An item of a response stream.
#[derive(Debug, PartialEq)]
pub(crate) enum StreamEvent {
    Message(Value),
    /// The end of the stream, with its content.
    End(Value),
    /// An aborted stream.
    Broken,
}

impl Stream {
    pub(crate) async fn next(&mut self) -> StreamEvent {
        loop {
            if let Some((head, rest)) = self.buffer.split_at_checked(5) {
                let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
                if rest.len() >= length {
                    let message = serde_json::from_slice(&rest[..length]).unwrap();
                    let is_end = head[0] & 2 != 0;
                    self.buffer.drain(..5 + length);
                    return if is_end {
                        StreamEvent::End(message)
                    } else {
                        StreamEvent::Message(message)
                    };
                }
            }
            match timeout(DEADLINE, self.body.frame())
                .await
                .expect("something comes")
            {
                Some(Ok(frame)) => self.buffer.extend(frame.into_data().unwrap()),
                _ => return StreamEvent::Broken,
            }
        }
    }

    /// Returns the next event of a process, or `None` at the regular end of the stream.
    pub(crate) async fn event(&mut self) -> Option<Value> {
        match self.next().await {
            StreamEvent::Message(message) => Some(message["event"].clone()),
            StreamEvent::End(end) => {
                assert_eq!(end, json!({}));
                None
            }
            StreamEvent::Broken => panic!("the stream broke off"),
        }
    }

    /// Returns the process id from the first event.
    pub(crate) async fn pid(&mut self) -> u64 {
        let event = self.event().await.unwrap();
        event["start"]["pid"]
            .as_u64()
            .unwrap_or_else(|| panic!("{event}"))
    }

    /// Reads until the command has ended and returns the end event.
    pub(crate) async fn until_end(&mut self) -> Value {
        loop {
            let event = self.event().await.expect("the command ends");
            if !event["end"].is_null() {
                return event["end"].clone();
            }
        }
    }

    /// Reads until the output contains `text`.
    pub(crate) async fn until_written(&mut self, text: &str) -> String {
        let mut written = String::new();
        while !written.contains(text) {
            let event = self.event().await.expect("the command goes on");
            for channel in ["stdout", "stderr", "pty"] {
                if let Some(data) = event["data"][channel].as_str() {
                    written += &String::from_utf8_lossy(&STANDARD.decode(data).unwrap());
                }
            }
        }
        written
    }
}

/// The end of a stream whose sandbox has ended.
pub(crate) fn sandbox_ended() -> StreamEvent {
    let message = "The sandbox was not found: the sandbox was killed or reached its end of life";
    StreamEvent::End(json!({ "error": { "code": "unavailable", "message": message } }))
}

/// Waits until a condition holds.
pub(crate) async fn eventually(what: &str, mut is_true: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_true().await {
        assert!(Instant::now() < deadline, "timed out waiting until {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
