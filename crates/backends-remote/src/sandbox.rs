//! One sandbox at the service: its life, and who may use it when.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock as SyncRwLock};
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::sandbox::{
    ByteRange, ByteStream, FileInfo, Process, Sandbox, SandboxError, SandboxErrorKind,
    SandboxHandle, SandboxInfo, SandboxPath, SpawnRequest, Survival, WriteOptions,
};
use cantle_core::secret::SecretText;
use serde::{Deserialize, Serialize};
use tokio::select;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use crate::backend::{NAME, Service};
use crate::envd::{Absent, Envd, Fault};
use crate::policy::OwnLimits;
use crate::{command, files};

/// Where commands and we put what is nobody's result.
pub(crate) const SCRATCH: &str = "/tmp";

/// How often a sandbox is asked whether it lives while something long is under way.
const HEARTBEAT: Duration = Duration::from_secs(3);
/// After how many missing answers it is gone: one lost packet is no lost sandbox.
const MISSED: u32 = 2;
/// Between two of them.
const AGAIN: Duration = Duration::from_secs(1);

/// What everything in a sandbox shares.
pub(crate) struct Shared {
    pub(crate) info: SandboxInfo,
    /// The working directory.
    pub(crate) home: String,
    pub(crate) limits: OwnLimits,
    /// The policy's variables.
    pub(crate) environment: BTreeMap<String, SecretText>,
    service: Arc<Service>,
    id: String,
    envd: SyncRwLock<Envd>,
    phase: Arc<RwLock<Phase>>,
    last_use: Mutex<Instant>,
    /// Why it is gone, once it is.
    gone: Mutex<Option<String>>,
    gone_signal: CancellationToken,
    /// Cancelled when it is closed.
    pub(crate) closed: CancellationToken,
    kept: AtomicBool,
    tasks: Mutex<JoinSet<()>>,
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
enum Phase {
    Running,
    Paused,
}

/// A sandbox that stays awake as long as this is held, and a way into it.
pub(crate) struct Awake {
    pub(crate) envd: Envd,
    shared: Arc<Shared>,
    _phase: OwnedRwLockReadGuard<Phase>,
}

impl Drop for Awake {
    fn drop(&mut self) {
        self.shared.touch();
    }
}

/// What a sandbox is made of.
pub(crate) struct Parts {
    pub(crate) info: SandboxInfo,
    pub(crate) home: String,
    pub(crate) limits: OwnLimits,
    pub(crate) environment: BTreeMap<String, SecretText>,
    pub(crate) service: Arc<Service>,
    pub(crate) id: String,
    pub(crate) envd: Envd,
    /// Whether it was kept before.
    pub(crate) is_kept: bool,
}

impl Shared {
    fn new(parts: Parts) -> Self {
        Self {
            info: parts.info,
            home: parts.home,
            limits: parts.limits,
            environment: parts.environment,
            service: parts.service,
            id: parts.id,
            envd: SyncRwLock::new(parts.envd),
            phase: Arc::new(RwLock::new(Phase::Running)),
            last_use: Mutex::new(Instant::now()),
            gone: Mutex::new(None),
            gone_signal: CancellationToken::new(),
            closed: CancellationToken::new(),
            kept: AtomicBool::new(parts.is_kept),
            tasks: Mutex::default(),
        }
    }

    fn tasks(&self) -> MutexGuard<'_, JoinSet<()>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something until it is done or the sandbox is closed for good.
    pub(crate) fn attend(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let mut tasks = self.tasks();
        while tasks.try_join_next().is_some() {}
        tasks.spawn_on(task, &runtime);
    }

    fn touch(&self) {
        let mut last_use = self.last_use.lock().unwrap_or_else(PoisonError::into_inner);
        *last_use = Instant::now();
    }

    fn idle_for(&self) -> Duration {
        let last_use = self.last_use.lock().unwrap_or_else(PoisonError::into_inner);
        last_use.elapsed()
    }

    fn current(&self) -> Envd {
        let envd = self.envd.read().unwrap_or_else(PoisonError::into_inner);
        envd.clone()
    }

    /// Why it is gone, or that it is closed.
    fn check(&self) -> Result<(), SandboxError> {
        if self.closed.is_cancelled() {
            let message = "the sandbox is closed";
            return Err(SandboxError::new(SandboxErrorKind::Closed, message));
        }
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        match &*gone {
            Some(why) => Err(SandboxError::gone(format!("the sandbox is gone: {why}"))),
            None => Ok(()),
        }
    }

