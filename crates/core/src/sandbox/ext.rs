//! Convenience methods on top of the [`Sandbox`] trait.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream;
use indexmap::IndexSet;

use super::artifacts::{self, ArtifactLimits, ArtifactSink, Artifacts, Room, copy_into};
use super::host::{HostEntry, HostThread, HostTree, write_temporary};
use super::matching::{self, MatchedFiles};
use super::reserved::check_reserved;
use super::staging::{StagedFile, Staging};
use super::{
    ByteRange, Channel, CommandOutput, Exit, FileInfo, FileKind, HeadTail, OutputChunk,
    OutputOptions, RefusedFile, Sandbox, SandboxError, SandboxErrorKind, SandboxPath, SavedFile,
    SavedOutputs, SpawnRequest, UploadedFile, UploadedFiles, Walk, WriteOptions,
};

/// Bytes of each channel that [`SandboxExt::run`] keeps, half of them from the start: enough for 20,000 characters of UTF-8.
const CAPTURE_BYTES: usize = 80_000;

/// Convenience methods of every [`Sandbox`]. Sealed: no sandbox overrides them.
#[async_trait]
pub trait SandboxExt: Sandbox + sealed::SealedSandbox {
    /// Runs a command to its end and passes each piece of output to `sink`.
    ///
    /// Dropping the returned future kills the command.
    ///
    /// # Errors
    /// As [`Sandbox::spawn`] and [`Process::wait`](super::Process::wait).
    async fn exec(
        &self,
        request: SpawnRequest,
        sink: &mut (dyn FnMut(OutputChunk) + Send),
    ) -> Result<Exit, SandboxError> {
        let mut process = self.spawn(request).await?;
        if let Some(mut output) = process.take_output() {
            while let Some(chunk) = output.next().await {
                sink(chunk?);
            }
        }
        process.wait().await
    }

