//! Handles of kept sandboxes.

use std::path::PathBuf;

use cantle_core::sandbox::{SandboxError, SandboxHandle};
use serde::{Deserialize, Serialize};

/// The token of a [`SandboxHandle`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HandleToken {
    pub(crate) directory: PathBuf,
}

/// Returns the directory that a handle names.
pub(crate) fn kept_directory(handle: &SandboxHandle) -> Result<PathBuf, SandboxError> {
    let token: HandleToken = serde_json::from_str(&handle.token).map_err(|error| {
        let message = "the handle names no sandbox that the local backend has kept";
        SandboxError::gone(message).with_source(error)
    })?;
    Ok(token.directory)
}
