//! Sandboxes for tests, and checks for leftovers.

use std::fs;
use std::future::Future;
use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use cantle_backends_local::LocalBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, CommandOutput, OutputStream, Sandbox, SandboxContext, SandboxExt as _,
    SandboxPath, SpawnRequest,
};
use futures_util::StreamExt as _;
use tokio::runtime::{Builder, Runtime};

/// Upper bound of waiting for an expected event.
const DEADLINE: Duration = Duration::from_secs(60);

/// Time that a call waits at most for the end of the processes it has killed.
const KILL_DEADLINE: Duration = Duration::from_millis(400);

pub(crate) async fn open() -> Arc<dyn Sandbox> {
    open_under(Policy::unconfined()).await
}

pub(crate) async fn open_under(policy: Policy) -> Arc<dyn Sandbox> {
    let cx = SandboxContext::new(RunId::new(), policy);
    LocalBackend::new().open(cx).await.unwrap()
}

pub(crate) async fn run(sandbox: &dyn Sandbox, line: &str) -> CommandOutput {
    sandbox.run(SpawnRequest::shell(line)).await.unwrap()
}

pub(crate) async fn stdout(sandbox: &dyn Sandbox, line: &str) -> String {
    run(sandbox, line).await.stdout.text()
}

pub(crate) fn path(text: &str) -> SandboxPath {
    text.parse().unwrap()
}

/// Returns the host path of a sandbox path, which are equal for this backend.
pub(crate) fn on_host(sandbox: &dyn Sandbox, relative: &str) -> PathBuf {
    PathBuf::from(sandbox.info().working_directory.to_string()).join(relative)
}

pub(crate) async fn write(sandbox: &dyn Sandbox, name: &str, content: impl Into<Bytes>) {
    sandbox
        .write_bytes(&path(name), content.into())
        .await
        .unwrap();
}

pub(crate) async fn read(sandbox: &dyn Sandbox, name: &str) -> String {
    let bytes = sandbox.read_bytes(&path(name), 1 << 20).await.unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Returns a runtime of this thread.
pub(crate) fn new_runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// Prefix of lines between the parts of a test.
const OPENED: &str = "opened: ";

/// Prints a line to the other part of a test, even if output is captured.
pub(crate) fn say(what: &str) {
    let line = format!("{OPENED}{what}\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

/// Returns a command that runs one test of this program.
pub(crate) fn rerun(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture", test]);
    command
}

/// The other part of a test, which owns sandboxes; killed on drop.
pub(crate) struct Owner {
    child: Child,
    /// Its first output.
    pub(crate) said: String,
    /// Kept open, because it may say more.
    _stderr: Lines<BufReader<ChildStderr>>,
}

impl Owner {
    /// Starts it, and waits until it says something.
    pub(crate) fn start(command: &mut Command) -> Self {
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap()).lines();
        let said = stderr.find_map(|line| Some(line.unwrap().strip_prefix(OPENED)?.to_owned()));
        Self {
            child,
            said: said.unwrap(),
            _stderr: stderr,
        }
    }

    pub(crate) fn kill(&mut self) {
        // Only once: its id may be reused.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits until a condition is true.
pub(crate) async fn eventually(what: &str, mut is_true: impl FnMut() -> bool) {
    let deadline = Instant::now() + DEADLINE;
    while !is_true() {
        assert!(
            Instant::now() < deadline,
            "it never became true that {what}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Reads output until it ends with `mark`, however it is chunked, and returns it.
pub(crate) async fn read_until(output: &mut OutputStream, mark: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(mark) {
        let piece = soon(output.next()).await.expect("it ended before").unwrap();
        text += std::str::from_utf8(&piece.bytes).unwrap();
    }
    text
}

/// Awaits a future with a deadline.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .expect("it hangs")
}

/// Marks the processes of one test by a text in their command line or environment.
#[derive(Clone, Debug)]
pub(crate) struct Token(String);

impl Token {
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(format!("token-{}-{number}-", std::process::id()))
    }

    /// A request whose processes have the token in their environment; `TOKEN` in the line becomes
    /// the token itself, for processes without it.
    pub(crate) fn shell(&self, line: &str) -> SpawnRequest {
        SpawnRequest::shell(line.replace("TOKEN", &self.0)).with_env("MARK", self.0.as_str())
    }

    /// Returns the running processes with the token. During an exec, a process has none.
    pub(crate) fn alive(&self) -> Vec<u32> {
        let mut alive = Vec::new();
        for entry in fs::read_dir("/proc").unwrap() {
            let entry = entry.unwrap();
            let Ok(pid) = entry.file_name().to_string_lossy().parse() else {
                continue;
            };
            let carries = |file| {
                fs::read(entry.path().join(file))
                    .is_ok_and(|content| String::from_utf8_lossy(&content).contains(&*self.0))
            };
            if pid != std::process::id() && (carries("cmdline") || carries("environ")) {
                alive.push(pid);
            }
        }
        alive
    }

    pub(crate) async fn all_dead(&self) {
        let mut alive = Vec::new();
        eventually("all processes are dead", || {
            alive = self.alive();
            alive.is_empty()
        })
        .await;
    }

    /// Checks that no process has the token after a call, made at `since`, that kills them. If killing took
    /// longer than the call waits for it, they end soon.
    pub(crate) async fn dead_since(&self, since: Instant) {
        let waited = since.elapsed() >= KILL_DEADLINE;
        let alive = self.alive();
        assert!(alive.is_empty() || waited, "{alive:?} run");
        self.all_dead().await;
    }

    /// Waits until so many processes have the token.
    pub(crate) async fn at_least(&self, count: usize) {
        let what = format!("{count} processes run");
        eventually(&what, || self.alive().len() >= count).await;
    }
}

/// Whether a process exists, including zombies.
pub(crate) fn exists(pid: u32) -> bool {
    PathBuf::from(format!("/proc/{pid}")).exists()
}

/// Runs a test again as an ordinary user if this process is root's; returns whether it did.
pub(crate) fn ran_as_ordinary_user(test: &str) -> bool {
    const AS_USER: &str = "CANTLE_TEST_AS_USER";
    if std::env::var_os(AS_USER).is_some() || !rustix::process::geteuid().is_root() {
        return false;
    }
    let place = tempfile::tempdir().unwrap();
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let program = place.path().join("test");
    // By another process: one forked here meanwhile would inherit the open copy, and then it could not be
    // executed (ETXTBSY).
    let copied = Command::new("cp")
        .arg(std::env::current_exe().unwrap())
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    let status = Command::new(&program)
        .args(["--exact", test])
        .env(AS_USER, "1")
        .env("TMPDIR", place.path())
        .uid(65534)
        .gid(65534)
        .status()
        .unwrap();
    assert!(status.success());
    true
}
