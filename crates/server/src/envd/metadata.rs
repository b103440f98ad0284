//! What uploads said of their files (`X-Metadata-NAME: value`), kept beside the files.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cantle_core::sandbox::SandboxPath;
use http::HeaderMap;

use super::fault::Fault;

const PREFIX: &str = "x-metadata-";
/// Bytes of names and values of one file.
const MOST_BYTES: usize = 4096;
/// Files with metadata in one sandbox.
const MOST_FILES: usize = 4096;

/// Metadata of files, by path. It follows what is moved and removed through the API, and nothing else.
#[derive(Default)]
pub(crate) struct Metadata(Mutex<HashMap<SandboxPath, BTreeMap<String, String>>>);

/// What the headers of an upload say.
pub(crate) fn of_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>, Fault> {
    let mut said = BTreeMap::new();
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
            return Err(Fault::invalid(format!(
                "the metadata `{name}` is no printable ASCII"
            )));
        };
        bytes += name.len() + value.len();
        said.insert(name.to_owned(), value.to_owned());
    }
    if bytes > MOST_BYTES {
        return Err(Fault::invalid(format!(
            "metadata may have {MOST_BYTES} bytes in all"
        )));
    }
    Ok(said)
}

impl Metadata {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxPath, BTreeMap<String, String>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn of(&self, path: &SandboxPath) -> BTreeMap<String, String> {
        self.lock().get(path).cloned().unwrap_or_default()
    }

    /// Replaces what was said of a file.
    pub(crate) fn set(
        &self,
        path: &SandboxPath,
        said: BTreeMap<String, String>,
    ) -> Result<(), Fault> {
        let mut files = self.lock();
        if said.is_empty() {
            files.remove(path);
            return Ok(());
        }
        if files.len() >= MOST_FILES && !files.contains_key(path) {
            let message = format!("{MOST_FILES} files of a sandbox may have metadata");
            return Err(Fault::invalid(message));
        }
        files.insert(path.clone(), said);
        Ok(())
    }

    pub(crate) fn remove(&self, path: &SandboxPath) {
        self.lock()
            .retain(|other, _| other.strip_root(path).is_none());
    }

    pub(crate) fn rename(&self, from: &SandboxPath, to: &SandboxPath) {
        let mut files = self.lock();
        let moved: Vec<(SandboxPath, SandboxPath)> = files
            .keys()
            .filter_map(|path| {
                let below = path.strip_root(from)?;
                Some((path.clone(), to.join(below.relative_bytes()).ok()?))
            })
            .collect();
        files.retain(|path, _| path.strip_root(to).is_none());
        for (old, new) in moved {
            if let Some(said) = files.remove(&old) {
                files.insert(new, said);
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
        let said = BTreeMap::from([("author".to_owned(), "me".to_owned())]);
        let metadata = Metadata::default();
        metadata.set(&path("/a/b"), said.clone()).unwrap();
        metadata.rename(&path("/a"), &path("/c"));
        assert_eq!(metadata.of(&path("/c/b")), said);
        assert_eq!(metadata.of(&path("/a/b")), BTreeMap::new());
        metadata.remove(&path("/c"));
        assert_eq!(metadata.of(&path("/c/b")), BTreeMap::new());
    }
}
