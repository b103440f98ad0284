//! A running sandbox: its current users, commands and watchers.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{Sandbox, SandboxError, SandboxErrorKind, SandboxPath};
use parking_lot::Mutex;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::SandboxUse;
use super::commands::Commands;
use super::contexts::Contexts;
use super::directories::uploads::Uploads;
use super::directories::watchers::Watchers;
use super::metadata::Metadata;
use crate::accounts::{Account, Accounts};
use crate::settings::Settings;
use crate::tasks::Tasks;
use cantle_core::principal::PrincipalId;

/// Time limit for requests to release a sandbox that ends. A kept sandbox can only be reattached after its
/// last reference is dropped.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// A running sandbox.
pub(crate) struct RunningSandbox {
    /// Cancelled when the sandbox ends: requests and streams are aborted.
    pub(crate) ended: CancellationToken,
    /// Cancelled when an operation reports that the sandbox is gone.
    pub(crate) gone: CancellationToken,
    /// Working directory of commands; base of relative paths.
    pub(crate) home: SandboxPath,
    pub(crate) commands: Commands,
    pub(crate) watchers: Watchers,
    pub(crate) uploads: Uploads,
    /// Metadata of uploaded files.
    pub(crate) metadata: Metadata,
    pub(crate) tasks: Tasks,
    pub(crate) account: Account,
    /// Maximum duration of an execution of code.
    pub(crate) max_execution: Duration,
    opened: Mutex<Option<OpenedSandbox>>,
    uses: TaskTracker,
}

/// The sandbox, and its code interpreter.
#[derive(Clone)]
struct OpenedSandbox {
    sandbox: Arc<dyn Sandbox>,
    contexts: Option<Arc<Contexts>>,
}

impl RunningSandbox {
    pub(crate) fn new(
        sandbox: Arc<dyn Sandbox>,
        settings: &Settings,
        accounts: &Arc<Accounts>,
        owner: &PrincipalId,
    ) -> Self {
        let limits = &settings.limits;
        let home = sandbox.info().working_directory.clone();
        let contexts = settings.interpreter.as_ref().map(|interpreter| {
            let session = interpreter.open_session(Arc::clone(&sandbox));
            Arc::new(Contexts::new(session, &home))
        });
        let account = Account::new(accounts, owner).with_limit(limits.memory_bytes_per_sandbox);
        Self {
            ended: CancellationToken::new(),
            gone: CancellationToken::new(),
            home,
            commands: Commands::new(limits.commands, limits.idle),
            watchers: Watchers::new(limits.watchers),
            uploads: Uploads::default(),
            metadata: Metadata::new(account.charge()),
            tasks: Tasks::default(),
            account,
            max_execution: limits.lifetime,
            opened: Mutex::new(Some(OpenedSandbox { sandbox, contexts })),
            uses: TaskTracker::new(),
        }
    }

    /// Returns the contexts of its code interpreter, if there is one.
    pub(crate) fn contexts(&self) -> Option<Arc<Contexts>> {
        self.opened.lock().as_ref()?.contexts.clone()
    }

    /// Spawns a task that ends with the sandbox.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        // Boxed: an `async` block keeps room for each move of a future.
        let (ended, task) = (self.ended.clone(), Box::pin(task));
        self.tasks.spawn(async move {
            ended.run_until_cancelled(task).await;
        });
    }

    /// Returns a reference to the sandbox.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] if it has ended.
    pub(crate) fn acquire(&self) -> Result<SandboxUse, SandboxError> {
        match &*self.opened.lock() {
            Some(OpenedSandbox { sandbox, .. }) if !self.ended.is_cancelled() => Ok(SandboxUse {
                account: self.account.clone(),
                sandbox: Arc::clone(sandbox),
                _token: self.uses.token(),
            }),
            _ => {
                let message = "the sandbox has ended";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
        }
    }

    /// Aborts all requests, waits for them to release the sandbox, and takes it.
    async fn drain(&self) -> Option<OpenedSandbox> {
        self.ended.cancel();
        self.uses.close();
        if timeout(RELEASE_TIMEOUT, self.uses.wait()).await.is_err() {
            tracing::debug!("a sandbox that has ended is still in use");
        }
        self.opened.lock().take()
    }

    /// Closes the sandbox.
    pub(crate) async fn close(&self) -> Result<(), SandboxError> {
        self.ended.cancel();
        let opened = self.opened.lock().clone();
        let Some(OpenedSandbox { sandbox, contexts }) = opened else {
            return Ok(());
        };
        drop(contexts);
        let closed = sandbox.close().await;
        drop(sandbox);
        drop(self.drain().await);
        closed
    }

    /// Drops the sandbox, which ends its processes; a kept one can be reattached.
    pub(crate) async fn detach(&self) {
        let Some(opened) = self.drain().await else {
            return;
        };
        // Dropping blocks until all processes have ended.
        if let Err(error) = spawn_blocking(move || drop(opened)).await {
            tracing::warn!(%error, "detaching from a sandbox was interrupted");
        }
    }
}
