//! Artifacts: the files that changed between two walks, described and copied into a sink.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use auto_impl::auto_impl;
use bytes::{Bytes, BytesMut};
use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::host::{HostThread, write_temporary};
use super::reserved::check_reserved;
use super::staging::{PlacedFiles, StagedFile, Staging};
use super::walk::MAX_REFUSED;
use super::{
    ByteRange, ByteStream, FileKind, OutputOptions, RefusedFile, Sandbox, SandboxError,
    SandboxErrorKind, SandboxPath, Walk,
};

/// Bytes at the start of a file that decide its media type.
const MAGIC_BYTES: usize = 8 * 1024;

/// Receives the contents of [artifacts](super::SandboxExt::artifacts): a [directory](DirectorySink), [memory](MemorySink), an
/// object store. `()` keeps none.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait ArtifactSink: fmt::Debug + Send + Sync {
    /// Stores a file by its path below the directory that was walked; a later one replaces it. The content is read to its
    /// end, and only then is the file complete.
    ///
    /// # Errors
    /// The error of `content`, or why the file can't be stored, for which it is refused.
    async fn store(&self, path: &SandboxPath, content: ByteStream) -> Result<(), SandboxError>;
}

#[async_trait]
impl ArtifactSink for () {
    async fn store(&self, _: &SandboxPath, mut content: ByteStream) -> Result<(), SandboxError> {
        while let Some(piece) = content.next().await {
            piece?;
        }
        Ok(())
    }
}

/// Keeps artifacts in memory. Their size is limited by [`ArtifactLimits`].
#[derive(Debug, Default)]
pub struct MemorySink(Mutex<BTreeMap<SandboxPath, Bytes>>);

impl MemorySink {
    /// Returns the files that were stored, and forgets them.
    pub fn take(&self) -> BTreeMap<SandboxPath, Bytes> {
        std::mem::take(&mut *self.0.lock())
    }
}

#[async_trait]
impl ArtifactSink for MemorySink {
    async fn store(&self, path: &SandboxPath, mut content: ByteStream) -> Result<(), SandboxError> {
        let mut bytes = BytesMut::new();
        while let Some(piece) = content.next().await {
            bytes.extend_from_slice(&piece?);
        }
        let mut files = self.0.lock();
        files.insert(path.clone(), bytes.freeze());
        Ok(())
    }
}

/// Writes artifacts to a directory of the host, which is made when the first one comes.
///
/// Files that exist are replaced, each atomically. [Reserved names](super::reserved_name) are refused, and links of
/// the directory are not followed.
#[derive(Debug)]
pub struct DirectorySink {
    directory: PathBuf,
    state: tokio::sync::Mutex<Option<OpenDirectory>>,
}

#[derive(Debug)]
struct OpenDirectory {
    host: HostThread,
    staging: Arc<Staging>,
    placed: PlacedFiles,
}

impl DirectorySink {
    /// Creates a sink of a directory.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            state: tokio::sync::Mutex::default(),
        }
    }

    async fn open(&self) -> Result<OpenDirectory, SandboxError> {
        let host = HostThread::start()?;
        let staging = Staging::create(&host, self.directory.clone()).await?;
        Ok(OpenDirectory {
            host,
            staging: Arc::new(staging),
            placed: PlacedFiles::default(),
        })
    }
}

#[async_trait]
impl ArtifactSink for DirectorySink {
    async fn store(&self, path: &SandboxPath, content: ByteStream) -> Result<(), SandboxError> {
        let relative = check_reserved(path)?;
        let mut state = self.state.lock().await;
        let mut open = match state.take() {
            Some(open) => open,
            None => self.open().await?,
        };
        let (host, staging) = (open.host.clone(), Arc::clone(&open.staging));
        let written = write_temporary(&host, staging.directory.clone(), None, content).await;
        let placing = host.run(move || {
            let placed = written.and_then(|file| {
                let file = StagedFile {
                    source: relative.clone(),
                    relative: relative.into(),
                    file,
                    sha256: String::new(),
                };
                let options = OutputOptions::default().with_overwrite();
                let placed = open
                    .placed
                    .place(staging.output_directory(), file, &options);
                placed.map_err(|error| SandboxError::io("failed to store an artifact", error))
            });
            Ok((open, placed))
        });
        let (open, placed) = placing.await?;
        *state = Some(open);
        placed.map(drop)
    }
}

