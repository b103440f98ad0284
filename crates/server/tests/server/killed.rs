//! Killed servers, clients and supervisor processes: nothing remains, and waiting clients get an error.
//!
//! | killed | what must hold |
//! |---|---|
//! | the server | its port is free, streams and requests are aborted, no process remains; the next server removes its files except those of paused sandboxes, which can be resumed |
//! | a client | a partial upload is not visible, its reads and watches free their resources; commands continue and end with their sandbox; a sandbox being created ends at its deadline |
//! | a supervisor process | waiting clients get an error, the sandbox no longer exists, and nothing of it remains |
//!
//! Each case runs in every [`Phase`], concurrently, each phase with its own sandbox.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use cantle_backends_local::LocalBackend;
use cantle_core::ids::unique_id;
use cantle_server::Server;
use futures_util::future::join_all;
use futures_util::{StreamExt as _, stream};
use http::{Method, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::support::{
    DEADLINE, Sandbox, Stream, StreamEvent, TestServer, client, enveloped, eventually, serve,
    shared_tempdir,
};

/// Activity at the moment of the kill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// A command without output runs.
    Command,
    /// The command receives input that it does not read.
    Input,
    /// The command writes continuously.
    Output,
    Upload,
    Download,
    Watching,
    /// A sandbox is being created.
    Creating,
    Pausing,
    /// The sandbox was paused and resumed.
    Resumed,
    Killing,
}

impl Phase {
    const ALL: [Self; 11] = [
        Self::Idle,
        Self::Command,
        Self::Input,
        Self::Output,
        Self::Upload,
        Self::Download,
        Self::Watching,
        Self::Creating,
        Self::Pausing,
        Self::Resumed,
        Self::Killing,
    ];

    fn named(name: &str) -> Self {
        let mut all = Self::ALL.into_iter();
        all.find(|phase| format!("{phase:?}") == name).unwrap()
    }

    /// Whether the phase has a command that continues without its client.
    fn has_command(self) -> bool {
        matches!(
            self,
            Self::Command | Self::Input | Self::Output | Self::Pausing | Self::Killing
        )
    }
}

/// The activity of a phase.
type Activity<'s> = Pin<Box<dyn Future<Output = ()> + 's>>;

/// Starts the activity of a phase and returns when it is in progress.
async fn begin<'s>(sandbox: &'s Sandbox<'s>, phase: Phase) -> Activity<'s> {
    match phase {
        Phase::Idle | Phase::Resumed => Box::pin(async {}),
        Phase::Command => Box::pin(ended(command(sandbox).await)),
        Phase::Output => {
            let mut stream = sandbox.start("yes", &[]).await;
            stream.until_written("y").await;
            Box::pin(ended(stream))
        }
        Phase::Input => {
            let line = "head -c 1000 > /dev/null; echo begun; sleep 300";
            let start = json!({
                "process": { "cmd": "/bin/bash", "args": ["-c", line] }, "stdin": true
            });
            let mut stream = sandbox.stream("process.Process/Start", start, &[]).await;
            let pid = stream.pid().await;
            let input = json!({ "stdin": STANDARD.encode(vec![b'x'; 1 << 20]) });
            let message = json!({ "process": { "pid": pid }, "input": input });
            let sending = tokio::spawn(ask(
                sandbox.server.address,
                "POST /process.Process/SendInput",
                inside(sandbox),
                message.to_string(),
            ));
            stream.until_written("begun").await;
            Box::pin(async move {
                sending.await.unwrap();
                ended(stream).await;
            })
        }
        Phase::Upload => {
            let (started, on_start) = tokio::sync::oneshot::channel();
            // More than the buffers hold, so part of it has been written.
            let piece = |_| {
                Ok::<_, std::convert::Infallible>(Frame::data(Bytes::from(vec![b'x'; 1 << 20])))
            };
            let more = stream::once(async move {
                started.send(()).unwrap();
                std::future::pending().await
            });
            let data = stream::iter(0..32).map(piece).chain(more);
            let request = sandbox
                .request(Method::POST, "/files?path=upload")
                .header("content-type", "application/octet-stream")
                .body(StreamBody::new(Box::pin(data)))
                .unwrap();
            let address = sandbox.server.address;
            let uploading = tokio::spawn(async move {
                let stream = TcpStream::connect(address).await.unwrap();
                let (mut sender, connection) =
                    http1::handshake(TokioIo::new(stream)).await.unwrap();
                let sent = futures_util::future::join(sender.send_request(request), connection);
                drop(sent.await);
            });
            on_start.await.unwrap();
            Box::pin(async move { uploading.await.unwrap() })
        }
        Phase::Download => {
            // A sparse file, too large to be read during the test.
            let (output, end) = sandbox.run("truncate -s 10G large").await;
            assert_eq!(end["exited"], true, "{output}");
            let request = sandbox.request(Method::GET, "/files?path=large");
            let request = request.body(Full::default()).unwrap();
            let mut body = sandbox.server.send(request).await.into_body();
            body.frame().await.unwrap().unwrap();
            Box::pin(async move { while let Some(Ok(_)) = body.frame().await {} })
        }
        Phase::Watching => {
            let watch = json!({ "path": "" });
            let mut stream = sandbox
                .stream("filesystem.Filesystem/WatchDir", watch, &[])
                .await;
            assert_eq!(
                stream.next().await,
                StreamEvent::Message(json!({ "start": {} }))
            );
            Box::pin(ended(stream))
        }
        Phase::Creating => {
            let body = json!({ "templateID": "base", "timeout": 5 });
            let asking = ask(
                sandbox.server.address,
                "POST /v2/sandboxes",
                key(),
                body.to_string(),
            );
            let asking = tokio::spawn(asking);
            Box::pin(async move { asking.await.unwrap() })
        }
        Phase::Pausing => {
            let stream = command(sandbox).await;
            let line = format!("POST /sandboxes/{}/pause", sandbox.id);
            let asking = ask(sandbox.server.address, line, key(), "{}".to_owned());
            let asking = tokio::spawn(asking);
            Box::pin(async move {
                asking.await.unwrap();
                ended(stream).await;
            })
        }
        Phase::Killing => {
            let stream = command(sandbox).await;
            let line = format!("DELETE /sandboxes/{}", sandbox.id);
            let asking = ask(sandbox.server.address, line, key(), String::new());
            let asking = tokio::spawn(asking);
            Box::pin(async move {
                asking.await.unwrap();
                ended(stream).await;
            })
        }
    }
}

