//! What a case works with: a fresh sandbox, and short ways to use it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend, Captured, CommandOutput, ExitStatus, OutputStream, Process, Sandbox, SandboxContext,
    SandboxError, SandboxExt as _, SandboxPath, SpawnRequest,
};
use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep};

use super::super::check::{Checked, Failure, ensure, equal, within};
use super::host;
use super::options::Killer;

/// For what is promised within a second: that second, and what a slow machine adds that is busy with
/// something else. What breaks the promise waits for something that takes a minute, or has no end.
pub(super) const SOON: Duration = Duration::from_secs(6);

/// For what must come at all, and should take no time.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// Between the first two looks at something that is waited for, and between the last ones: a look may
/// go through all processes, and what does not come at once may not come at all.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_SELDOM: Duration = Duration::from_millis(100);

/// Makes a [`Bench`] for each case.
pub(super) struct Harness<'b> {
    backend: &'b dyn Backend,
    /// What a second sandbox is opened by, where files go from one to the other.
    other: &'b dyn Backend,
    killer: Option<Killer<'b>>,
    host_visible: bool,
}

impl<'b> Harness<'b> {
    /// For cases about two sandboxes, one of each backend.
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
        // Where this fails or hangs, the cases do too, and say how.
        let look = within("a first look", PATIENCE, harness.can_see_processes()).await;
        harness.host_visible = matches!(look, Ok(Ok(true)));
        harness
    }

    async fn can_see_processes(&self) -> Checked<bool> {
        let bench = self.bench().await?;
        let token = Token::new();
        let request = SpawnRequest::shell(format!("exec {}", token.sleep()));
        let process = bench.sandbox.spawn(request).await?;
        let seen = until(SOON, async || host::is_running(token.as_str())).await?;
        drop(process);
        bench.finish(Ok(())).await?;
        Ok(seen)
    }

    pub(super) async fn bench(&self) -> Checked<Bench<'b>> {
        let bench = Bench {
            backend: self.backend,
            other: self.other,
            killer: self.killer.clone(),
            sandbox: open(self.backend, Policy::unconfined()).await?,
            host_visible: self.host_visible,
            others: Mutex::default(),
        };
        Ok(bench)
    }
}

async fn open(backend: &dyn Backend, policy: Policy) -> Result<Arc<dyn Sandbox>, SandboxError> {
    backend
        .open(SandboxContext::new(RunId::new(), policy))
        .await
}

/// A fresh sandbox and what a case does with it.
pub(super) struct Bench<'b> {
    pub(super) backend: &'b dyn Backend,
    pub(super) sandbox: Arc<dyn Sandbox>,
    other: &'b dyn Backend,
    killer: Option<Killer<'b>>,
    host_visible: bool,
    others: Mutex<Vec<Arc<dyn Sandbox>>>,
}

