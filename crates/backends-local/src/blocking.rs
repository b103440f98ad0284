//! Blocking calls off the runtime.

use cantle_core::sandbox::{SandboxError, SandboxErrorKind};

/// Runs `work` on a blocking thread. If the future is dropped, the work continues.
pub(crate) async fn run<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<T, SandboxError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(interrupted(error)),
    }
}

/// Returns the error for work that the runtime has aborted.
pub(crate) fn interrupted(error: tokio::task::JoinError) -> SandboxError {
    SandboxError::new(SandboxErrorKind::Io, "the work was interrupted").with_source(error)
}