/// A file that was created or changed between two [walks](Walk).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Artifact {
    /// Its path below the directory that was walked.
    pub path: SandboxPath,
    /// Its size.
    pub size_bytes: u64,
    /// Its media type by its first bytes, or else by its name; `None` if both are unknown.
    pub media_type: Option<String>,
    /// The SHA-256 of its content in hexadecimal.
    pub sha256: String,
}

/// The artifacts of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Artifacts {
    /// The files that were created or changed, sorted by path.
    pub files: Vec<Artifact>,
    /// Changed entries that are not reported: links, special files, files beyond a limit or unreadable, and directories
    /// that can't be listed any more.
    pub refused: Vec<RefusedFile>,
}

/// Limits of [`SandboxExt::artifacts`](super::SandboxExt::artifacts).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArtifactLimits {
    /// Maximum number of files; 1000 by default.
    pub files: usize,
    /// Maximum size of all files together; 1 GiB by default. They are read to the end for their digest.
    pub total_bytes: u64,
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        Self {
            files: 1000,
            total_bytes: 1 << 30,
        }
    }
}

impl ArtifactLimits {
    /// Sets the maximum number of files.
    pub fn with_files(mut self, files: usize) -> Self {
        self.files = files;
        self
    }

    /// Sets the maximum size of all files together.
    pub fn with_total_bytes(mut self, bytes: u64) -> Self {
        self.total_bytes = bytes;
        self
    }
}

impl Artifacts {
    fn refuse(&mut self, path: &dyn fmt::Display, reason: impl Into<String>) {
        match self.refused.len() {
            0..MAX_REFUSED => {
                let refused = RefusedFile::new(path.to_string(), reason);
                self.refused.push(refused);
            }
            MAX_REFUSED => {
                let rest = RefusedFile::new("…", "further files are not listed");
                self.refused.push(rest);
            }
            _ => {}
        }
    }
}

/// Describes the files that changed between two walks of `directory`, and copies them into `sink`.
pub(super) async fn artifacts<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    (before, after): (&Walk, &Walk),
    limits: ArtifactLimits,
    sink: &dyn ArtifactSink,
) -> Result<Artifacts, SandboxError> {
    let mut artifacts = Artifacts::default();
    let mut room = Room {
        bytes: limits.total_bytes,
        words: "left for artifacts",
    };
    if before.is_truncated || after.is_truncated {
        let reason = "there are too many files to tell all that changed";
        artifacts.refuse(directory, reason);
    }
    for refused in &after.refused {
        if !before.refused.contains(refused) {
            artifacts.refuse(&refused.source, refused.reason.as_str());
        }
    }
    for (path, entry) in after.changed_since(before) {
        // The earlier walk may have left it out, so it is not known to be new.
        if before.is_truncated && !before.entries.contains_key(path) {
            continue;
        }
        match entry.kind {
            FileKind::File => {}
            FileKind::Symlink => {
                artifacts.refuse(path, "it is a link, which is not followed");
                continue;
            }
            FileKind::Directory | FileKind::Other => {
                artifacts.refuse(path, "it is not a regular file");
                continue;
            }
        }
        if artifacts.files.len() >= limits.files {
            artifacts.refuse(path, "the maximum number of files is reached");
            continue;
        }
        let copied = async {
            room.check(entry.size_bytes)?;
            let from = directory.join(path.relative_bytes())?;
            let store = |content| sink.store(path, content);
            let ((), file) = copy_into(sandbox, &from, path, room, store).await?;
            Ok::<_, SandboxError>(file)
        };
        match copied.await {
            Ok(file) => {
                room.bytes = room.bytes.saturating_sub(file.size_bytes);
                artifacts.files.push(file);
            }
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error),
            Err(error) => artifacts.refuse(path, error.to_string()),
        }
    }
    Ok(artifacts)
}

