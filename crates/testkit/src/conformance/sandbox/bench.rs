//! Test bench of a case: a fresh sandbox and short helpers.

use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend, Captured, CommandOutput, ExitStatus, OutputStream, Process, ProcessStdin, Sandbox,
    SandboxContext, SandboxError, SandboxExt as _, SandboxPath, SpawnRequest,
};
use futures_util::StreamExt as _;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::super::check::{Checked, Failure, ensure, equal, same_bytes, within};
use super::host;
use super::options::Killer;

/// Limit for operations that must end within a second, with a margin for a busy machine. Broken
/// implementations wait for a minute or forever.
pub(super) const PROMPT_LIMIT: Duration = Duration::from_secs(6);

/// Limit for a single step of a case, normally instantaneous.
pub(super) const STEP_TIMEOUT: Duration = Duration::from_secs(20);

/// Bounds of the poll interval, which grows because a poll may scan all processes.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(100);

pub(super) async fn read(sandbox: &dyn Sandbox, path: &SandboxPath) -> Checked<Bytes> {
    Ok(sandbox.read_bytes(path, 100_000_000).await?)
}

/// Makes a [`Bench`] for each case.
pub(super) struct Harness<'b> {
    backend: &'b dyn Backend,
    /// Backend of the second sandbox in cases about copies.
    other: &'b dyn Backend,
    killer: Option<Killer<'b>>,
    host_visible: bool,
}

impl<'b> Harness<'b> {
    /// Creates a harness for cases about two sandboxes, one of each backend.
    pub(super) fn between(backend: &'b dyn Backend, other: &'b dyn Backend) -> Self {
        Self {
            backend,
            other,
            killer: None,
            host_visible: false,
        }
    }

    pub(super) async fn new(backend: &'b dyn Backend, killer: Option<Killer<'b>>) -> Self {
        let mut harness = Self {
            killer,
            ..Self::between(backend, backend)
        };
        // Failures are ignored here: the cases fail for the same reason and report it.
        let probe = within("the probe", STEP_TIMEOUT, harness.can_see_processes()).await;
        harness.host_visible = matches!(probe, Ok(Ok(true)));
        harness
    }

    async fn can_see_processes(&self) -> Checked<bool> {
        let bench = self.bench().await?;
        let token = Token::new();
        let request = SpawnRequest::shell(format!("exec {}", token.sleep()));
        let process = bench.sandbox.spawn(request).await?;
        let visible = until(PROMPT_LIMIT, async || host::is_running(token.as_str())).await?;
        drop(process);
        bench.finish(Ok(())).await?;
        Ok(visible)
    }

    /// Runs a check with a fresh sandbox, whose closing is part of it.
    pub(super) async fn check(&self, check: impl AsyncFnOnce(&Bench<'b>) -> Checked) -> Checked {
        let bench = self.bench().await?;
        let checked = check(&bench).await;
        bench.finish(checked).await
    }

    async fn bench(&self) -> Checked<Bench<'b>> {
        Ok(Bench {
            backend: self.backend,
            other: self.other,
            killer: self.killer.clone(),
            sandbox: open(self.backend, Policy::unconfined()).await?,
            host_visible: self.host_visible,
            others: Mutex::default(),
        })
    }
}

async fn open(backend: &dyn Backend, policy: Policy) -> Result<Arc<dyn Sandbox>, SandboxError> {
    backend
        .open(SandboxContext::new(RunId::new(), policy))
        .await
}

/// Fresh sandbox of one case.
pub(super) struct Bench<'b> {
    pub(super) backend: &'b dyn Backend,
    pub(super) sandbox: Arc<dyn Sandbox>,
    other: &'b dyn Backend,
    killer: Option<Killer<'b>>,
    host_visible: bool,
    others: Mutex<Vec<Arc<dyn Sandbox>>>,
}

impl Deref for Bench<'_> {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}

