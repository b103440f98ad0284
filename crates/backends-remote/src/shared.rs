//! The state of a sandbox at the service: its lifetime, pausing, and detection of its loss.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxInfo, SandboxPath};
use cantle_core::secret::SecretText;
use parking_lot::{Mutex, RwLock as SyncRwLock};
use serde_json::{Map, Value};
use tokio::select;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::envd::{Envd, Fault};
use crate::policy::CommandLimits;
use crate::service::Service;

/// The directory for temporary files.
pub(crate) const SCRATCH: &str = "/tmp";

/// Interval of health checks during long operations.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// How long health checks must fail before a sandbox counts as gone without confirmation: a gateway may restart.
const UNREACHABLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Pause between failed health checks.
const RECHECK_PAUSE: Duration = Duration::from_secs(1);

/// State shared by a sandbox, its commands and its file operations.
pub(crate) struct Shared {
    pub(crate) info: SandboxInfo,
    /// The working directory.
    pub(crate) home: String,
    pub(crate) limits: CommandLimits,
    /// The policy's variables.
    pub(crate) environment: BTreeMap<String, SecretText>,
    pub(crate) service: Arc<Service>,
    pub(crate) id: String,
    /// The network fields of the request that created it; `None` if unknown.
    pub(crate) network: Option<Map<String, Value>>,
    pub(crate) envd: SyncRwLock<Envd>,
    pub(crate) phase: Arc<RwLock<Phase>>,
    pub(crate) last_use: Mutex<Instant>,
    /// The reason, once it is gone.
    pub(crate) gone: Mutex<Option<String>>,
    pub(crate) gone_signal: CancellationToken,
    /// Cancelled when it is closed.
    pub(crate) closed: CancellationToken,
    pub(crate) kept: AtomicBool,
    pub(crate) tasks: Mutex<JoinSet<()>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("info", &self.info)
            .field("closed", &self.closed.is_cancelled())
            .finish_non_exhaustive()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    Paused,
}

/// A connection to the sandbox that prevents it from being paused.
pub(crate) struct ActiveSandbox {
    pub(crate) envd: Envd,
    pub(crate) shared: Arc<Shared>,
    _phase: OwnedRwLockReadGuard<Phase>,
}

impl Drop for ActiveSandbox {
    fn drop(&mut self) {
        self.shared.touch();
    }
}

impl ActiveSandbox {
    /// Determines whether a call failed because the sandbox is gone; returns the reason if so.
    pub(crate) async fn check_gone(&self, fault: &Fault) -> Option<String> {
        let reason = match fault {
            Fault::Gone(reason) => reason.clone(),
            fault if fault.is_unanswered() => select! {
                biased;
                reason = self.shared.gone() => reason,
                reason = self.confirm_gone() => reason?,
            },
            _ => return None,
        };
        self.shared.mark_gone(&reason);
        Some(reason)
    }

    /// Converts a failed call to an error; "gone" or "closed" if that is the cause.
    pub(crate) async fn explain(&self, fault: Fault, doing: &str) -> SandboxError {
        if let Err(closed) = self.shared.check() {
            return closed;
        }
        match self.check_gone(&fault).await {
            Some(reason) => match self.shared.check() {
                Err(error) => error,
                Ok(()) => SandboxError::gone(reason),
            },
            None => fault.into_error(doing),
        }
    }

    /// Returns what a call returned; converts a failed one as [`explain`](Self::explain) does.
    pub(crate) async fn explained<T>(
        &self,
        called: Result<T, Fault>,
        doing: &str,
    ) -> Result<T, SandboxError> {
        match called {
            Ok(answer) => Ok(answer),
            Err(fault) => Err(self.explain(fault, doing).await),
        }
    }

    /// Runs a long operation until the sandbox is closed or gone.
    pub(crate) async fn while_alive<T>(
        &self,
        work: impl Future<Output = T>,
    ) -> Result<T, SandboxError> {
        let shared = &self.shared;
        select! {
            biased;
            done = work => Ok(done),
            () = shared.closed.cancelled() => {
                let closed = shared.check().err();
                Err(closed.unwrap_or_else(|| SandboxError::gone("the sandbox is closed")))
            }
            reason = shared.gone() => Err(SandboxError::gone(reason)),
            reason = self.wait_until_gone() => Err(SandboxError::gone(reason)),
        }
    }

    async fn wait_until_gone(&self) -> String {
        loop {
            sleep(HEARTBEAT).await;
            if let Some(reason) = self.confirm_gone().await {
                self.shared.mark_gone(&reason);
                return reason;
            }
        }
    }

    /// Repeats health checks until one succeeds or the sandbox counts as gone; returns the reason if so.
    async fn confirm_gone(&self) -> Option<String> {
        let mut failing_since = None;
        loop {
            let error = self.envd.check_health().await.err()?;
            let since = failing_since.get_or_insert_with(Instant::now);
            if error.is_certain || since.elapsed() >= UNREACHABLE_TIMEOUT {
                return Some(error.reason);
            }
            sleep(RECHECK_PAUSE).await;
        }
    }
}

