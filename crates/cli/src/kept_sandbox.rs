//! The sandboxes of kept runs: which run has one, how it is opened, and how long that of a finished run stays.
//!
//! A sandbox belongs to the latest run that names it. That of a finished run is kept for another task, until it is too
//! old or all of them are too large; a file in the run's directory says so.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use cantle::agent::{KeptRun, KeptStatus, RunStore};
use cantle::backends::local::Reclaimed;
use cantle::core::event::RunStatus;
use cantle::core::ids::RunId;
use cantle::core::policy::{Policy, Strictness};
use cantle::core::sandbox::{Sandbox, SandboxContext, SandboxErrorKind, SandboxHandle};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use walkdir::WalkDir;

use crate::backend;
use crate::json_file;
use crate::saved_settings::SavedSettings;
use crate::settings::Retention;
use crate::state_dir::StateDir;

/// The file that says that the sandbox of a finished run is kept.
const RECORD: &str = "kept-sandbox.json";

/// Maximum number of files of a working directory that is kept.
const MAX_FILES: usize = 1_000_000;

/// A working directory that is kept: the content of [`RECORD`].
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct KeptDirectory {
    directory: PathBuf,
    size_bytes: u64,
}

impl KeptDirectory {
    fn read(directory: &Path) -> Option<Self> {
        json_file::read(&directory.join(RECORD)).ok()?
    }
}

/// Whether the sandbox of this run, which has finished, was kept.
pub(crate) fn is_kept_of_finished(run: &KeptRun) -> bool {
    KeptDirectory::read(&run.directory).is_some()
}

/// Returns the size of the kept working directory of a finished run. A later run may have changed it.
pub(crate) fn size_of_finished(run: &KeptRun) -> Option<u64> {
    let record = KeptDirectory::read(&run.directory)?;
    record.directory.exists().then_some(record.size_bytes)
}

/// Returns a run's working directory, if it is of this machine and this retention allows to keep it. Blocks.
pub(crate) fn to_keep(state: &StateDir, run: RunId, retention: Retention) -> Option<KeptDirectory> {
    if retention.age.is_zero() {
        return None;
    }
    let directory = directory_of(state.runs().get(run).ok()?.sandbox.as_ref()?)?;
    let size_bytes = disk_usage(&directory).ok()?;
    (size_bytes <= retention.size_bytes).then_some(KeptDirectory {
        directory,
        size_bytes,
    })
}

/// Keeps the sandbox of a finished run, which is suspended, and removes others that are too old or too large.
pub(crate) async fn keep(state: &StateDir, run: RunId, retention: Retention, kept: &KeptDirectory) {
    // Without a record, it stays until the run is removed.
    let _ = json_file::write(&state.runs().run_directory(run).join(RECORD), kept);
    // Those in use are removed later; `cantle gc` reports what can't be.
    let _ = prune(state, retention).await;
}

/// Keeps the sandbox of a finished run whose process was killed, as far as the retention allows.
///
/// # Errors
/// If it can't be removed otherwise.
pub(crate) async fn settle(
    state: &StateDir,
    run: &KeptRun,
    retention: Retention,
) -> anyhow::Result<()> {
    if is_kept_of_finished(run) || run.sandbox.as_ref().is_none_or(is_directory_gone) {
        return Ok(());
    }
    match to_keep(state, run.run, retention) {
        Some(kept) => keep(state, run.run, retention, &kept).await,
        None => remove_sandbox(run).await?,
    }
    Ok(())
}

/// Returns the disk space of a directory. Links are not followed.
fn disk_usage(directory: &Path) -> io::Result<u64> {
    let mut blocks = 0_u64;
    for (index, entry) in WalkDir::new(directory).min_depth(1).into_iter().enumerate() {
        if index >= MAX_FILES {
            return Err(io::Error::other("too many files"));
        }
        blocks = blocks.saturating_add(entry?.metadata()?.blocks());
    }
    // The unit of `st_blocks`.
    Ok(blocks.saturating_mul(512))
}

/// Removes the sandboxes of finished runs that are too old, and the oldest of those that are too large together.
pub(crate) async fn prune(state: &StateDir, retention: Retention) -> Reclaimed {
    let store = state.runs();
    let mut pruned = Reclaimed::default();
    let mut directories = HashSet::new();
    let mut total = 0_u64;
    for (run, path, written) in records(&store) {
        let Some(record) = path.parent().and_then(KeptDirectory::read) else {
            continue;
        };
        // A later run that went on in it has counted it.
        if directories.insert(record.directory.clone()) {
            total = total.saturating_add(record.size_bytes);
            let age = SystemTime::now()
                .duration_since(written)
                .unwrap_or_default();
            if age < retention.age && total <= retention.size_bytes {
                continue;
            }
            match remove_finished(&store, run).await {
                Ok(true) => pruned.removed.push(record.directory),
                Ok(false) => {}
                Err(error) => {
                    pruned.failed.push((record.directory, format!("{error:#}")));
                    continue;
                }
            }
            total = total.saturating_sub(record.size_bytes);
        }
        // Without it, the sandbox counts as removed.
        let _ = fs::remove_file(path);
    }
    pruned
}