impl Bench<'_> {
    /// Closes all sandboxes of the case. A failure of the case takes precedence and shortens the wait.
    pub(super) async fn finish(self, checked: Checked) -> Checked {
        let others = self.others.into_inner();
        let limit = if checked.is_ok() {
            STEP_TIMEOUT
        } else {
            PROMPT_LIMIT
        };
        let mut closed = Ok(());
        for sandbox in others.into_iter().chain([self.sandbox]) {
            let close = within("the end of `close`", limit, sandbox.close()).await;
            closed = closed.and(close.and_then(|result| {
                result.map_err(|error| Failure::new(format!("`close` failed: {error}")))
            }));
        }
        checked.and(closed)
    }

    /// Opens another sandbox, closed with the first.
    pub(super) async fn open(&self, policy: Policy) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_by(self.backend, policy).await
    }

    /// Opens a sandbox of the other backend, if there is one.
    pub(super) async fn open_other(&self) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_by(self.other, Policy::unconfined()).await
    }

    async fn open_by(
        &self,
        backend: &dyn Backend,
        policy: Policy,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let sandbox = open(backend, policy).await?;
        self.others.lock().push(Arc::clone(&sandbox));
        Ok(sandbox)
    }

    /// Kills the sandbox from outside; skips the case without [`SandboxOptions::killed_by`].
    ///
    /// [`SandboxOptions::killed_by`]: super::SandboxOptions::killed_by
    pub(super) async fn kill(&self) -> Checked {
        let killer = self
            .killer
            .as_ref()
            .ok_or_else(|| Failure::skip("killing a sandbox needs `SandboxOptions::killed_by`"))?;
        let killing = killer(Arc::clone(&self.sandbox));
        Ok(within("the end of `killed_by`", STEP_TIMEOUT, killing).await??)
    }

    /// Runs a command line to its end.
    pub(super) async fn sh(&self, command: &str) -> Checked<CommandOutput> {
        sh(&*self.sandbox, command).await
    }

    /// Runs a command line that must succeed, and returns its output.
    pub(super) async fn stdout(&self, command: &str) -> Checked<String> {
        stdout(&*self.sandbox, command).await
    }

    /// Checks the output of a command line that must succeed.
    pub(super) async fn must_print(&self, what: &str, command: &str, expected: &str) -> Checked {
        equal(what, self.stdout(command).await?, expected)
    }

    /// Checks the content of a file.
    pub(super) async fn must_hold(
        &self,
        what: &str,
        file: &SandboxPath,
        expected: impl AsRef<[u8]>,
    ) -> Checked {
        same_bytes(what, &read(&*self.sandbox, file).await?, expected.as_ref())
    }

    /// Runs a request that must exit with code 0, and returns its output.
    pub(super) async fn output_of(&self, request: SpawnRequest) -> Checked<Vec<u8>> {
        let output = self.sandbox.run(with_limit(request)).await?;
        succeeded(&output)?;
        whole(&output.stdout)
    }

    /// Starts a command and waits until its output contains `mark`.
    pub(super) async fn start(
        &self,
        request: SpawnRequest,
        mark: &str,
    ) -> Checked<(Box<dyn Process>, OutputStream)> {
        let mut process = self.sandbox.spawn(request).await?;
        let mut output = take_output(&mut *process)?;
        read_until(&mut output, mark).await?;
        Ok((process, output))
    }

    /// Skips the case unless the sandbox's processes are visible on this host.
    pub(super) fn require_host_visible(&self) -> Checked {
        if self.host_visible {
            return Ok(());
        }
        Err(Failure::skip(
            "the sandbox's processes can't be seen from this host",
        ))
    }

    /// Reports whether the token's process runs.
    pub(super) async fn is_running(&self, token: &Token) -> Checked<bool> {
        if self.host_visible {
            return host::is_running(token.as_str());
        }
        // The brackets keep `grep` from matching its own command line.
        let (first, rest) = token.as_str().split_at(1);
        let count = self
            .sh(&format!(
                "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -x '[{first}]{rest}'"
            ))
            .await?;
        let count = whole(&count.stdout)?;
        Ok(String::from_utf8_lossy(&count).trim() != "0")
    }

    /// Waits until the token's process runs.
    pub(super) async fn must_run(&self, token: &Token) -> Checked {
        let runs = until(STEP_TIMEOUT, async || self.is_running(token).await).await?;
        ensure!(runs, "`{}` was not started", token.sleep());
        Ok(())
    }

    /// Waits until the token's process is gone.
    pub(super) async fn must_be_gone(&self, token: &Token) -> Checked {
        let gone = until(PROMPT_LIMIT, async || Ok(!self.is_running(token).await?)).await?;
        ensure!(gone, "`{}` still runs", token.sleep());
        Ok(())
    }

    /// Returns the working directory's path on this host; skips the case if it is not visible.
    pub(super) async fn host_directory(&self) -> Checked<PathBuf> {
        let token = Token::new();
        let mark = path(&format!("mark-{}", token.as_str()))?;
        self.sandbox
            .write_bytes(&mark, token.as_str().to_owned().into())
            .await?;
        let directory = PathBuf::from(self.sandbox.info().working_directory.to_string());
        let found = std::fs::read_to_string(directory.join(mark.to_string()));
        self.sandbox.remove(&mark).await?;
        if found.is_ok_and(|text| text == token.as_str()) {
            return Ok(directory);
        }
        Err(Failure::skip(
            "the sandbox's files can't be seen from this host",
        ))
    }
}