async fn command(sandbox: &Sandbox<'_>) -> Stream {
    let line = "echo begun; setsid sleep 300 & sleep 300";
    let mut stream = sandbox.start(line, &[]).await;
    stream.until_written("begun").await;
    stream
}

/// Waits for the end of a stream, regular or not.
async fn ended(mut stream: Stream) {
    while let StreamEvent::Message(_) = stream.next().await {}
}

/// Sends a request and waits for the response or the end of the connection.
async fn ask(address: SocketAddr, line: impl Into<String>, headers: String, body: String) {
    let Ok(mut stream) = TcpStream::connect(address).await else {
        return;
    };
    let request = format!(
        "{} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n{headers}\r\n{body}",
        line.into(),
        body.len()
    );
    if stream.write_all(request.as_bytes()).await.is_ok() {
        let _ = stream.read_to_end(&mut Vec::new()).await;
    }
}

fn key() -> String {
    "x-api-key: key\r\n".to_owned()
}

fn inside(sandbox: &Sandbox<'_>) -> String {
    let (id, token) = (&sandbox.id, &sandbox.token);
    format!("e2b-sandbox-id: {id}\r\ne2b-sandbox-port: 49983\r\nx-access-token: {token}\r\n")
}

/// Set for child processes of this test program; selects their role.
const ROLE: &str = "CANTLE_TEST_SERVER_KILLED";

/// A child process of this program, killed on drop.
struct ChildProcess {
    child: Child,
    output: BufReader<ChildStdout>,
    /// Holds files that a killed process can't remove.
    _temporary: tempfile::TempDir,
}