    /// Wakes it where it is paused, and keeps it awake.
    pub(crate) async fn awake(self: &Arc<Self>) -> Result<Awake, SandboxError> {
        loop {
            self.check()?;
            let phase = Arc::clone(&self.phase).read_owned().await;
            if *phase == Phase::Running {
                self.touch();
                return Ok(Awake {
                    envd: self.current(),
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
            .connect(&self.id, self.service.lifetime)
            .await;
        let made = connected.inspect_err(|error| {
            if error.kind() == SandboxErrorKind::Gone {
                self.mark_gone("it was paused and is no longer kept");
            }
        })?;
        // It may have another token now.
        let envd = self.service.way_into(&made)?;
        *self.envd.write().unwrap_or_else(PoisonError::into_inner) = envd;
        Ok(())
    }

    pub(crate) fn mark_gone(&self, why: &str) {
        let mut gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.get_or_insert_with(|| why.to_owned());
        self.gone_signal.cancel();
    }

    /// Waits until it is gone, and says why.
    pub(crate) async fn gone(&self) -> String {
        self.gone_signal.cancelled().await;
        let gone = self.gone.lock().unwrap_or_else(PoisonError::into_inner);
        gone.clone().unwrap_or_default()
    }

    /// Finds out whether a call failed because the sandbox is gone; says why where it is.
    pub(crate) async fn look_after(&self, envd: &Envd, fault: &Fault) -> Option<String> {
        let why = match fault {
            Fault::Gone(why) => why.clone(),
            fault if fault.is_unanswered() => {
                let mut missed = 0;
                loop {
                    let absent = envd.check_health().await.err()?;
                    if is_gone(&absent, &mut missed) {
                        break absent.why;
                    }
                    sleep(AGAIN).await;
                }
            }
            _ => return None,
        };
        self.mark_gone(&why);
        Some(why)
    }

    /// The error for a call that failed.
    pub(crate) async fn explain(&self, envd: &Envd, fault: Fault, doing: &str) -> SandboxError {
        // What was cut off by closing is no failure of its own.
        if let Err(closed) = self.check() {
            return closed;
        }
        match self.look_after(envd, &fault).await {
            Some(why) => match self.check() {
                Err(error) => error,
                Ok(()) => SandboxError::gone(why),
            },
            None => fault.into_error(doing),
        }
    }

    /// Waits for something that may take long, as long as the sandbox lives.
    pub(crate) async fn while_alive<T>(
        &self,
        envd: &Envd,
        work: impl Future<Output = T>,
    ) -> Result<T, SandboxError> {
        select! {
            biased;
            done = work => Ok(done),
            () = self.closed.cancelled() => Err(match self.check() {
                Err(closed) => closed,
                Ok(()) => SandboxError::gone("the sandbox is closed"),
            }),
            why = self.gone() => Err(SandboxError::gone(why)),
            why = self.die(envd) => Err(SandboxError::gone(why)),
        }
    }

    async fn die(&self, envd: &Envd) -> String {
        let mut missed = 0;
        loop {
            sleep(HEARTBEAT).await;
            match envd.check_health().await {
                Ok(()) => missed = 0,
                Err(absent) => {
                    if is_gone(&absent, &mut missed) {
                        self.mark_gone(&absent.why);
                        return absent.why;
                    }
                }
            }
        }
    }

    /// Where a path is, absolute.
    pub(crate) fn place(&self, path: &SandboxPath) -> Vec<u8> {
        let relative = path.relative_bytes();
        match (path.is_absolute(), relative.is_empty()) {
            (true, _) => [b"/", relative].concat(),
            (false, true) => self.home.clone().into_bytes(),
            (false, false) => [self.home.as_bytes(), b"/", relative].concat(),
        }
    }

    /// Prolongs the sandbox's life before its end, as long as somebody has it.
    async fn keep_alive(self: Arc<Self>) {
        let pause = self.service.lifetime / 3;
        let mut wait = pause;
        loop {
            sleep(wait).await;
            wait = pause;
            // Whoever wakes it gives it time.
            let Ok(phase) = self.phase.try_read() else {
                continue;
            };
            if *phase == Phase::Paused {
                continue;
            }
            let prolonging = self.service.api.prolong(&self.id, self.service.lifetime);
            // One that hangs must leave time for another.
            match timeout(pause / 2, prolonging).await {
                Ok(Ok(())) => continue,
                Ok(Err(error)) if error.kind() == SandboxErrorKind::Gone => {
                    self.mark_gone("it was killed or has reached the end of its life");
                    return;
                }
                Ok(Err(error)) => {
                    tracing::warn!(sandbox = self.id, %error, "a sandbox's life was not prolonged");
                }
                Err(_) => {
                    tracing::warn!(sandbox = self.id, "no answer on a sandbox's longer life");
                }
            }
            wait = pause / 4;
        }
    }

    /// Pauses the sandbox whenever nobody has used it for so long.
    async fn pause_when_idle(self: Arc<Self>, idle: Duration) {
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
                    tracing::warn!(sandbox = self.id, %error, "an idle sandbox was not paused");
                    self.touch();
                }
            }
        }
    }
}

/// What a handle says of a sandbox that was kept.
#[derive(Debug, Serialize, Deserialize)]
struct Token {
    sandbox: String,
    directory: String,
}

/// The sandbox that a handle names, and its working directory.
pub(crate) fn kept_as(handle: &SandboxHandle) -> Result<(String, String), SandboxError> {
    let token: Token = serde_json::from_str(&handle.token).map_err(|error| {
        let message = "the handle names no sandbox that the remote backend has kept";
        SandboxError::gone(message).with_source(error)
    })?;
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    if token.sandbox.is_empty() || !token.sandbox.bytes().all(plain) {
        return Err(SandboxError::gone("the handle names no sandbox"));
    }
    Ok((token.sandbox, token.directory))
}

/// A sandbox of the remote backend.
#[derive(Debug)]
pub(crate) struct RemoteSandbox {
    shared: Arc<Shared>,
}

impl RemoteSandbox {
    pub(crate) fn new(parts: Parts) -> Self {
        let idle = parts.service.pause_when_idle;
        let shared = Arc::new(Shared::new(parts));
        attend_until_closed(&shared, Arc::clone(&shared).keep_alive());
        if let Some(idle) = idle {
            attend_until_closed(&shared, Arc::clone(&shared).pause_when_idle(idle));
        }
        Self { shared }
    }
}

/// Whether another missing answer says that a sandbox is gone.
fn is_gone(absent: &Absent, missed: &mut u32) -> bool {
    *missed += 1;
    absent.is_certain || *missed >= MISSED
}

fn attend_until_closed(shared: &Shared, task: impl Future<Output = ()> + Send + 'static) {
    let closed = shared.closed.clone();
    shared.attend(async move {
        select! {
            () = closed.cancelled() => {}
            () = task => {}
        }
    });
}

#[async_trait]
impl Sandbox for RemoteSandbox {
    fn info(&self) -> &SandboxInfo {
        &self.shared.info
    }