impl Shared {
    /// Spawns a task that is aborted when the sandbox is dropped.
    pub(crate) fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
    }

    /// Spawns a task that also ends when the sandbox is closed.
    pub(crate) fn spawn_until_closed(&self, task: impl Future<Output = ()> + Send + 'static) {
        let closed = self.closed.clone();
        self.spawn_task(async move {
            // The task has no result.
            let _ = closed.run_until_cancelled(task).await;
        });
    }

    fn touch(&self) {
        *self.last_use.lock() = Instant::now();
    }

    fn idle_for(&self) -> Duration {
        self.last_use.lock().elapsed()
    }

    /// Returns an error if the sandbox is closed or gone.
    pub(crate) fn check(&self) -> Result<(), SandboxError> {
        if self.closed.is_cancelled() {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        match &*self.gone.lock() {
            Some(reason) => Err(SandboxError::gone(format!("the sandbox is gone: {reason}"))),
            None => Ok(()),
        }
    }

    /// Resumes the sandbox if it is paused, and prevents pausing.
    pub(crate) async fn activate(self: &Arc<Self>) -> Result<ActiveSandbox, SandboxError> {
        loop {
            self.check()?;
            let phase = Arc::clone(&self.phase).read_owned().await;
            if *phase == Phase::Running {
                self.touch();
                return Ok(ActiveSandbox {
                    envd: self.envd.read().clone(),
                    shared: Arc::clone(self),
                    _phase: phase,
                });
            }
            drop(phase);
            let mut phase = self.phase.write().await;
            if *phase == Phase::Paused {
                self.resume().await?;
                *phase = Phase::Running;
            }
        }
    }

    async fn resume(&self) -> Result<(), SandboxError> {
        let connected = self
            .service
            .api
            .connect(&self.id, self.service.options.lifetime)
            .await;
        let record = connected.inspect_err(|error| {
            if error.kind() == SandboxErrorKind::Gone {
                self.mark_gone("it was paused and is no longer kept");
            }
        })?;
        // The token may have changed.
        let envd = self.service.connect_envd(&record)?;
        *self.envd.write() = envd;
        Ok(())
    }

    pub(crate) fn mark_gone(&self, reason: &str) {
        self.gone.lock().get_or_insert_with(|| reason.to_owned());
        self.gone_signal.cancel();
    }

    /// Waits until the sandbox is gone; returns the reason.
    pub(crate) async fn gone(&self) -> String {
        self.gone_signal.cancelled().await;
        self.gone.lock().clone().unwrap_or_default()
    }

    /// Returns the absolute path, as bytes.
    pub(crate) fn absolute_path(&self, path: &SandboxPath) -> Vec<u8> {
        let relative = path.relative_bytes();
        match (path.is_absolute(), relative.is_empty()) {
            (true, _) => [b"/", relative].concat(),
            (false, true) => self.home.clone().into_bytes(),
            (false, false) => [self.home.as_bytes(), b"/", relative].concat(),
        }
    }

    /// Extends the sandbox's lifetime periodically.
    pub(crate) async fn keep_alive(self: Arc<Self>) {
        let pause = self.service.options.lifetime / 3;
        let mut wait = pause;
        loop {
            sleep(wait).await;
            wait = pause;
            // Resuming sets a new lifetime.
            let Ok(phase) = self.phase.try_read() else {
                continue;
            };
            if *phase == Phase::Paused {
                continue;
            }
            let extending = self
                .service
                .api
                .extend(&self.id, self.service.options.lifetime);
            // A request that hangs must leave time for another one.
            match timeout(pause / 2, extending).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) if error.kind() == SandboxErrorKind::Gone => {
                    self.mark_gone("it was killed or its lifetime has ended");
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(sandbox = self.id, %error, "failed to extend a sandbox's lifetime");
                }
                Err(_) => {
                    tracing::warn!(
                        sandbox = self.id,
                        "extending a sandbox's lifetime timed out"
                    );
                }
            }
            wait = pause / 4;
        }
    }

    /// Pauses the sandbox whenever it has not been used for this time.
    pub(crate) async fn pause_when_idle(self: Arc<Self>, idle: Duration) {
        loop {
            sleep(
                idle.saturating_sub(self.idle_for())
                    .max(Duration::from_millis(10)),
            )
            .await;
            let Ok(mut phase) = self.phase.try_write() else {
                sleep(idle).await;
                continue;
            };
            if *phase == Phase::Paused || self.idle_for() < idle {
                drop(phase);
                if self.idle_for() >= idle {
                    sleep(idle).await;
                }
                continue;
            }
            match self.service.api.pause(&self.id).await {
                Ok(()) => *phase = Phase::Paused,
                Err(error) => {
                    tracing::warn!(sandbox = self.id, %error, "failed to pause an idle sandbox");
                    self.touch();
                }
            }
        }
    }
}