impl ChildProcess {
    fn start(part: &[&str]) -> Self {
        let temporary = shared_tempdir();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::child_process", "--nocapture"])
            .env(ROLE, part.join("\n"))
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            output,
            _temporary: temporary,
        }
    }

    /// Waits for a line that starts with `word` and returns the rest of it.
    fn wait_for_line(&mut self, word: &str) -> String {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            if let Some(rest) = line.trim().strip_prefix(word) {
                return rest.to_owned();
            }
            line.clear();
        }
        panic!("it ended without `{word}`");
    }

    fn serve(place: &Path) -> (Self, SocketAddr) {
        let mut server = Self::start(&["serve", place.to_str().unwrap()]);
        let address = server.wait_for_line("serving ").parse().unwrap();
        (server, address)
    }

    /// Counts its open file descriptors.
    fn descriptors(&self) -> usize {
        let open = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        open.unwrap().count()
    }

    fn kill(&mut self) {
        // Only once: the process id may be reused afterwards.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Entry point of child processes; does nothing when run as a test.
#[tokio::test]
async fn child_process() {
    let Ok(part) = std::env::var(ROLE) else {
        return;
    };
    match *part.split('\n').collect::<Vec<_>>() {
        ["serve", place] => {
            let place = Path::new(place);
            let backend = LocalBackend::new()
                .in_directory(place.join("sandboxes"))
                .workspace_at("/home/user");
            let server = Server::builder(backend.clone())
                .state_directory(place.join("state"))
                .bind("127.0.0.1:0".parse().unwrap())
                .await
                .unwrap();
            // As in `cantle serve`.
            let paused = server.paused().unwrap();
            backend.reclaim_all_but(&paused, Duration::ZERO).await;
            println!("\nserving {}", server.address());
            server.serve(CancellationToken::new()).await.unwrap();
        }
        ["ask", address, id, token, phase] => {
            let server = client(address.parse().unwrap());
            let sandbox = Sandbox {
                server: &server,
                id: id.to_owned(),
                token: token.to_owned(),
            };
            let activity = begin(&sandbox, Phase::named(phase)).await;
            println!("\nbegun");
            match Phase::named(phase) {
                // The client stops reading.
                Phase::Output | Phase::Download => {}
                _ => activity.await,
            }
            std::future::pending::<()>().await;
        }
        _ => panic!("{part}"),
    }
}

/// Files of a server in a child process.
struct ServerFiles(tempfile::TempDir);

impl ServerFiles {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;

        let place = shared_tempdir();
        let sandboxes = place.path().join("sandboxes");
        fs::create_dir(&sandboxes).unwrap();
        fs::set_permissions(&sandboxes, fs::Permissions::from_mode(0o711)).unwrap();
        Self(place)
    }

    fn sandboxes(&self) -> usize {
        fs::read_dir(self.0.path().join("sandboxes"))
            .unwrap()
            .count()
    }

    /// File names in the directory of records.
    fn records(&self) -> BTreeSet<String> {
        let records = fs::read_dir(self.0.path().join("state/sandboxes")).unwrap();
        let names = records.map(|record| record.unwrap().file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .collect()
    }
}

/// Returns the processes with `mark` in their environment.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let carries = |environment: Vec<u8>| String::from_utf8_lossy(&environment).contains(mark);
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| fs::read(process.path().join("environ")).is_ok_and(carries))
        .filter_map(|process| process.file_name().to_string_lossy().parse().ok())
        .collect()
}

async fn create<'s>(server: &'s TestServer, mark: &str) -> Sandbox<'s> {
    let body = json!({ "templateID": "base", "envVars": { "MARK": mark } });
    server.create(body).await
}

async fn post(sandbox: &Sandbox<'_>, what: &str) -> StatusCode {
    let path = format!("/sandboxes/{}/{what}", sandbox.id);
    let answer = sandbox.server.control(Method::POST, &path, Some(json!({})));
    answer.await.status
}

async fn state(sandbox: &Sandbox<'_>) -> String {
    let path = format!("/sandboxes/{}", sandbox.id);
    let answer = sandbox.server.control(Method::GET, &path, None).await;
    answer.json()["state"].as_str().unwrap_or("none").to_owned()
}

/// Returns the ids of all running and paused sandboxes.
async fn listed(server: &TestServer) -> Vec<String> {
    let path = "/v2/sandboxes?state=running,paused";
    let answer = server.control(Method::GET, path, None).await.json();
    let all = answer.as_array().unwrap_or_else(|| panic!("{answer}"));
    let id = |one: &Value| one["sandboxID"].as_str().unwrap().to_owned();
    all.iter().map(id).collect()
}

