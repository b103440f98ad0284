//! A sandbox that runs: who uses it now, its commands and what is watched in it.

use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cantle_core::sandbox::{Sandbox, SandboxError, SandboxErrorKind, SandboxPath};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::tasks::Tasks;
use crate::envd::{Commands, Metadata, Watchers};
use crate::settings::ServerLimits;

/// How long those who use it may take to let go of it: what is not let go of can't be found again.
const LET_GO_DEADLINE: Duration = Duration::from_secs(5);

/// A running sandbox.
pub(crate) struct Live {
    /// Cancelled when it is over: requests end, and streams break off.
    pub(crate) cut: CancellationToken,
    /// Cancelled when somebody noticed that it is gone.
    pub(crate) gone: CancellationToken,
    /// Where commands start, and paths too.
    pub(crate) home: SandboxPath,
    pub(crate) commands: Commands,
    pub(crate) watchers: Watchers,
    /// What uploads said of their files.
    pub(crate) metadata: Metadata,
    /// Tasks that end with it.
    pub(crate) tasks: Tasks,
    sandbox: Mutex<Option<Arc<dyn Sandbox>>>,
    visits: TaskTracker,
}

/// The use of a sandbox, which waits for its end before it is let go.
pub(crate) struct Visit {
    sandbox: Arc<dyn Sandbox>,
    _token: TaskTrackerToken,
}

impl Deref for Visit {
    type Target = dyn Sandbox;

    fn deref(&self) -> &Self::Target {
        &*self.sandbox
    }
}

impl Live {
    pub(crate) fn new(sandbox: Arc<dyn Sandbox>, limits: &ServerLimits) -> Self {
        Self {
            cut: CancellationToken::new(),
            gone: CancellationToken::new(),
            home: sandbox.info().working_directory.clone(),
            commands: Commands::new(limits.commands, limits.idle),
            watchers: Watchers::new(limits.watchers),
            metadata: Metadata::default(),
            tasks: Tasks::default(),
            sandbox: Mutex::new(Some(sandbox)),
            visits: TaskTracker::new(),
        }
    }

    /// Its sandbox, to be used now.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Closed`] where it is over.
    pub(crate) fn visit(&self) -> Result<Visit, SandboxError> {
        let sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
        match &*sandbox {
            Some(sandbox) if !self.cut.is_cancelled() => Ok(Visit {
                sandbox: Arc::clone(sandbox),
                _token: self.visits.token(),
            }),
            _ => {
                let message = "the sandbox is over";
                Err(SandboxError::new(SandboxErrorKind::Closed, message))
            }
        }
    }

    /// Cuts off everybody who uses it, and waits until they have let go.
    async fn cut_off(&self) -> Option<Arc<dyn Sandbox>> {
        self.cut.cancel();
        self.visits.close();
        if timeout(LET_GO_DEADLINE, self.visits.wait()).await.is_err() {
            tracing::debug!("somebody still uses a sandbox that is over");
        }
        let mut sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
        sandbox.take()
    }

    /// Kills what runs and removes what was made.
    pub(crate) async fn close(&self) -> Result<(), SandboxError> {
        self.cut.cancel();
        let sandbox = {
            let sandbox = self.sandbox.lock().unwrap_or_else(PoisonError::into_inner);
            sandbox.as_ref().map(Arc::clone)
        };
        match sandbox {
            Some(sandbox) => {
                let closed = sandbox.close().await;
                drop(sandbox);
                drop(self.cut_off().await);
                closed
            }
            None => Ok(()),
        }
    }

    /// Kills what runs, and leaves what the backend keeps.
    pub(crate) async fn leave(&self) {
        let Some(sandbox) = self.cut_off().await else {
            return;
        };
        // Dropping it blocks until everything in it has ended.
        if let Err(error) = spawn_blocking(move || drop(sandbox)).await {
            tracing::warn!(%error, "leaving a sandbox was interrupted");
        }
    }
}