    async fn spawn(&self, request: SpawnRequest) -> Result<Box<dyn Process>, SandboxError> {
        Ok(Box::new(command::spawn(&self.shared, request).await?))
    }

    async fn read(&self, path: &SandboxPath, range: ByteRange) -> Result<ByteStream, SandboxError> {
        files::read(&self.shared, path, range).await
    }

    async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        files::write(&self.shared, path, options, data).await
    }

    async fn stat(&self, path: &SandboxPath) -> Result<FileInfo, SandboxError> {
        files::stat(&self.shared, path).await
    }

    async fn list(&self, path: &SandboxPath) -> Result<Vec<FileInfo>, SandboxError> {
        files::list(&self.shared, path).await
    }

    async fn mkdir(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        files::mkdir(&self.shared, path).await
    }

    async fn remove(&self, path: &SandboxPath) -> Result<(), SandboxError> {
        files::remove(&self.shared, path).await
    }

    async fn rename(&self, from: &SandboxPath, to: &SandboxPath) -> Result<(), SandboxError> {
        files::rename(&self.shared, from, to).await
    }

    async fn persist(&self) -> Result<SandboxHandle, SandboxError> {
        self.shared.check()?;
        if self.shared.info.survival == Survival::Nothing {
            let message = "this sandbox can't be kept: it was not opened as a durable one";
            return Err(SandboxError::unsupported(message));
        }
        let token = Token {
            sandbox: self.shared.id.clone(),
            directory: self.shared.home.clone(),
        };
        let token = serde_json::to_string(&token).map_err(|error| {
            let message = "the sandbox's name can't be written down";
            SandboxError::new(SandboxErrorKind::Io, message).with_source(error)
        })?;
        self.shared.kept.store(true, Ordering::Relaxed);
        Ok(SandboxHandle::new(NAME, token))
    }

    async fn close(&self) -> Result<(), SandboxError> {
        if self.shared.closed.is_cancelled() {
            return Ok(());
        }
        self.shared.closed.cancel();
        // Goes on where nobody waits for it any more.
        self.shared.service.end(&self.shared.id).await
    }
}

impl Drop for RemoteSandbox {
    fn drop(&mut self) {
        let was_closed = self.shared.closed.is_cancelled();
        self.shared.closed.cancel();
        // Commands are told; what else is under way is of no use to anybody.
        let mut tasks = std::mem::take(&mut *self.shared.tasks());
        tasks.abort_all();
        if !was_closed && !self.shared.kept.load(Ordering::Relaxed) {
            self.shared.service.end_some_time(&self.shared.id);
        }
    }
}