#[tokio::test]
async fn a_killed_server_leaves_only_paused_sandboxes_in_every_phase() {
    let disk = ServerFiles::new();
    let (mut killed, address) = ChildProcess::serve(disk.0.path());
    let server = client(address);
    let mark = unique_id();
    let paused = create(&server, &mark).await;
    paused.put("kept", "x").await;
    assert_eq!(post(&paused, "pause").await, StatusCode::NO_CONTENT);
    let made = join_all(Phase::ALL.map(|_| create(&server, &mark))).await;
    let at = |phase| &made[Phase::ALL.iter().position(|other| *other == phase).unwrap()];
    let resumed = at(Phase::Resumed);
    resumed.put("kept", "x").await;
    assert_eq!(post(resumed, "pause").await, StatusCode::NO_CONTENT);
    assert_eq!(post(resumed, "connect").await, StatusCode::CREATED);
    let mut activities = Vec::new();
    for phase in Phase::ALL {
        activities.push(begin(at(phase), phase).await);
    }
    killed.kill();
    for (activity, phase) in activities.into_iter().zip(Phase::ALL) {
        let ended = timeout(DEADLINE, activity).await;
        assert!(ended.is_ok(), "{phase:?}: the client waits forever");
    }
    assert!(TcpStream::connect(address).await.is_err());
    eventually("no process is left", async || marked(&mark).is_empty()).await;

    let (mut next, address) = ChildProcess::serve(disk.0.path());
    let server = client(address);
    let found: BTreeSet<String> = listed(&server).await.into_iter().collect();
    let kept = [&paused.id, &resumed.id].map(String::clone);
    // The pause may have completed or not.
    let pausing = &at(Phase::Pausing).id;
    let expected: BTreeSet<String> = found
        .iter()
        .filter(|id| *id == pausing)
        .cloned()
        .chain(kept.clone())
        .collect();
    assert_eq!(found, expected);
    let records: BTreeSet<String> = found.iter().map(|id| format!("{id}.json")).collect();
    assert_eq!(disk.records(), records);
    for id in kept {
        let tokens = [&paused, resumed].map(|it| (it.id.clone(), it.token.clone()));
        let token = tokens.into_iter().find(|(of, _)| *of == id).unwrap().1;
        let server = &server;
        let again = Sandbox { server, id, token };
        assert_eq!(post(&again, "connect").await, StatusCode::CREATED);
        assert_eq!(again.run("ls -A; cat kept").await.0, "kept\nx");
        assert_eq!(again.kill().await, StatusCode::NO_CONTENT);
    }
    for id in listed(&server).await {
        let path = format!("/sandboxes/{id}");
        server.control(Method::DELETE, &path, None).await;
    }
    assert_eq!(disk.records(), BTreeSet::new());
    assert_eq!(disk.sandboxes(), 0);
    assert_eq!(marked(&mark), [0; 0]);
    next.kill();
}

#[tokio::test]
async fn a_killed_client_leaves_no_resources_beyond_its_sandbox() {
    let disk = ServerFiles::new();
    let (server_process, address) = ChildProcess::serve(disk.0.path());
    let server = client(address);
    let mark = unique_id();
    // Open shared resources first.
    create(&server, &mark).await.kill().await;
    eventually("connections end", async || {
        server_process.descriptors() < 64
    })
    .await;
    let before = server_process.descriptors();
    let made = join_all(Phase::ALL.map(|_| create(&server, &mark))).await;
    let with_sandboxes = server_process.descriptors();
    let start = |(sandbox, phase): (&Sandbox<'_>, Phase)| {
        let address = address.to_string();
        let phase = format!("{phase:?}");
        ChildProcess::start(&["ask", &address, &sandbox.id, &sandbox.token, &phase])
    };
    let mut clients: Vec<ChildProcess> = made.iter().zip(Phase::ALL).map(start).collect();
    for client in &mut clients {
        client.wait_for_line("begun");
        client.kill();
    }
    for (sandbox, phase) in made.iter().zip(Phase::ALL) {
        match phase {
            // The requests were accepted and complete.
            Phase::Pausing => {
                eventually("it is paused", async || state(sandbox).await == "paused").await;
            }
            Phase::Killing => {
                eventually("it is killed", async || state(sandbox).await == "none").await;
            }
            Phase::Upload => {
                eventually("half a file goes", async || {
                    sandbox.run("ls -A").await.0.is_empty()
                })
                .await;
            }
            _ => assert_eq!(state(sandbox).await, "running", "{phase:?}"),
        }
    }
    let commands = || Phase::ALL.iter().filter(|phase| phase.has_command());
    assert!(marked(&mark).len() >= commands().count() - 2);
    for (sandbox, phase) in made.iter().zip(Phase::ALL) {
        if phase.has_command() && phase != Phase::Killing {
            assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT, "{phase:?}");
        }
    }
    eventually("no command is left", async || marked(&mark).is_empty()).await;
    // The sandboxes remain without clients.
    eventually("no connection is left", async || {
        server_process.descriptors() < with_sandboxes
    })
    .await;
    for id in listed(&server).await {
        // A sandbox without a client ends at its deadline.
        if made.iter().any(|sandbox| sandbox.id == id) {
            let path = format!("/sandboxes/{id}");
            server.control(Method::DELETE, &path, None).await;
        }
    }
    eventually("nothing is left", async || {
        disk.sandboxes() == 0 && server_process.descriptors() <= before
    })
    .await;
    assert_eq!(listed(&server).await, [""; 0]);
    assert_eq!(disk.records(), BTreeSet::new());
}

