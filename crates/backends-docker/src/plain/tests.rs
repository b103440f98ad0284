//! Commands of an engine that is slow, or fails to inspect them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use cantle_core::sandbox::ExitStatus;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::select;
use tokio::sync::{Notify, mpsc};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::backend::DockerBackend;
use crate::engine::Engine;
use crate::engine::address::Address;

const DEADLINE: Duration = Duration::from_mins(1);

/// An engine with one container, in which each command ends with 7 once its first inspection has failed.
struct FakeEngine {
    runner: Arc<ExecRunner>,
    gone: CancellationToken,
    requests: mpsc::UnboundedReceiver<String>,
    state: Arc<EngineState>,
    _serving: AbortOnDropHandle<()>,
}

#[derive(Default)]
struct EngineState {
    /// Lets the command begin.
    beginning: Notify,
    has_failed: AtomicBool,
    /// Whether the container is paused.
    is_paused: AtomicBool,
}

impl FakeEngine {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let (request_sender, requests) = mpsc::unbounded_channel();
        let state = Arc::<EngineState>::default();
        let answering = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            while let Ok((connection, _)) = listener.accept().await {
                let (sender, state) = (request_sender.clone(), Arc::clone(&answering));
                tokio::spawn(async move { answer(connection, &sender, &state).await });
            }
        });
        let container = Container {
            engine: Engine::unconnected(Address::Tcp { host, tls: None }).unwrap(),
            id: "container".to_owned(),
            sandbox: "sandbox".to_owned(),
        };
        let backend = DockerBackend::from_image("image");
        let (gone, limits) = (CancellationToken::new(), Limits::default());
        let variables = Variables::new();
        Self {
            runner: ExecRunner::new(
                &container,
                backend.options(),
                variables,
                &limits,
                gone.clone(),
            ),
            gone,
            requests,
            state,
            _serving: AbortOnDropHandle::new(serving),
        }
    }

    /// Waits for a request that contains `text`.
    async fn requested(&mut self, text: &str) {
        let requested = async { while !self.requests.recv().await.unwrap().contains(text) {} };
        let requested = timeout(DEADLINE, requested).await;
        requested.unwrap_or_else(|_| panic!("no request with `{text}`"));
    }

    async fn spawn(&self) -> Box<dyn Process> {
        self.state.beginning.notify_one();
        let spawned = self.runner.spawn(SpawnRequest::shell("sleep 1000")).await;
        spawned.unwrap()
    }
}

/// Answers one request.
async fn answer(
    mut connection: TcpStream,
    requests: &mpsc::UnboundedSender<String>,
    state: &EngineState,
) -> io::Result<()> {
    let mut read = Vec::new();
    let request = loop {
        if connection.read_buf(&mut read).await? == 0 {
            return Ok(());
        }
        let text = String::from_utf8_lossy(&read).to_ascii_lowercase();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let mut lines = head.lines();
        let length = lines.find_map(|line| line.strip_prefix("content-length: "));
        if body.len() >= length.map_or(0, |length| length.parse().unwrap()) {
            break text;
        }
    };
    let path = request.split(' ').nth(1).unwrap_or_default().to_owned();
    let is_signal = request.contains("kill");
    // The receiver may be gone.
    let _ = requests.send(request);
    let json = |status: &str, body: &str| {
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
    };
    let is_paused = state.is_paused.load(Ordering::Relaxed);
    let answer = if path.ends_with("/start") {
        if path.ends_with("/command/start") {
            state.beginning.notified().await;
        }
        let upgraded = "HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n";
        format!("{upgraded}\u{1}\0\0\0\0\0\0\u{3}ok\n")
    } else if is_paused && path.ends_with("/containers/container/exec") {
        json("409 Conflict", r#"{"message":"the container is paused"}"#)
    } else if is_paused {
        json("200 OK", r#"{"State":{"Running":false,"Paused":true}}"#)
    } else if path.ends_with("/containers/container/exec") {
        let id = if is_signal { "signal" } else { "command" };
        json("201 Created", &format!(r#"{{"Id":"{id}"}}"#))
    } else if !path.ends_with("/exec/command/json") {
        json("200 OK", r#"{"State":{"Running":true}}"#)
    } else if state.has_failed.swap(true, Ordering::Relaxed) {
        json("200 OK", r#"{"Running":false,"ExitCode":7}"#)
    } else {
        json("500 Internal Server Error", r#"{"message":"busy"}"#)
    };
    connection.write_all(answer.as_bytes()).await?;
    connection.shutdown().await
}

#[tokio::test]
async fn command_whose_start_is_abandoned_is_killed() {
    let mut engine = FakeEngine::start().await;
    let runner = Arc::clone(&engine.runner);
    select! {
        spawned = runner.spawn(SpawnRequest::shell("sleep 1000")) => panic!("{:?}", spawned.err()),
        () = engine.requested("/exec/command/start") => {}
    }
    engine.state.beginning.notify_one();
    engine.requested("\"kill\"").await;
}

#[tokio::test]
async fn failed_inspection_is_not_the_end_of_a_command() {
    let engine = FakeEngine::start().await;
    let mut process = engine.spawn().await;
    let exit = timeout(DEADLINE, process.wait()).await.unwrap().unwrap();
    assert_eq!(exit.status, ExitStatus::Code(7));
}

#[tokio::test]
async fn closing_kills_the_commands_of_a_container_that_goes_on() {
    let mut engine = FakeEngine::start().await;
    let _process = engine.spawn().await;
    engine.gone.cancel();
    engine.runner.finish().await;
    let requests: Vec<_> = std::iter::from_fn(|| engine.requests.try_recv().ok()).collect();
    assert!(
        requests.iter().any(|request| request.contains("\"kill\"")),
        "{requests:?}"
    );
}

#[tokio::test]
async fn paused_container_is_not_gone() {
    let engine = FakeEngine::start().await;
    engine.state.is_paused.store(true, Ordering::Relaxed);
    let spawned = engine.runner.spawn(SpawnRequest::shell("true"));
    let spawned = timeout(DEADLINE, engine.runner.unless_gone(spawned)).await;
    let error = spawned.unwrap().err().unwrap();
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.to_string().contains("is paused"), "{error}");
}
