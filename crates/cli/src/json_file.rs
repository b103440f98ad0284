//! JSON files in the state directory, which are written atomically.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::result_file::write_atomically;

/// Returns the content of a file; `None` if there is no such file. Blocks.
pub(crate) fn read<T: DeserializeOwned>(path: &Path) -> anyhow::Result<Option<T>> {
    let failed = || format!("failed to read {}", path.display());
    match fs::read(path) {
        Ok(json) => serde_json::from_slice(&json).map(Some).with_context(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(failed),
    }
}

/// Writes a file. Blocks.
pub(crate) fn write(path: &Path, content: &impl Serialize) -> anyhow::Result<()> {
    write_atomically(path, &serde_json::to_vec(content)?)
}
