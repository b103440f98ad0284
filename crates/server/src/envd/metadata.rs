//! Metadata of uploaded files (`X-Metadata-NAME: value`), stored in memory.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cantle_core::sandbox::SandboxPath;
use http::HeaderMap;

use super::error::{EnvdError, Result};

const PREFIX: &str = "x-metadata-";
/// Maximum size of one file's names and values.
const MAX_BYTES: usize = 4096;
/// Maximum number of files with metadata in one sandbox.
const MAX_FILES: usize = 4096;

/// Metadata by path. It follows moves and removals through the API only.
#[derive(Default)]
pub(crate) struct Metadata(Mutex<HashMap<SandboxPath, BTreeMap<String, String>>>);

/// Reads the metadata headers of an upload.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(PREFIX) else {
            continue;
        };
        let printable = |byte: &u8| (b' '..=b'~').contains(byte);
        let value = value
            .to_str()
            .ok()
            .filter(|text| text.bytes().all(|byte| printable(&byte)));
        let Some(value) = value.filter(|_| !name.is_empty()) else {
            return Err(EnvdError::invalid(format!(
                "the metadata `{name}` is not printable ASCII"
            )));
        };
        bytes += name.len() + value.len();
        values.insert(name.to_owned(), value.to_owned());
    }
    if bytes > MAX_BYTES {
        return Err(EnvdError::invalid(format!(
            "metadata may have at most {MAX_BYTES} bytes per file"
        )));
    }
    Ok(values)
}

impl Metadata {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxPath, BTreeMap<String, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn get(&self, path: &SandboxPath) -> BTreeMap<String, String> {
        self.lock().get(path).cloned().unwrap_or_default()
    }

    /// Replaces the metadata of a file.
    pub(crate) fn set(&self, path: &SandboxPath, values: BTreeMap<String, String>) -> Result<()> {
        let mut files = self.lock();
        if values.is_empty() {
            files.remove(path);
            return Ok(());
        }
        if files.len() >= MAX_FILES && !files.contains_key(path) {
            let message = format!("at most {MAX_FILES} files of a sandbox may have metadata");
            return Err(EnvdError::invalid(message));
        }
        files.insert(path.clone(), values);
        Ok(())
    }

    pub(crate) fn remove(&self, path: &SandboxPath) {
        self.lock()
            .retain(|other, _| other.strip_prefix(path).is_none());
    }

    pub(crate) fn rename(&self, from: &SandboxPath, to: &SandboxPath) {
        let mut files = self.lock();
        let moved: Vec<(SandboxPath, SandboxPath)> = files
            .keys()
            .filter_map(|path| {
                let below = path.strip_prefix(from)?;
                Some((path.clone(), to.join(below.relative_bytes()).ok()?))
            })
            .collect();
        files.retain(|path, _| path.strip_prefix(to).is_none());
        for (old, new) in moved {
            if let Some(values) = files.remove(&old) {
                files.insert(new, values);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_follows_its_file() {
        let path = |text: &str| SandboxPath::new(text).unwrap();
        let values = BTreeMap::from([("author".to_owned(), "me".to_owned())]);
        let metadata = Metadata::default();
        metadata.set(&path("/a/b"), values.clone()).unwrap();
        metadata.rename(&path("/a"), &path("/c"));
        assert_eq!(metadata.get(&path("/c/b")), values);
        assert_eq!(metadata.get(&path("/a/b")), BTreeMap::new());
        metadata.remove(&path("/c"));
        assert_eq!(metadata.get(&path("/c/b")), BTreeMap::new());
    }
}