pub(super) async fn sh(sandbox: &dyn Sandbox, command: &str) -> Checked<CommandOutput> {
    let request = with_limit(SpawnRequest::shell(command));
    Ok(sandbox.run(request).await?)
}

pub(super) async fn stdout(sandbox: &dyn Sandbox, command: &str) -> Checked<String> {
    let output = sh(sandbox, command).await?;
    succeeded(&output).map_err(|failure| Failure::new(format!("`{command}`: {failure}")))?;
    let bytes = whole(&output.stdout)?;
    String::from_utf8(bytes).map_err(|_| Failure::new(format!("`{command}` wrote no UTF-8")))
}

fn with_limit(mut request: SpawnRequest) -> SpawnRequest {
    request.timeout = request.timeout.or(Some(STEP_TIMEOUT));
    request
}

pub(super) fn succeeded(output: &CommandOutput) -> Checked {
    let stderr = String::from_utf8_lossy(&output.stderr.head).into_owned();
    ensure!(
        output.exit.status == ExitStatus::Code(0),
        "the command ended with {} where 0 was expected; stderr: {stderr}",
        output.exit.status
    );
    Ok(())
}

/// Returns a channel's output, none of which may have been omitted.
pub(super) fn whole(captured: &Captured) -> Checked<Vec<u8>> {
    equal("omitted bytes of a small output", captured.omitted_bytes, 0)?;
    Ok([&captured.head[..], &captured.tail[..]].concat())
}

pub(super) fn path(path: &str) -> Checked<SandboxPath> {
    Ok(SandboxPath::new(path)?)
}

/// Reads output until it contains `mark`, and returns it.
pub(super) async fn read_until(output: &mut OutputStream, mark: &str) -> Checked<String> {
    let mut text = String::new();
    let reading = async {
        while !text.contains(mark) {
            let chunk = output.next().await.ok_or_else(|| {
                Failure::new(format!("the output ended before `{mark}`; it was {text:?}"))
            })??;
            text.push_str(&String::from_utf8_lossy(&chunk.bytes));
        }
        Ok(text)
    };
    within("a piece of output", STEP_TIMEOUT, reading).await?
}

/// Takes the stdin of a process, which must be piped.
pub(super) fn take_stdin(process: &mut dyn Process) -> Checked<Box<dyn ProcessStdin>> {
    process
        .take_stdin()
        .ok_or_else(|| Failure::new("`take_stdin` returned nothing"))
}

/// Takes the output of a process.
pub(super) fn take_output(process: &mut dyn Process) -> Checked<OutputStream> {
    process
        .take_output()
        .ok_or_else(|| Failure::new("the first `take_output` returned nothing"))
}

/// Awaits a step that is normally instantaneous.
#[track_caller]
pub(super) fn step<F: Future>(what: &str, future: F) -> impl Future<Output = Checked<F::Output>> {
    within(what, STEP_TIMEOUT, future)
}

/// Polls `check` until it returns true or `limit` is over.
pub(super) async fn until(
    limit: Duration,
    mut check: impl AsyncFnMut() -> Checked<bool>,
) -> Checked<bool> {
    let deadline = Instant::now() + limit;
    let mut pause = MIN_POLL_INTERVAL;
    loop {
        if check().await? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(pause).await;
        pause = (pause * 3 / 2).min(MAX_POLL_INTERVAL);
    }
}

/// Unique number of seconds that identifies a `sleep` process in the process list.
pub(super) struct Token(String);

impl Token {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = now.map_or(0, |since| since.as_micros() as u64);
        // Ten digits, so decades of sleep; different in each test program and call.
        let offset = micros.wrapping_mul(1009) ^ u64::from(std::process::id());
        let number = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        Self((1_000_000_000 + number % 1_000_000_000).to_string())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the `sleep` command.
    pub(super) fn sleep(&self) -> String {
        format!("sleep {}", self.0)
    }
}
