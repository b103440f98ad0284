//! A running sandbox: its current users, commands and watchers.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_core::sandbox::{Sandbox, SandboxError, SandboxErrorKind, SandboxPath};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::{SandboxAccount, SandboxUse};
use super::commands::Commands;
use super::directories::watchers::Watchers;
use super::metadata::Metadata;
use crate::accounts::Accounts;
use crate::settings::ServerLimits;
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
    /// Metadata of uploaded files.
    pub(crate) metadata: Metadata,
    /// Tasks that end with the sandbox.
    pub(crate) tasks: Tasks,
    pub(crate) account: SandboxAccount,
    sandbox: Mutex<Option<Arc<dyn Sandbox>>>,
    uses: TaskTracker,
}

impl RunningSandbox {
    pub(crate) fn new(
        sandbox: Arc<dyn Sandbox>,
        limits: &ServerLimits,
        accounts: &Accounts,
        owner: &PrincipalId,
    ) -> Self {
        let account = SandboxAccount::new(accounts, owner, limits.memory_bytes_per_sandbox);
        Self {
            ended: CancellationToken::new(),
            gone: CancellationToken::new(),
            home: sandbox.info().working_directory.clone(),
            commands: Commands::new(limits.commands, limits.idle),
            watchers: Watchers::new(limits.watchers),
            metadata: Metadata::new(account.charge()),
            tasks: Tasks::default(),
            account,
            sandbox: Mutex::new(Some(sandbox)),
            uses: TaskTracker::new(),
        }
    }

    fn sandbox(&self) -> MutexGuard<'_, Option<Arc<dyn Sandbox>>> {
        self.sandbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a reference to the sandbox.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] if it has ended.
    pub(crate) fn acquire(&self) -> Result<SandboxUse, SandboxError> {
        match &*self.sandbox() {
            Some(sandbox) if !self.ended.is_cancelled() => {
                let account = self.account.clone();
                Ok(SandboxUse::new(
                    Arc::clone(sandbox),
                    account,
                    self.uses.token(),
                ))
            }
            _ => {
                let message = "the sandbox has ended";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
        }
    }

    /// Aborts all requests, waits for them to release the sandbox, and takes it.
    async fn drain(&self) -> Option<Arc<dyn Sandbox>> {
        self.ended.cancel();
        self.uses.close();
        if timeout(RELEASE_TIMEOUT, self.uses.wait()).await.is_err() {
            tracing::debug!("a sandbox that has ended is still in use");
        }
        self.sandbox().take()
    }

    /// Closes the sandbox.
    pub(crate) async fn close(&self) -> Result<(), SandboxError> {
        self.ended.cancel();
        let sandbox = self.sandbox().clone();
        let Some(sandbox) = sandbox else {
            return Ok(());
        };
        let closed = sandbox.close().await;
        drop(sandbox);
        drop(self.drain().await);
        closed
    }

    /// Drops the sandbox, which ends its processes; a kept one can be reattached.
    pub(crate) async fn detach(&self) {
        let Some(sandbox) = self.drain().await else {
            return;
        };
        // Dropping blocks until all processes have ended.
        if let Err(error) = spawn_blocking(move || drop(sandbox)).await {
            tracing::warn!(%error, "detaching from a sandbox was interrupted");
        }
    }
}
