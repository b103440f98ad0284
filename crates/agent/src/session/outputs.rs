//! The output directory, and blocking access to files.

use std::io::{Error, ErrorKind};
use std::path::Path;

use cantle_core::ids::RunId;

use crate::error::{SessionError, SessionErrorKind};

/// Creates the output directory, and checks that it is writable.
pub(super) fn check_directory(directory: &Path) -> Result<(), SessionError> {
    let failed = |error: Error| {
        let message = format!(
            "the output directory `{}` can't be written: {error}",
            directory.display()
        );
        SessionError::new(SessionErrorKind::Output, message).with_source(error)
    };
    if directory.exists() && !directory.is_dir() {
        return Err(failed(ErrorKind::NotADirectory.into()));
    }
    std::fs::create_dir_all(directory).map_err(failed)?;
    let probe = directory.join(format!(".cantle-{}", RunId::new()));
    std::fs::write(&probe, b"").map_err(failed)?;
    std::fs::remove_file(&probe).map_err(failed)
}

/// Runs a blocking job on another thread.
pub(super) async fn blocking<T: Send + 'static>(
    job: impl FnOnce() -> Result<T, SessionError> + Send + 'static,
) -> Result<T, SessionError> {
    let result = tokio::task::spawn_blocking(job).await;
    result.unwrap_or_else(|error| {
        let message = format!("failed to read the files: {error}");
        Err(SessionError::new(SessionErrorKind::Input, message).with_source(error))
    })
}