/// Returns the runs whose sandboxes are kept, latest first, with their records and the times of these.
fn records(store: &RunStore) -> Vec<(RunId, PathBuf, SystemTime)> {
    let entries = fs::read_dir(store.directory())
        .into_iter()
        .flatten()
        .flatten();
    let records = entries.filter_map(|entry| {
        let run: RunId = entry.file_name().to_str()?.parse().ok()?;
        let path = entry.path().join(RECORD);
        let written = fs::symlink_metadata(&path).ok()?.modified().ok()?;
        Some((run, path, written))
    });
    let mut records: Vec<_> = records.collect();
    records.sort_by_key(|(run, ..)| std::cmp::Reverse(*run));
    records
}

/// Removes the sandbox of a finished run, unless a later run has it; returns whether it did.
async fn remove_finished(store: &RunStore, run: RunId) -> anyhow::Result<bool> {
    let run = store.get(run)?;
    if successor(store, &run)?.is_some() {
        return Ok(false);
    }
    remove_sandbox(&run).await?;
    Ok(true)
}

/// Removes the kept sandbox of a run, with its files.
///
/// # Errors
/// If it is in use, or can't be removed.
pub(crate) async fn remove_sandbox(run: &KeptRun) -> anyhow::Result<()> {
    match reattach(run).await? {
        Some(sandbox) => Ok(sandbox.close().await?),
        None => Ok(()),
    }
}

/// Opens the kept sandbox of a run, unless it is gone.
///
/// # Errors
/// If it is in use, or can't be opened.
pub(crate) async fn reattach(run: &KeptRun) -> anyhow::Result<Option<Arc<dyn Sandbox>>> {
    let Some(handle) = &run.sandbox else {
        return Ok(None);
    };
    // Its files may belong to another user, which the run's policy determines.
    let saved = SavedSettings::read(run.note.clone()).ok();
    let mut policy = saved.map_or_else(Policy::default, |saved| saved.policy);
    policy.strictness = Strictness::BestEffort;
    let cx = SandboxContext::new(run.run, policy);
    match backend::for_handle(handle)?.reattach(handle, cx).await {
        Ok(sandbox) => Ok(Some(sandbox)),
        Err(error) if error.kind() == SandboxErrorKind::Gone => Ok(None),
        Err(error) => Err(error).context("failed to open the run's working directory"),
    }
}

/// Whether this is a sandbox of this machine whose directory is gone.
pub(crate) fn is_directory_gone(handle: &SandboxHandle) -> bool {
    directory_of(handle).is_some_and(|directory| !directory.exists())
}

/// Returns the directory of a local sandbox.
pub(crate) fn directory_of(handle: &SandboxHandle) -> Option<PathBuf> {
    let token: Value = serde_json::from_str(&handle.token).ok()?;
    token.get("directory")?.as_str().map(PathBuf::from)
}

/// Returns the latest of all kept runs, which are sorted latest first, that has this run's sandbox, too.
fn latest_sharing<'a>(all: &'a [KeptRun], run: &KeptRun) -> Option<&'a KeptRun> {
    let sandbox = run.sandbox.as_ref()?;
    let has_it = |other: &&KeptRun| other.run != run.run && other.sandbox.as_ref() == Some(sandbox);
    all.iter().find(has_it)
}

/// Leaves the sandbox of a run, which is about to be removed, to the latest other run that has it; returns whether there
/// is one. Blocks.
///
/// # Errors
/// If the store can't be read.
pub(crate) fn hand_over(store: &RunStore, run: &KeptRun) -> anyhow::Result<bool> {
    let (all, _) = store.list()?;
    let Some(other) = latest_sharing(&all, run) else {
        return Ok(false);
    };
    // Without a record, it would stay until that run is removed.
    if other.status == KeptStatus::Ended(RunStatus::Finished) && !is_kept_of_finished(other) {
        let _ = fs::rename(run.directory.join(RECORD), other.directory.join(RECORD));
    }
    Ok(true)
}

/// Returns the later run that continues in the sandbox of this one. Blocks.
///
/// # Errors
/// If the store can't be read.
pub(crate) fn successor(store: &RunStore, run: &KeptRun) -> anyhow::Result<Option<RunId>> {
    Ok(successor_among(&store.list()?.0, run))
}

fn successor_among(all: &[KeptRun], run: &KeptRun) -> Option<RunId> {
    let latest = latest_sharing(all, run)?.run;
    (latest > run.run).then_some(latest)
}

/// Whether `cantle run --resume` can resume a run; `all` kept runs are sorted latest first.
pub(crate) fn is_resumable(all: &[KeptRun], run: &KeptRun) -> bool {
    run.status.is_resumable() && check_resumable(all, run).is_ok()
}

/// Checks that a run can be resumed in its sandbox: it has not finished, and none of `all` kept runs, latest first, continues
/// there.
///
/// # Errors
/// If it can't.
pub(crate) fn check_resumable(all: &[KeptRun], run: &KeptRun) -> anyhow::Result<()> {
    let id = run.run;
    if is_kept_of_finished(run) {
        bail!(
            "run {id} is finished; there is nothing left to do. To give it another task: cantle run --continue {id} \
             \"…\""
        );
    }
    match successor_among(all, run) {
        Some(later) => bail!(
            "run {id} was continued by run {later}, which has its sandbox; resume or continue that one"
        ),
        None => Ok(()),
    }
}
