//! Files of finished runs that wait below the state directory until they are in a store.
//!
//! A run saves its files there, and its result file last. From then on a delivery needs neither the run nor its sandbox,
//! so what a killed process or a store that failed has left is delivered by `cantle run --resume`. The directory is
//! locked meanwhile.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::Context as _;
use cantle::agent::{KeptRun, KeptStatus, StoreErrorKind};
use cantle::backends::local::Reclaimed;
use cantle::core::event::RunStatus;
use cantle::core::ids::RunId;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use walkdir::WalkDir;

use crate::delivery::OpenStore;
use crate::json_file;
use crate::result_file;
use crate::state_dir::{StateDir, try_lock};

/// The file in a directory that is locked.
const LOCK: &str = ".cantle-lock";

/// Returns the directory of a finished run whose files are not in its store yet.
pub(crate) fn of(state: &StateDir, run: &KeptRun) -> Option<PathBuf> {
    let directory = state.undelivered().join(run.run.to_string());
    let is_complete = || directory.join(result_file::FILE_NAME).is_file();
    let has_finished = run.status == KeptStatus::Ended(RunStatus::Finished);
    (has_finished && is_complete()).then_some(directory)
}

/// Whether a delivered file that was saved under this path is only in its store now.
pub(crate) fn is_stored(state: &StateDir, path: &Path) -> bool {
    path.starts_with(state.undelivered()) && !path.exists()
}

/// Copies the files of a finished run from a directory into a store, then the result file, which names their addresses,
/// and removes the directory. Files that an interrupted delivery has stored are not stored again. Returns the addresses.
///
/// # Errors
/// If another process delivers them, or the store fails. The files are still there then.
pub(crate) async fn deliver(
    store: &OpenStore,
    run: RunId,
    directory: &Path,
) -> anyhow::Result<Vec<String>> {
    let _lock = lock(directory)?;
    let mut result = read_result(directory)?;
    let stored = store.files_of(run).await?;
    let stored = |name: &str, sha256: &str| stored.get(&(name.to_owned(), sha256.to_owned()));
    let mut addresses = Vec::new();
    let outputs = result.get_mut("outputs").and_then(Value::as_array_mut);
    for output in outputs.into_iter().flatten() {
        let text = |name| output.get(name).and_then(Value::as_str).unwrap_or_default();
        let name = text("name");
        let address = match stored(name, text("sha256")) {
            Some(address) => address.clone(),
            None => store.put_file(run, name, &directory.join(name)).await?,
        };
        output["path"] = address.clone().into();
        addresses.push(address);
    }
    let text = serde_json::to_string_pretty(&result)? + "\n";
    let name = result_file::FILE_NAME;
    if stored(name, &format!("{:x}", Sha256::digest(&text))).is_none() {
        store.put_text(run, name, text).await?;
    }
    // Without the result file there is nothing to deliver, whatever happens next.
    let removed =
        fs::remove_file(directory.join(name)).and_then(|()| fs::remove_dir_all(directory));
    removed.with_context(|| format!("failed to remove {}", directory.display()))?;
    Ok(addresses)
}

/// Removes the files of runs that are not kept, and those that have waited longer than `age`. Those that changed within
/// `grace` may belong to a run in progress that is not kept. Blocks.
pub(crate) fn prune(state: &StateDir, age: Duration, grace: Duration) -> Reclaimed {
    let mut pruned = Reclaimed::default();
    let entries = fs::read_dir(state.undelivered()).into_iter().flatten();
    for directory in entries.flatten().map(|entry| entry.path()) {
        let run = directory.file_name().and_then(|name| name.to_str());
        let kept = run.and_then(|run| Some(state.runs().get(run.parse().ok()?)));
        let limit = match kept {
            Some(Ok(run)) if run.status == KeptStatus::Running => continue,
            None => grace,
            Some(Err(error)) if error.kind() == StoreErrorKind::NotFound => grace,
            Some(_) => age.max(grace),
        };
        // Only then: a lock may change the directory.
        if !is_unchanged_for(&directory, limit) {
            continue;
        }
        let Ok(_lock) = lock(&directory) else {
            continue;
        };
        match fs::remove_dir_all(&directory) {
            Ok(()) => pruned.removed.push(directory),
            Err(error) => pruned.failed.push((directory, error.to_string())),
        }
    }
    pruned
}

/// Removes the files that a run has left. Blocks.
///
/// # Errors
/// If another process delivers them, or they can't be removed.
pub(crate) fn remove(state: &StateDir, run: RunId) -> anyhow::Result<()> {
    let directory = state.undelivered().join(run.to_string());
    if !directory.exists() {
        return Ok(());
    }
    let _lock = lock(&directory)?;
    let failed = || format!("failed to remove {}", directory.display());
    fs::remove_dir_all(&directory).with_context(failed)
}

fn is_unchanged_for(directory: &Path, period: Duration) -> bool {
    let is_old = |modified: SystemTime| modified.elapsed().is_ok_and(|age| age >= period);
    WalkDir::new(directory).into_iter().all(|entry| {
        let metadata = entry.and_then(|entry| entry.metadata());
        metadata.is_ok_and(|found| found.modified().is_ok_and(is_old))
    })
}

/// Returns the result file.
///
/// # Errors
/// If it can't be read.
pub(crate) fn read_result(directory: &Path) -> anyhow::Result<Value> {
    let path = directory.join(result_file::FILE_NAME);
    json_file::read(&path)?.with_context(|| format!("{} is gone", path.display()))
}

/// Locks a directory; it stays locked until the file is dropped.
fn lock(directory: &Path) -> anyhow::Result<File> {
    let lock = try_lock(&directory.join(LOCK))
        .with_context(|| format!("failed to lock {}", directory.display()))?;
    lock.with_context(|| format!("another process works on {}", directory.display()))
}