/// Returns a process's name and parent.
fn name_and_parent(pid: u32) -> (String, u32) {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // `PID (NAME) STATE PARENT …`; the name may contain any character.
    let (before, after) = stat.rsplit_once(") ").unwrap_or_default();
    let name = before.split_once('(').unwrap_or_default().1;
    let parent = after.split(' ').nth(1).unwrap_or_default();
    (name.to_owned(), parent.parse().unwrap_or(0))
}

/// Kills the ancestor with this name of a command.
pub(crate) async fn kill_above(mark: &str, name: &str) {
    // A process in `execve` has no environment.
    let mut pid = 0;
    eventually("something runs", async || {
        pid = marked(mark).first().copied().unwrap_or(0);
        pid != 0
    })
    .await;
    while pid != 0 {
        let (found, parent) = name_and_parent(pid);
        if found == name {
            let killed = Command::new("kill")
                .args(["-KILL", &pid.to_string()])
                .status();
            assert!(killed.unwrap().success());
            return;
        }
        pid = parent;
    }
    panic!("no {name} holds it up");
}

#[tokio::test]
async fn a_sandbox_whose_supervisor_is_killed_is_gone_and_clients_get_errors() {
    let server = serve().await;
    let lose = async |name: &str, phase: Phase| {
        let mark = unique_id();
        let sandbox = create(&server, &mark).await;
        let activity = begin(&sandbox, phase).await;
        if phase == Phase::Idle {
            // A mark to find the process by.
            command(&sandbox).await;
        }
        kill_above(&mark, name).await;
        let ended = timeout(DEADLINE, activity).await;
        assert!(ended.is_ok(), "{name} {phase:?}: the client waits forever");
        // Later requests fail as well; the sandbox no longer exists.
        eventually("it can't be used", async || {
            let spawned = json!({ "process": { "cmd": "true" }, "stdin": false });
            let request = sandbox
                .request(Method::POST, "/process.Process/Start")
                .header("content-type", "application/connect+json")
                .body(Full::from(enveloped(&spawned)))
                .unwrap();
            server.ask(request).await.status == StatusCode::BAD_GATEWAY
        })
        .await;
        eventually("it is none", async || state(&sandbox).await == "none").await;
        eventually("no process is left", async || marked(&mark).is_empty()).await;
        assert_eq!(sandbox.kill().await, StatusCode::NOT_FOUND);
    };
    let phases = [Phase::Idle, Phase::Command, Phase::Input, Phase::Output];
    let names = ["cantle-guard", "cantle-init"];
    let cells = names
        .iter()
        .flat_map(|name| phases.map(|phase| lose(name, phase)));
    join_all(cells).await;
    eventually("no file is left", async || {
        server.sandbox_directories() == 0
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn a_command_whose_keeper_is_killed_ends_and_its_sandbox_continues() {
    let server = serve().await;
    let mark = unique_id();
    let sandbox = create(&server, &mark).await;
    for phase in [Phase::Command, Phase::Input, Phase::Output] {
        let activity = begin(&sandbox, phase).await;
        kill_above(&mark, "cantle-keeper").await;
        let ended = timeout(DEADLINE, activity).await;
        assert!(ended.is_ok(), "{phase:?}: the client waits forever");
        eventually("no process is left", async || marked(&mark).is_empty()).await;
        assert_eq!(sandbox.run("echo well").await.0, "well\n");
    }
    assert_eq!(sandbox.kill().await, StatusCode::NO_CONTENT);
    assert_eq!(server.sandbox_directories(), 0);
    server.stop().await;
}
