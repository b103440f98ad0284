//! `cantle files`: lists, copies, stores and removes the files of a store.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use cantle_files::{FileId, FileRecord, Files, FilesError, FilesErrorKind, NewFile, safe_name};
use futures_util::TryStreamExt as _;
use tokio_util::io::ReaderStream;
use tokio_util::sync::CancellationToken;

use super::print;
use crate::args::{FilesCommand, StoredFilesArgs};
use crate::exit::{Code, Failure, FailureExt as _};
use crate::files;
use crate::state_dir::StateDir;
use crate::text::{plural, size};

/// Age of objects without a record that no upload is still writing. A file of the default limit takes 9 hours at the
/// slowest rate that a bucket may have.
const SWEEP_AGE: Duration = Duration::from_secs(24 * 60 * 60);
/// The name of standard output.
const STDOUT: &str = "-";

/// Performs a command until it is cancelled, and returns the exit code.
pub(crate) async fn perform(
    args: StoredFilesArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let performed = cancellation
        .run_until_cancelled(perform_command(args))
        .await;
    performed.unwrap_or(Ok(Code::Cancelled as u8))
}

async fn perform_command(args: StoredFilesArgs) -> Result<u8, Failure> {
    let state = StateDir::find().usage()?;
    let files = args.store.files.open(&state).await.usage()?;
    let owner = &*args.store.owner;
    match args.command {
        FilesCommand::Ls { json } => list(&files, owner, json).await?,
        FilesCommand::Get { id, file } => get(&files, owner, id, file).await?,
        FilesCommand::Put { files: paths } => {
            for path in paths {
                let record = put(&files, owner, &path).await?;
                print(format!("{} {}\n", record.id, record.filename))?;
            }
        }
        FilesCommand::Rm { ids } => {
            for id in ids {
                let record = files.remove(owner, id).await.map_err(failure)?;
                print(format!("removed {} {}\n", record.id, record.filename))?;
            }
        }
        FilesCommand::Gc => {
            let swept = files.sweep(SWEEP_AGE).await.map_err(failure)?;
            let objects = plural(swept.objects, "object", "objects");
            print(format!("removed {objects} ({})\n", size(swept.bytes)))?;
        }
    }
    Ok(0)
}

async fn list(files: &Files, owner: &str, json: bool) -> Result<(), Failure> {
    let records = files.all(owner).try_collect().await;
    let records: Vec<FileRecord> = records.map_err(failure)?;
    if json {
        let text = serde_json::to_string_pretty(&records).context("failed to write JSON");
        return print(text.internal()? + "\n");
    }
    // Another program may have written the names.
    let lines = records.iter().map(|record| {
        let (id, created) = (record.id, record.created_at);
        let (size, name) = (size(record.size_bytes), safe_name(&record.filename));
        format!("{id}  {created:.0}  {size:>9}  {name}\n")
    });
    print(lines.collect::<String>())
}

/// Copies a stored file, complete or not at all, to a file that does not exist yet.
async fn get(files: &Files, owner: &str, id: FileId, file: Option<PathBuf>) -> Result<(), Failure> {
    let (record, content) = files.read(owner, id, None).await.map_err(failure)?;
    if file.as_deref() == Some(Path::new(STDOUT)) {
        return files::copy(content, &mut tokio::io::stdout())
            .await
            .internal();
    }
    let path = file.unwrap_or_else(|| safe_name(&record.filename).into());
    let failed = || format!("failed to write {}", path.display());
    let directory = path.parent().filter(|it| !it.as_os_str().is_empty());
    let staged = tempfile::NamedTempFile::new_in(directory.unwrap_or(Path::new(".")));
    let (staged, staged_path) = staged.with_context(failed).internal()?.into_parts();
    let mut staged = tokio::fs::File::from_std(staged);
    let copied = files::copy(content, &mut staged).await;
    copied.with_context(failed).internal()?;
    // The message of its own error type names the temporary file.
    let persisted = staged_path
        .persist_noclobber(&path)
        .map_err(|refused| refused.error);
    persisted.with_context(failed).internal()?;
    print(format!("{}\n", path.display()))
}

async fn put(files: &Files, owner: &str, path: &Path) -> Result<FileRecord, Failure> {
    let failed = || format!("failed to read {}", path.display());
    let file = tokio::fs::File::open(path).await;
    let file = file.with_context(failed).usage()?;
    let metadata = file.metadata().await.with_context(failed).usage()?;
    if !metadata.is_file() {
        let message = format!("{} is not a file", path.display());
        return Err(Failure::new(Code::Usage, anyhow!(message)));
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let content = ReaderStream::with_capacity(file, 1 << 20);
    let stored = files.put(owner, NewFile::named(name), content).await;
    stored.map_err(failure)
}

fn failure(error: FilesError) -> Failure {
    let code = match error.kind() {
        FilesErrorKind::NotFound
        | FilesErrorKind::TooLarge
        | FilesErrorKind::QuotaExceeded
        | FilesErrorKind::InvalidInput
        | FilesErrorKind::Configuration => Code::Usage,
        _ => Code::Internal,
    };
    Failure::new(code, error)
}
