//! Records of paused sandboxes, one file each, in a locked directory.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::sandbox::SandboxHandle;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::SandboxIdentity;
use crate::error::{ServeError, ServeErrorKind};

const LOCK: &str = "lock";
const RECORDS: &str = "sandboxes";
const EXTENSION: &str = "json";

/// The record of a paused sandbox.
#[derive(Serialize, Deserialize)]
pub(crate) struct PausedRecord {
    #[serde(rename = "facts")]
    pub(crate) identity: SandboxIdentity,
    pub(crate) handle: SandboxHandle,
}

/// The directory of records.
pub(crate) struct Store {
    records: Arc<Path>,
    /// The records that could not be read, with the reasons.
    pub(crate) unreadable: Vec<(PathBuf, io::Error)>,
    /// Locked while the server runs.
    lock: File,
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing is not enough: a process forked a moment ago may still have the descriptor open.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Store {
    /// Opens the directory and reads its records. Unreadable ones are not modified.
    pub(crate) async fn open(directory: PathBuf) -> Result<(Self, Vec<PausedRecord>), ServeError> {
        let opened = spawn_blocking(move || open(&directory)).await;
        opened
            .unwrap_or_else(|error| Err(ServeError::new(ServeErrorKind::State, error.to_string())))
    }

    /// Writes a record atomically.
    pub(crate) async fn save(&self, record: &PausedRecord) -> io::Result<()> {
        let (directory, id) = (Arc::clone(&self.records), record.identity.id.clone());
        let text = serde_json::to_vec(record)?;
        let saved = spawn_blocking(move || {
            let mut file = tempfile::Builder::new()
                .permissions(Permissions::from_mode(0o600))
                .tempfile_in(&directory)?;
            file.write_all(&text)?;
            file.as_file().sync_all()?;
            file.persist(path(&directory, &id))?;
            File::open(&directory)?.sync_all()
        });
        saved.await?
    }

    /// Removes a record, if it exists.
    pub(crate) async fn remove(&self, id: &str) {
        let path = path(&self.records, id);
        let removed = spawn_blocking(move || fs::remove_file(path)).await;
        match removed {
            Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(sandbox = id, %error, "failed to remove a record");
            }
            _ => {}
        }
    }
}

fn path(records: &Path, id: &str) -> PathBuf {
    records.join(id).with_extension(EXTENSION)
}

fn open(directory: &Path) -> Result<(Store, Vec<PausedRecord>), ServeError> {
    let shown = directory.display();
    let failed = |error| {
        let message = format!("failed to use the state directory `{shown}`: {error}");
        ServeError::new(ServeErrorKind::State, message)
    };
    let records = directory.join(RECORDS);
    let mut builder = DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(&records)
        .map_err(failed)?;
    fs::set_permissions(&records, Permissions::from_mode(0o700)).map_err(failed)?;
    let lock = File::create(directory.join(LOCK)).map_err(failed)?;
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        let message = format!("the state directory `{shown}` is in use by another server");
        return Err(ServeError::new(ServeErrorKind::State, message));
    }
    let (mut loaded, mut unreadable) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(&records).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path
            .extension()
            .is_none_or(|extension| extension != EXTENSION)
        {
            // A temporary file of a killed server.
            let _ = fs::remove_file(&path);
            continue;
        }
        let record = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
        match record {
            Ok(record) => loaded.push(record),
            Err(error) => unreadable.push((path, error)),
        }
    }
    let store = Store {
        records: records.into(),
        unreadable,
        lock,
    };
    Ok((store, loaded))
}