impl Bench<'_> {
    /// Closes what the case opened. Where the case failed, that is the more telling failure, and what
    /// can't be closed is not waited for as long.
    pub(super) async fn finish(self, checked: Checked) -> Checked {
        let others = self.others.into_inner();
        let others = others.unwrap_or_else(PoisonError::into_inner);
        let patience = if checked.is_ok() { PATIENCE } else { SOON };
        let mut closed = Ok(());
        for sandbox in others.into_iter().chain([self.sandbox]) {
            let close = within("the end of `close`", patience, sandbox.close()).await;
            closed = closed.and(close.and_then(|result| {
                result.map_err(|error| Failure::new(format!("`close` failed: {error}")))
            }));
        }
        checked.and(closed)
    }

    /// Another sandbox, closed with the first.
    pub(super) async fn open(&self, policy: Policy) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_by(self.backend, policy).await
    }

    /// A sandbox to copy files to and from: the other backend's, where there is one.
    pub(super) async fn open_other(&self) -> Result<Arc<dyn Sandbox>, SandboxError> {
        self.open_by(self.other, Policy::unconfined()).await
    }

    async fn open_by(
        &self,
        backend: &dyn Backend,
        policy: Policy,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let sandbox = open(backend, policy).await?;
        self.others
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Arc::clone(&sandbox));
        Ok(sandbox)
    }

    /// Ends the sandbox from outside; skips the case where nobody said how.
    pub(super) async fn kill(&self) -> Checked {
        let killer = self.killer.as_ref().ok_or_else(|| {
            Failure::skip("nobody said how to kill a sandbox (`SandboxOptions::killed_by`)")
        })?;
        let killing = killer(Arc::clone(&self.sandbox));
        Ok(within("the end of `killed_by`", PATIENCE, killing).await??)
    }

    /// Runs a command line to its end.
    pub(super) async fn sh(&self, command: &str) -> Checked<CommandOutput> {
        sh(&*self.sandbox, command).await
    }

    /// Runs a command line that must succeed, and returns its output.
    pub(super) async fn stdout(&self, command: &str) -> Checked<String> {
        stdout(&*self.sandbox, command).await
    }

    /// Runs a request that must end by itself with code 0, and returns its output.
    pub(super) async fn output_of(&self, request: SpawnRequest) -> Checked<Vec<u8>> {
        let output = self.sandbox.run(with_limit(request)).await?;
        succeeded(&output)?;
        whole(&output.stdout)
    }

    /// Skips the case unless the host sees what runs in the sandbox.
    pub(super) fn require_host_visible(&self) -> Checked {
        if self.host_visible {
            return Ok(());
        }
        Err(Failure::skip(
            "the sandbox's processes can't be seen from this host",
        ))
    }

    /// Whether the process runs that a token names.
    pub(super) async fn is_running(&self, token: &Token) -> Checked<bool> {
        if self.host_visible {
            return host::is_running(token.as_str());
        }
        // The brackets keep `grep` from finding itself.
        let (first, rest) = token.as_str().split_at(1);
        let count = self
            .sh(&format!(
                "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c -x '[{first}]{rest}'"
            ))
            .await?;
        let count = whole(&count.stdout)?;
        Ok(String::from_utf8_lossy(&count).trim() != "0")
    }

    /// Waits until the process runs that a token names.
    pub(super) async fn must_run(&self, token: &Token) -> Checked {
        let runs = until(PATIENCE, async || self.is_running(token).await).await?;
        ensure!(runs, "`{}` was not started", token.sleep());
        Ok(())
    }

    /// Waits until no process runs that a token names.
    pub(super) async fn must_be_gone(&self, token: &Token) -> Checked {
        let gone = until(SOON, async || Ok(!self.is_running(token).await?)).await?;
        ensure!(gone, "`{}` still runs", token.sleep());
        Ok(())
    }

    /// The working directory as the host sees it; skips the case where it doesn't.
    pub(super) async fn host_directory(&self) -> Checked<PathBuf> {
        let token = Token::new();
        let mark = path(&format!("mark-{}", token.as_str()))?;
        self.sandbox
            .write_bytes(&mark, token.as_str().to_owned().into())
            .await?;
        let directory = PathBuf::from(self.sandbox.info().working_directory.to_string());
        let seen = std::fs::read_to_string(directory.join(mark.to_string()));
        self.sandbox.remove(&mark).await?;
        if seen.is_ok_and(|text| text == token.as_str()) {
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
    request.timeout = request.timeout.or(Some(PATIENCE));
    request
}

pub(super) fn succeeded(output: &CommandOutput) -> Checked {
    let complaint = String::from_utf8_lossy(&output.stderr.head).into_owned();
    ensure!(
        output.exit.status == ExitStatus::Code(0),
        "the command ended with {} where 0 was expected; stderr: {complaint}",
        output.exit.status
    );
    Ok(())
}

/// All of a channel whose output is small.
pub(super) fn whole(captured: &Captured) -> Checked<Vec<u8>> {
    equal(
        "bytes left out of a small output",
        captured.omitted_bytes,
        0,
    )?;
    Ok([&captured.head[..], &captured.tail[..]].concat())
}

pub(super) fn path(path: &str) -> Checked<SandboxPath> {
    Ok(SandboxPath::new(path)?)
}

/// Reads output until it holds `mark`, and returns what came.
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
    within("a piece of output", PATIENCE, reading).await?
}

/// Takes the output of a process, which must be there.
pub(super) fn take_output(process: &mut dyn Process) -> Checked<OutputStream> {
    process
        .take_output()
        .ok_or_else(|| Failure::new("`take_output` gave nothing the first time"))
}

/// Looks until the answer is yes, or time is over.
pub(super) async fn until(
    limit: Duration,
    mut look: impl AsyncFnMut() -> Checked<bool>,
) -> Checked<bool> {
    let deadline = Instant::now() + limit;
    let mut pause = LOOK_AGAIN;
    loop {
        if look().await? {
            return Ok(true);
        }
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(pause).await;
        pause = (pause * 3 / 2).min(LOOK_SELDOM);
    }
}

/// Names a process by how long it sleeps: a number of seconds that no other process is given, and
/// that a look at the list of processes finds.
pub(super) struct Token(String);

impl Token {
    pub(super) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let micros = now.map_or(0, |since| since.as_micros() as u64);
        // Ten digits: a few decades of sleep, different in each test program and each call.
        let offset = micros.wrapping_mul(1009) ^ u64::from(std::process::id());
        let number = offset.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        Self((1_000_000_000 + number % 1_000_000_000).to_string())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The command that sleeps so long.
    pub(super) fn sleep(&self) -> String {
        format!("sleep {}", self.0)
    }
}