/// The size that a file may have.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) bytes: u64,
    /// Ends the sentence "it has 5 bytes, and 4 are …".
    pub(super) words: &'static str,
}

impl Room {
    pub(super) fn check(self, size_bytes: u64) -> Result<(), SandboxError> {
        let Self { bytes, words } = self;
        match size_bytes > bytes {
            true => Err(SandboxError::invalid_input(format!(
                "it has {size_bytes} bytes, and {bytes} are {words}"
            ))),
            false => Ok(()),
        }
    }
}

/// The facts about a content that was read.
#[derive(Default)]
struct Summary {
    size_bytes: u64,
    magic: Vec<u8>,
    digest: Sha256,
}

impl Summary {
    fn add(&mut self, piece: &[u8]) {
        self.size_bytes += piece.len() as u64;
        let missing = MAGIC_BYTES.saturating_sub(self.magic.len());
        self.magic.extend(piece.iter().take(missing));
        self.digest.update(piece);
    }
}

/// Stores the file `from` as `path`. It can be larger than it was when it was listed.
pub(super) async fn copy_into<S, T, F>(
    sandbox: &S,
    from: &SandboxPath,
    path: &SandboxPath,
    room: Room,
    store: impl FnOnce(ByteStream) -> F,
) -> Result<(T, Artifact), SandboxError>
where
    S: Sandbox + ?Sized,
    F: Future<Output = Result<T, SandboxError>>,
{
    let range = ByteRange::new(0, room.bytes.saturating_add(1));
    let data = sandbox.read(from, range).await?;
    let (complete, summary) = oneshot::channel();
    let reading = (data, Summary::default(), complete);
    let content = stream::try_unfold(
        reading,
        move |(mut data, mut summary, complete)| async move {
            let Some(piece) = data.next().await else {
                // The receiver waits until the sink is done.
                let _ = complete.send(summary);
                return Ok(None);
            };
            let piece = piece?;
            summary.add(&piece);
            room.check(summary.size_bytes)?;
            Ok(Some((piece, (data, summary, complete))))
        },
    );
    let stored = store(Box::pin(content)).await?;
    let summary = summary.await.map_err(|_| {
        let message = "the sink did not read the file to its end";
        SandboxError::new(SandboxErrorKind::Io, message)
    })?;
    let artifact = Artifact {
        path: path.clone(),
        size_bytes: summary.size_bytes,
        media_type: media_type(path, &summary.magic).map(str::to_owned),
        sha256: format!("{:x}", summary.digest.finalize()),
    };
    Ok((stored, artifact))
}

/// Returns the media type of a file by its first bytes, or else by its name; `None` if both are unknown.
pub fn media_type(path: &SandboxPath, first: &[u8]) -> Option<&'static str> {
    let by_bytes = infer::get(first).map(|found| found.mime_type());
    // Office documents are archives to their magic bytes.
    by_bytes
        .filter(|found| *found != "application/zip")
        .or_else(|| media_type_of_name(&String::from_utf8_lossy(path.file_name()?)))
        .or(by_bytes)
}

/// Returns the media type that the extension of a file's name stands for, if it is known.
pub fn media_type_of_name(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension {
        "csv" => "text/csv",
        "css" => "text/css",
        "gif" => "image/gif",
        "gz" | "tgz" => "application/gzip",
        "html" | "htm" => "text/html",
        "ipynb" => "application/x-ipynb+json",
        "jpg" | "jpeg" => "image/jpeg",
        "js" | "mjs" => "text/javascript",
        "json" | "geojson" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "md" => "text/markdown",
        "npy" | "npz" => "application/x-numpy",
        "parquet" => "application/vnd.apache.parquet",
        "pdf" => "application/pdf",
        "png" => "image/png",
        "py" => "text/x-python",
        "svg" => "image/svg+xml",
        "tex" => "application/x-tex",
        "toml" => "application/toml",
        "tsv" => "text/tab-separated-values",
        "txt" | "log" | "rs" | "sh" => "text/plain",
        "webp" => "image/webp",
        "xml" => "text/xml",
        "yaml" | "yml" => "application/yaml",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        "zip" => "application/zip",
        _ => return None,
    })
}
