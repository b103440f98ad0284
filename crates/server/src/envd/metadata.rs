//! Metadata of files: of uploaded ones (`X-Metadata-NAME: value`), stored in memory, and what commands have stored with
//! a file as extended attributes.

use std::collections::{BTreeMap, HashMap};

use cantle_core::sandbox::{MAX_ATTRIBUTES_BYTES, SandboxErrorKind, SandboxPath};
use http::HeaderMap;
use parking_lot::Mutex;

use super::SandboxUse;
use super::error::{EnvdError, Result};
use crate::accounts::{MemoryCharge, ResourceExhausted};

const PREFIX: &str = "x-metadata-";
/// Of the names of extended attributes.
const ATTRIBUTE_PREFIX: &str = "user.e2b.";
/// Maximum size of one file's names and values.
const MAX_BYTES: usize = 4096;
/// Maximum number of files with metadata in one sandbox.
const MAX_FILES: usize = 4096;

/// Metadata by path. It follows moves and removals through the API only.
pub(crate) struct Metadata(Mutex<MetadataTable>);

struct MetadataTable {
    by_path: HashMap<SandboxPath, BTreeMap<String, String>>,
    charge: MemoryCharge,
}

impl MetadataTable {
    /// Replaces the metadata of a file.
    fn set(
        &mut self,
        path: &SandboxPath,
        values: BTreeMap<String, String>,
    ) -> Result<(), ResourceExhausted> {
        if !values.is_empty() {
            self.charge.grow(size_bytes(path, &values))?;
        }
        let old = if values.is_empty() {
            self.by_path.remove(path)
        } else {
            self.by_path.insert(path.clone(), values)
        };
        self.charge
            .shrink(old.map_or(0, |old| size_bytes(path, &old)));
        Ok(())
    }

    fn remove_all(&mut self, below: &SandboxPath) {
        let charge = &mut self.charge;
        self.by_path.retain(|path, values| {
            let stays = path.strip_prefix(below).is_none();
            if !stays {
                charge.shrink(size_bytes(path, values));
            }
            stays
        });
    }
}

/// Returns the memory of an entry, with the overhead of its tables.
pub(crate) fn size_bytes(path: &SandboxPath, values: &BTreeMap<String, String>) -> usize {
    let texts = values
        .iter()
        .map(|(name, value)| 64 + name.len() + value.len());
    128 + path.relative_bytes().len() + texts.sum::<usize>()
}

/// Reads the metadata headers of an upload.
pub(crate) fn from_headers(headers: &HeaderMap) -> Result<BTreeMap<String, String>> {
    let mut values = BTreeMap::new();
    let mut bytes = 0;
    for (name, value) in headers {
        let Some(name) = name.as_str().strip_prefix(PREFIX) else {
            continue;
        };
        let value = value.to_str().ok().filter(|text| !text.contains('\t'));
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

/// Reads the metadata that commands have stored with each of the files, if the backend can. `charge` grows by its size.
pub(crate) async fn of_commands(
    sandbox: &SandboxUse,
    paths: &[SandboxPath],
    charge: &mut MemoryCharge,
) -> Result<Vec<BTreeMap<String, String>>> {
    let max_bytes = paths.len() * MAX_ATTRIBUTES_BYTES;
    charge.grow(max_bytes)?;
    let stored = match sandbox.attributes(paths, ATTRIBUTE_PREFIX).await {
        Ok(stored) => stored,
        Err(error) if error.kind() == SandboxErrorKind::Unsupported => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    let values = stored.iter().flatten();
    let bytes = values.map(|(name, value)| name.len() + value.len()).sum();
    charge.shrink(max_bytes.saturating_sub(bytes));
    Ok(stored)
}

impl Metadata {
    pub(crate) fn new(charge: MemoryCharge) -> Self {
        Self(Mutex::new(MetadataTable {
            by_path: HashMap::new(),
            charge,
        }))
    }

    pub(crate) fn get(&self, path: &SandboxPath) -> BTreeMap<String, String> {
        self.0.lock().by_path.get(path).cloned().unwrap_or_default()
    }

    /// Replaces the metadata of a file.
    pub(crate) fn set(&self, path: &SandboxPath, values: BTreeMap<String, String>) -> Result<()> {
        let mut table = self.0.lock();
        let is_new = !values.is_empty() && !table.by_path.contains_key(path);
        if is_new && table.by_path.len() >= MAX_FILES {
            let message = format!("at most {MAX_FILES} files of a sandbox may have metadata");
            return Err(EnvdError::invalid(message));
        }
        Ok(table.set(path, values)?)
    }

    pub(crate) fn remove(&self, path: &SandboxPath) {
        self.0.lock().remove_all(path);
    }

    pub(crate) fn rename(&self, from: &SandboxPath, to: &SandboxPath) {
        let mut table = self.0.lock();
        let moved: Vec<(SandboxPath, BTreeMap<String, String>)> = table
            .by_path
            .iter()
            .filter_map(|(path, values)| {
                let below = path.strip_prefix(from)?;
                Some((to.join(below.relative_bytes()).ok()?, values.clone()))
            })
            .collect();
        table.remove_all(from);
        table.remove_all(to);
        for (new, values) in moved {
            // Only a longer path can fail; then the file has no metadata.
            let _ = table.set(&new, values);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::accounts::{Account, Accounts};
    use crate::keys::Keys;
    use crate::settings::ServerLimits;

    #[test]
    fn metadata_follows_its_file() {
        let path = |text: &str| SandboxPath::new(text).unwrap();
        let values = BTreeMap::from([("author".to_owned(), "me".to_owned())]);
        let keys = Keys::default();
        let accounts = Arc::new(Accounts::new(&ServerLimits::default(), &keys));
        let account = Account::new(&accounts, &keys.owner("any").unwrap());
        let metadata = Metadata::new(account.charge());
        metadata.set(&path("/a/b"), values.clone()).unwrap();
        metadata.rename(&path("/a"), &path("/c"));
        assert_eq!(metadata.get(&path("/c/b")), values);
        assert_eq!(metadata.get(&path("/a/b")), BTreeMap::new());
        metadata.remove(&path("/c"));
        assert_eq!(metadata.get(&path("/c/b")), BTreeMap::new());
        assert_eq!(accounts.memory.used(), 0);
    }
}
