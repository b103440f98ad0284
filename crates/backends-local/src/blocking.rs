//! The way off the runtime for calls that may block.

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};

/// Does `work` on one of the runtime's threads for blocking calls. Dropped, the work goes on.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(interrupted(error)),
    }
}

/// What is left to say where the runtime gave up on the work.
pub(crate) fn interrupted(error: tokio::task::JoinError) -> SandboxError {
    SandboxError::new(SandboxErrorKind::Io, "the work was interrupted").with_source(error)
}
