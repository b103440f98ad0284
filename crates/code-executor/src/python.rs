//! `run_python`: code in the session's sandbox, and the files that it makes.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use cantle_core::escape::shorten;
use cantle_core::sandbox::{
    ArtifactLimits, ArtifactSink, ByteStream, Sandbox, SandboxError, SandboxErrorKind,
    SandboxExt as _, SandboxPath, Walk,
};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput};
use cantle_files::{Files, NewFile};
use cantle_python::one_shot;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::output::{CallResult, time_limit};

const DESCRIPTION: &str = "Execute Python code in an isolated sandbox. Save files to /tmp/, e.g. \
    plt.savefig('/tmp/chart.png'), or to the working directory: they are stored and returned, also in list_files. \
    Load stored files with load_file.";
/// Time of a call, beyond the code's: listing and storing files.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);
/// Time in which the files of one call are begun to be stored.
const STORING: Duration = Duration::from_secs(120);
/// Time of a call in which its files are stored. A slow store must not end the call, with its output.
const STORED: Duration = Duration::from_secs(270);
/// Files of one call that are stored.
const MAX_FILES: usize = 100;
/// Entries among which new files are looked for.
const MAX_WALKED: usize = 20_000;
/// Warnings of one call, and characters of a path in one.
const MAX_WARNINGS: usize = 20;
const MAX_WARNING_PATH: usize = 250;
/// Bytes of addresses in the list of files that ends the output; further files have their ids there. So the list and the
/// warnings fit into the last 50,000 characters, which an agent keeps of a result that is too long.
const MAX_ADDRESSES: usize = 16_000;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Params {
    /// Python code to execute.
    code: String,
    /// Max execution time in seconds (default 30, max 60)
    #[schemars(with = "Option<i64>")]
    timeout: Option<f64>,
}

pub(crate) fn run_python(files: &Files) -> DynTool {
    let files = files.clone();
    DynTool::from_fn("run_python", DESCRIPTION, move |params, cx| {
        let files = files.clone();
        async move { run(&files, params, &cx).await }
    })
    .with_timeout(Some(CALL_TIMEOUT))
}

async fn run(files: &Files, params: Params, cx: &ToolContext) -> Result<ToolOutput, ToolError> {
    // Before the code runs: its files would belong to no one.
    cx.require_principal()?;
    let end = Instant::now() + STORED;
    let sandbox = &**cx.require_sandbox()?;
    let timeout = time_limit(params.timeout);
    let before = walk(sandbox).await?;
    let request = one_shot("python3", params.code)
        .with_env("MPLBACKEND", "Agg")
        .with_env("PYTHONDONTWRITEBYTECODE", "1")
        .with_env("PYTHONIOENCODING", "utf-8:replace")
        .with_timeout(Duration::from_secs(timeout))
        .with_cancellation(cx.cancellation.clone());
    let output = sandbox.run(request).await?;
    let mut result = CallResult::of(&output, timeout);
    let (stored, warnings) = store(files, sandbox, &before, end, cx).await?;
    if !stored.is_empty() {
        // After the cut, so that the model always sees it.
        result.stdout.push_str(&trailer(&stored));
    }
    (result.files, result.warnings) = (Some(stored), warnings);
    Ok(result.into_output())
}

/// Returns the list of files at the end of the output.
fn trailer(stored: &[Value]) -> String {
    let mut trailer = "\n\n--- Generated Files ---\n".to_owned();
    let mut rest = MAX_ADDRESSES;
    for file in stored {
        let text = |name| file.get(name).and_then(Value::as_str);
        let url = text("url").filter(|url| url.len() <= rest);
        rest -= url.map_or(0, str::len);
        let link = url.or(text("file_id")).unwrap_or_default();
        let name = text("filename").unwrap_or_default();
        trailer.push_str(&format!("[{name}]({link})\n"));
    }
    trailer
}

/// Walks the directories in which code leaves files. If one is below the other, its files are in its own walk only.
async fn walk(sandbox: &dyn Sandbox) -> Result<Vec<(SandboxPath, Walk)>, ToolError> {
    let temporary = SandboxPath::new("/tmp").map_err(SandboxError::from)?;
    let own = &sandbox.info().working_directory;
    let temporary_in_own = temporary.strip_prefix(own).filter(|path| !path.is_base());
    let own_in_temporary = own.strip_prefix(&temporary);
    let mut walks = Vec::new();
    for (directory, nested) in [
        (SandboxPath::working_directory(), temporary_in_own),
        (temporary, own_in_temporary),
    ] {
        let mut walk = match sandbox.walk(&directory, MAX_WALKED).await {
            // Without namespaces, commands may not see the host's `/tmp`.
            Err(error)
                if matches!(
                    error.kind(),
                    SandboxErrorKind::NotFound | SandboxErrorKind::OutsideSandbox
                ) =>
            {
                Walk::default()
            }
            walk => walk?,
        };
        if let Some(nested) = nested {
            // By path: two file systems may have the same inode numbers.
            walk.entries
                .retain(|path, _| path.strip_prefix(&nested).is_none());
        }
        walks.push((directory, walk));
    }
    Ok(walks)
}

