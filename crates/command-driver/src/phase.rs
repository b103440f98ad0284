//! Phase of a command, published by its task.

use std::sync::Arc;

use cantle_core::sandbox::{Exit, SandboxError};
use tokio::sync::watch;

/// Progress of a command, published to everything that depends on it.
#[derive(Clone, Debug)]
pub(crate) enum Phase {
    Running,
    /// The command has ended; its output is drained.
    Ended,
    /// The result of [`Process::wait`](cantle_core::sandbox::Process::wait).
    Finished(Result<Exit, Arc<SandboxError>>),
}

impl Phase {
    pub(crate) fn is_running(&self) -> bool {
        matches!(self, Self::Running)
    }
}

/// Waits until the command has ended.
pub(crate) async fn ended(phase: &mut watch::Receiver<Phase>) {
    // A driver that was dropped has ended as well.
    let _ = phase.wait_for(|phase| !phase.is_running()).await;
}