    /// Runs a command to its end and keeps the head and the tail of its output.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    async fn run(&self, request: SpawnRequest) -> Result<CommandOutput, SandboxError> {
        self.run_with_observer(request, &mut |_| {}).await
    }

    /// Runs a command like [`run`](Self::run) and passes each piece of output to `observer`.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    async fn run_with_observer(
        &self,
        request: SpawnRequest,
        observer: &mut (dyn for<'c> FnMut(&'c OutputChunk) + Send),
    ) -> Result<CommandOutput, SandboxError> {
        let empty = HeadTail::new(CAPTURE_BYTES / 2, CAPTURE_BYTES / 2);
        let (mut stdout, mut stderr) = (empty.clone(), empty);
        let mut sink = |chunk: OutputChunk| {
            match chunk.channel {
                Channel::Stdout => stdout.push(&chunk.bytes),
                Channel::Stderr => stderr.push(&chunk.bytes),
            }
            observer(&chunk);
        };
        let exit = self.exec(request, &mut sink).await?;
        Ok(CommandOutput::new(exit, stdout.finish(), stderr.finish()))
    }

    /// Reads a whole file of at most `limit_bytes` into memory.
    ///
    /// # Errors
    /// As [`Sandbox::read`]; [`SandboxErrorKind::InvalidInput`] if the file is larger.
    async fn read_bytes(
        &self,
        path: &SandboxPath,
        limit_bytes: u64,
    ) -> Result<Bytes, SandboxError> {
        let range = ByteRange::new(0, limit_bytes.saturating_add(1));
        let mut stream = self.read(path, range).await?;
        let mut bytes = BytesMut::new();
        while let Some(piece) = stream.next().await {
            bytes.extend_from_slice(&piece?);
        }
        if bytes.len() as u64 > limit_bytes {
            let message = format!("`{path}` has more than {limit_bytes} bytes");
            return Err(SandboxError::invalid_input(message));
        }
        Ok(bytes.freeze())
    }

    /// Writes a whole file from memory.
    ///
    /// # Errors
    /// As [`Sandbox::write`].
    async fn write_bytes(&self, path: &SandboxPath, data: Bytes) -> Result<(), SandboxError> {
        let options = WriteOptions::default().with_size(data.len() as u64);
        self.write(path, options, Box::pin(stream::iter([Ok(data)])))
            .await
    }

    /// Returns whether a path is a regular file, following links within the sandbox.
    ///
    /// # Errors
    /// If the sandbox can't tell. A path that doesn't exist, is invalid or leads out is not a file.
    async fn is_file(&self, path: &SandboxPath) -> Result<bool, SandboxError> {
        match self.read(path, ByteRange::new(0, 0)).await {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                SandboxErrorKind::NotFound
                | SandboxErrorKind::NotAFile
                | SandboxErrorKind::NotADirectory
                | SandboxErrorKind::InvalidInput
                | SandboxErrorKind::OutsideSandbox => Ok(false),
                _ => Err(error),
            },
        }
    }

    /// Copies a file or directory of the host into the sandbox, at `to`.
    ///
    /// Directories are copied recursively. Links to files are followed if they stay within `from`.
    /// Entries that can't be copied (pipes, dangling links) are skipped and reported.
    ///
    /// # Errors
    /// If `from` itself can't be read, or the sandbox fails.
    async fn upload(&self, from: &Path, to: &SandboxPath) -> Result<UploadedFiles, SandboxError> {
        self.upload_tree(HostTree::new(from), to).await
    }

    /// Copies a tree of the host into the sandbox, at `to`.
    ///
    /// # Errors
    /// As [`upload`](Self::upload).
    async fn upload_tree(
        &self,
        mut tree: HostTree,
        to: &SandboxPath,
    ) -> Result<UploadedFiles, SandboxError> {
        let host = HostThread::start()?;
        let mut uploaded = UploadedFiles::default();
        loop {
            let (entry, base);
            base = to.clone();
            (entry, tree) = host
                .run(move || tree.next(&base).map(|entry| (entry, tree)))
                .await?;
            let file = match entry {
                None => return Ok(uploaded),
                Some(HostEntry::File(file)) => file,
                Some(HostEntry::Directory(path)) => {
                    self.mkdir(&path).await?;
                    continue;
                }
                Some(HostEntry::Refused(refused)) => {
                    uploaded.refused.push(refused);
                    continue;
                }
            };
            let options = WriteOptions::default()
                .with_mode(file.mode)
                .with_size(file.size_bytes);
            let copied = UploadedFile {
                from: file.from.clone(),
                to: file.to.clone(),
                size_bytes: file.size_bytes,
            };
            let data = file.into_stream(host.clone());
            match self.write(&copied.to, options, data).await {
                Ok(()) => uploaded.files.push(copied),
                // The file changed while it was read.
                Err(error) if error.kind() == SandboxErrorKind::InvalidInput => {
                    let from = copied.from.display().to_string();
                    let refused = RefusedFile::new(from, error.to_string());
                    uploaded.refused.push(refused);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Copies a regular file to the host atomically, with its mode, and returns its size.
    ///
    /// # Errors
    /// As [`Sandbox::read`], or if the host's file can't be written.
    async fn download(&self, from: &SandboxPath, to: &Path) -> Result<u64, SandboxError> {
        let mode = file_mode(&self.stat(from).await?);
        let data = self.read(from, ByteRange::all()).await?;
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).to_owned();
        let host = HostThread::start()?;
        let file = write_temporary(&host, directory, mode, data).await?;
        let to = to.to_owned();
        host.run(move || {
            file.rename(&to).map_err(|error| {
                SandboxError::io(format!("failed to write `{}`", to.display()), error)
            })
        })
        .await
    }

    /// Copies a regular file into another sandbox of any backend.
    ///
    /// # Errors
    /// As [`Sandbox::read`] here and [`Sandbox::write`] there.
    async fn copy_to(
        &self,
        from: &SandboxPath,
        other: &dyn Sandbox,
        to: &SandboxPath,
    ) -> Result<(), SandboxError> {
        let info = self.stat(from).await?;
        let mut options = WriteOptions::default();
        if info.kind == FileKind::File {
            options = options.with_size(info.size_bytes);
        }
        if let Some(mode) = file_mode(&info) {
            options = options.with_mode(mode);
        }
        other
            .write(to, options, self.read(from, ByteRange::all()).await?)
            .await
    }

    /// Copies output files to a directory of the host, at their paths below the working directory.
    ///
    /// A path named twice is saved once. These are refused: an empty path, NUL, `..`, a [reserved
    /// name](super::reserved_name), a directory or special file, a path outside the working directory, a link that
    /// leads out, a file that is too large, and two paths that would be one file on the host. All files are
    /// copied before the first is put in place, so the output directory may overlap the working
    /// directory; each file appears atomically. Links of the output directory are not followed, and holes stay
    /// holes. What happens to files that exist is in `options`.
    ///
    /// # Errors
    /// If the output directory can't be created or written, or the sandbox is gone.
    async fn save_outputs(
        &self,
        paths: &[String],
        output_directory: &Path,
        options: OutputOptions,
    ) -> Result<SavedOutputs, SandboxError> {
        let mut outputs = SavedOutputs::default();
        if paths.is_empty() {
            return Ok(outputs);
        }
        let host = HostThread::start()?;
        let staging = Staging::create(&host, output_directory.to_owned()).await?;
        let max_bytes = options.max_file_bytes.unwrap_or(u64::MAX);
        let mut staged = Vec::new();
        for source in unique(paths) {
            match stage(self, source, &host, &staging, max_bytes).await {
                Ok(file) => staged.push(file),
                Err(error) => outputs.refuse(source, error)?,
            }
        }
        staging.put_in_place(&host, staged, outputs, options).await
    }

    /// Finds the files of the working directory that each name stands for: a file, all files below a directory, or
    /// those that match a pattern such as `charts/**/*.png`.
    ///
    /// # Errors
    /// If the sandbox is gone, or its files can't be listed.
    async fn matching_files(&self, names: &[String]) -> Result<MatchedFiles, SandboxError> {
        let base = SandboxPath::working_directory();
        let mut matched = MatchedFiles::default();
        let mut walk = None;
        for name in names {
            let path = SandboxPath::new(name).ok();
            if let Some(path) = &path
                && self.is_file(path).await?
            {
                matched.files.push(name.clone());
                continue;
            }
            let relative = path.and_then(|path| match path.is_absolute() {
                true => path.strip_prefix(&self.info().working_directory),
                false => Some(path),
            });
            let found = match (relative, &mut walk) {
                (None, _) => Err(matching::NO_FILE),
                (Some(path), Some(walk)) => matching::find(&path, walk),
                (Some(path), none) => {
                    let walk = none.insert(self.walk(&base, matching::MAX_ENTRIES).await?);
                    matching::find(&path, walk)
                }
            };
            match found {
                Ok(found) => {
                    matched.files.extend(found.files);
                    matched.refused.extend(found.refused);
                }
                Err(reason) => matched.refused.push(RefusedFile::new(name, reason)),
            }
        }
        Ok(matched)
    }

    /// Describes the files of `directory` that were created or changed between two walks of it, and copies them into `sink`.
    ///
    /// Each changed file is read once, for its digest, too. The walks do not show which process changed a file:
    /// overlapping calls may both report a file.
    ///
    /// # Errors
    /// If the sandbox is gone.
    async fn artifacts(
        &self,
        directory: &SandboxPath,
        before: &Walk,
        after: &Walk,
        limits: ArtifactLimits,
        sink: &dyn ArtifactSink,
    ) -> Result<Artifacts, SandboxError> {
        artifacts::artifacts(self, directory, (before, after), limits, sink).await
    }

    /// Copies output files into another sandbox, at the same paths below its working directory.
    ///
    /// # Errors
    /// If one of the sandboxes is gone.
    async fn copy_outputs_to(
        &self,
        paths: &[String],
        other: &dyn Sandbox,
    ) -> Result<SavedOutputs, SandboxError> {
        let mut outputs = SavedOutputs::default();
        for source in unique(paths) {
            let copied = async {
                let path = output_path(source, &self.info().working_directory)?;
                self.copy_to(&path, other, &path).await?;
                let size_bytes = other.stat(&path).await?.size_bytes;
                Ok::<_, SandboxError>(SavedFile {
                    source: source.clone(),
                    path: PathBuf::from(path.to_string()),
                    size_bytes,
                    renamed: false,
                    sha256: None,
                })
            };
            match copied.await {
                Ok(file) => outputs.saved.push(file),
                Err(error) => outputs.refuse(source, error)?,
            }
        }
        Ok(outputs)
    }
}

#[async_trait]
impl<S: Sandbox + ?Sized> SandboxExt for S {}

mod sealed {
    pub trait SealedSandbox {}
    impl<S: super::Sandbox + ?Sized> SealedSandbox for S {}
}

/// Returns the mode for a copy. A link's own mode allows everything and is not the target's.
fn file_mode(info: &FileInfo) -> Option<u32> {
    info.mode.filter(|_| info.kind == FileKind::File)
}

/// Returns each path once, in order.
fn unique(paths: &[String]) -> IndexSet<&String> {
    paths.iter().collect()
}

/// Copies one output file into the staging directory.
async fn stage<S: Sandbox + ?Sized>(
    sandbox: &S,
    source: &str,
    host: &HostThread,
    staging: &Staging,
    max_bytes: u64,
) -> Result<StagedFile, SandboxError> {
    let path = output_path(source, &sandbox.info().working_directory)?;
    let info = sandbox.stat(&path).await?;
    let room = match max_bytes <= staging.free_bytes {
        true => Room {
            bytes: max_bytes,
            words: "allowed",
        },
        false => Room {
            bytes: staging.free_bytes,
            words: "free on the disk",
        },
    };
    // A link does not tell the size of its target.
    if info.kind == FileKind::File {
        room.check(info.size_bytes)?;
    }
    let store =
        |content| write_temporary(host, staging.directory.clone(), file_mode(&info), content);
    let (file, artifact) = copy_into(sandbox, &path, &path, room, store).await?;
    Ok(StagedFile {
        source: source.to_owned(),
        relative: PathBuf::from(path.to_string()),
        file,
        sha256: artifact.sha256,
    })
}

/// Returns the path of an output below the working directory.
fn output_path(source: &str, working_directory: &SandboxPath) -> Result<SandboxPath, SandboxError> {
    let refuse = |message: &str| SandboxError::invalid_input(message);
    if source.is_empty() {
        return Err(refuse("the path is empty"));
    }
    if source.split('/').any(|component| component == "..") {
        return Err(refuse("the path contains `..`"));
    }
    let path = SandboxPath::new(source)?;
    let path = if path.is_absolute() {
        path.strip_prefix(working_directory)
            .ok_or_else(|| refuse("the path is outside the working directory"))?
    } else {
        path
    };
    if path.is_base() {
        return Err(refuse("the path names a directory, not a file"));
    }
    check_reserved(&path)?;
    Ok(path)
}