/// Stores the files that are new or changed since a walk, until `end`. Each failure is a warning.
async fn store(
    files: &Files,
    sandbox: &dyn Sandbox,
    before: &[(SandboxPath, Walk)],
    end: Instant,
    cx: &ToolContext,
) -> Result<(Vec<Value>, Vec<String>), ToolError> {
    let owner = cx.require_principal()?.id().as_str();
    let mut after = walk(sandbox).await?;
    let deadline = Instant::now() + STORING;
    let (mut stored, mut warnings) = (Vec::new(), Vec::new());
    for ((directory, after), (_, before)) in after.iter_mut().zip(before) {
        let is_hidden = |path: &SandboxPath| path.components().any(|name| name.starts_with(b"."));
        after.entries.retain(|path, _| !is_hidden(path));
        // The store has its own limits of sizes.
        let limits = ArtifactLimits::default().with_total_bytes(u64::MAX);
        let limits = limits.with_files(MAX_FILES.saturating_sub(stored.len()));
        let sink = GeneratedFiles {
            files: files.clone(),
            owner: owner.to_owned(),
            run: cx.run.to_string(),
            directory: directory.clone(),
            deadline,
            end,
            stored: Mutex::new(stored),
        };
        if before.is_truncated || after.is_truncated {
            let limit = MAX_WALKED;
            warnings.push(format!(
                "{directory} has more than {limit} entries; the rest was not searched"
            ));
        }
        let artifacts = sandbox.artifacts(directory, before, after, limits, &sink);
        let (place, refused) = (directory.to_string(), artifacts.await?.refused);
        let refused = refused.iter().filter(|it| it.source != place);
        warnings.extend(refused.map(|it| {
            let path = shorten(&it.source, MAX_WARNING_PATH);
            format!("{path} was not stored: {}", it.reason)
        }));
        stored = sink.stored.into_inner();
    }
    if warnings.len() > MAX_WARNINGS {
        let kept = MAX_WARNINGS - 1;
        let others = format!("There are {} more warnings.", warnings.len() - kept);
        warnings.truncate(kept);
        warnings.push(others);
    }
    Ok((stored, warnings))
}

/// The sink of the files that code made in one directory.
#[derive(Debug)]
struct GeneratedFiles {
    files: Files,
    owner: String,
    run: String,
    directory: SandboxPath,
    /// The time from which no other file is begun.
    deadline: Instant,
    /// The time at which a file that was begun is given up.
    end: Instant,
    /// Their descriptions for the model.
    stored: Mutex<Vec<Value>>,
}

#[async_trait]
impl ArtifactSink for GeneratedFiles {
    async fn store(&self, path: &SandboxPath, content: ByteStream) -> Result<(), SandboxError> {
        if Instant::now() >= self.deadline {
            let message = "the store took too long for the files before it";
            return Err(SandboxError::new(SandboxErrorKind::Io, message));
        }
        let full = self.directory.join(path.relative_bytes())?;
        let new = NewFile::named(path.to_string())
            .with_group("generated")
            .with_run(&*self.run)
            .with_fact("path", full.to_string());
        let rest = self.end.saturating_duration_since(Instant::now());
        let record = timeout(rest, self.files.put(&self.owner, new, content));
        let record = record.await.map_err(|_| {
            SandboxError::new(SandboxErrorKind::Io, "the store took too long for it")
        })??;
        // The file is stored: without an address it is still found by its id.
        let url = self.files.url(&record).await.ok().flatten();
        let mut stored = self.stored.lock();
        stored.push(json!({
            "file_id": record.id, "filename": record.filename, "url": url, "size_bytes": record.size_bytes,
            "mime_type": record.mime_type, "minio_key": record.key, "sha256": record.sha256,
        }));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use cantle_files::{FileStore, MemoryRecords};
    use futures_util::stream;

    use super::*;

    #[tokio::test]
    async fn a_file_after_the_deadline_and_one_that_takes_too_long_are_not_stored() {
        let files = Files::open(FileStore::memory(), MemoryRecords::new())
            .await
            .unwrap();
        let now = Instant::now();
        let later = now + Duration::from_secs(600);
        for (deadline, end) in [(now, later), (later, now)] {
            let sink = GeneratedFiles {
                files: files.clone(),
                owner: "alice".to_owned(),
                run: "run".to_owned(),
                directory: SandboxPath::working_directory(),
                deadline,
                end,
                stored: Mutex::default(),
            };
            let path = SandboxPath::new("a").unwrap();
            let stored = sink.store(&path, Box::pin(stream::pending())).await;
            assert!(stored.unwrap_err().to_string().contains("took too long"));
        }
        assert_eq!(files.list("alice", None, 1).await.unwrap(), []);
    }
}
