//! Records of sandboxes that outlive the server, one file each, in a directory that is the server's
//! alone.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cantle_core::sandbox::SandboxHandle;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;

use super::Facts;
use crate::error::{ServeError, ServeErrorKind};

const LOCK: &str = "lock";
const RECORDS: &str = "sandboxes";
const ENDING: &str = "json";

/// What is written down of a sandbox.
#[derive(Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) facts: Facts,
    pub(crate) handle: SandboxHandle,
}

/// What an earlier server wrote down.
pub(crate) struct Found {
    pub(crate) records: Vec<Record>,
    /// Whether that is all of it.
    pub(crate) is_whole: bool,
}

/// The directory of records.
pub(crate) struct Store {
    records: Arc<Path>,
    /// Locked for as long as the server lives.
    lock: File,
}

impl Drop for Store {
    fn drop(&mut self) {
        // Closing it would do, were it ours alone: a process that was just forked has it too, for a
        // moment.
        let _ = flock(&self.lock, FlockOperation::Unlock);
    }
}

impl Store {
    /// Opens the directory, and reads what is in it. What can't be read is left where it is.
    pub(crate) async fn open(directory: PathBuf) -> Result<(Self, Found), ServeError> {
        let opened = spawn_blocking(move || open(&directory)).await;
        opened
            .unwrap_or_else(|error| Err(ServeError::new(ServeErrorKind::State, error.to_string())))
    }

    /// Writes a record, whole or not at all.
    pub(crate) async fn save(&self, record: &Record) -> io::Result<()> {
        let (directory, id) = (Arc::clone(&self.records), record.facts.id.clone());
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

    /// Removes a record, if there is one.
    pub(crate) async fn remove(&self, id: &str) {
        let path = path(&self.records, id);
        let removed = spawn_blocking(move || fs::remove_file(path)).await;
        match removed {
            Ok(Err(error)) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(sandbox = id, %error, "a record could not be removed");
            }
            _ => {}
        }
    }
}

fn path(records: &Path, id: &str) -> PathBuf {
    records.join(id).with_extension(ENDING)
}

fn open(directory: &Path) -> Result<(Store, Found), ServeError> {
    let shown = directory.display();
    let failed = |error| {
        let doing = format!("failed to use the state directory `{shown}`");
        ServeError::io(ServeErrorKind::State, doing, error)
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
        let message = format!("another server uses the state directory `{shown}`");
        return Err(ServeError::new(ServeErrorKind::State, message));
    }
    let mut found = Found {
        records: Vec::new(),
        is_whole: true,
    };
    for entry in fs::read_dir(&records).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_none_or(|ending| ending != ENDING) {
            // What was being written when a server was killed.
            let _ = fs::remove_file(&path);
            continue;
        }
        let record = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
        match record {
            Ok(record) => found.records.push(record),
            Err(error) => {
                found.is_whole = false;
                tracing::warn!(path = %path.display(), %error, "a record can't be read");
            }
        }
    }
    let store = Store {
        records: records.into(),
        lock,
    };
    Ok((store, found))
}
