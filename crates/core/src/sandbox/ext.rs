//! What can be built from the [`Sandbox`] trait: the same for every backend.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt as _;
use futures_util::stream;

use super::output::Capture;
use super::{
    ByteRange, CommandOutput, Exit, FileInfo, FileKind, OutputChunk, Sandbox, SandboxError,
    SandboxErrorKind, SandboxPath, SavedOutputs, SpawnRequest, UploadedFiles, WriteOptions, host,
};

/// Bytes of each channel that [`SandboxExt::run`] keeps: enough for 20,000 characters of any kind.
const CAPTURE_BYTES: usize = 80_000;

/// Conveniences on top of [`Sandbox`]. Sealed: every sandbox has them, none overrides them.
#[async_trait]
pub trait SandboxExt: Sandbox + sealed::Sealed {
    /// Runs a command to its end; `sink` gets the output as it comes and sets the pace.
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
        let mut capture = Capture::new(CAPTURE_BYTES);
        let exit = self
            .exec(request, &mut |chunk| capture.push(&chunk))
            .await?;
        Ok(capture.finish(exit))
    }

    /// Runs a command like [`run`](Self::run), and shows its output to `watch` as it comes.
    ///
    /// # Errors
    /// As [`exec`](Self::exec).
    async fn run_watched(
        &self,
        request: SpawnRequest,
        watch: &mut (dyn for<'c> FnMut(&'c OutputChunk) + Send),
    ) -> Result<CommandOutput, SandboxError> {
        let mut capture = Capture::new(CAPTURE_BYTES);
        let mut sink = |chunk: OutputChunk| {
            capture.push(&chunk);
            watch(&chunk);
        };
        let exit = self.exec(request, &mut sink).await?;
        Ok(capture.finish(exit))
    }

    /// Reads a whole file of at most `limit_bytes`.
    ///
    /// # Errors
    /// As [`Sandbox::read`]; [`SandboxErrorKind::InvalidInput`] where the file is larger.
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
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        Ok(bytes.freeze())
    }

    /// Writes a whole file that is in memory.
    ///
    /// # Errors
    /// As [`Sandbox::write`].
    async fn write_bytes(&self, path: &SandboxPath, data: Bytes) -> Result<(), SandboxError> {
        let options = WriteOptions::default().with_size(data.len() as u64);
        self.write(path, options, Box::pin(stream::iter([Ok(data)])))
            .await
    }

    /// Whether a regular file is at a path, links followed within the sandbox.
    ///
    /// # Errors
    /// Where that can't be told; a path that is missing, leads out or can't be (it is too long) is
    /// simply no file.
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
    /// Directories are copied with all that is in them. Links inside a directory are followed as
    /// long as they stay in it. What can't be copied (a pipe, a dangling link) is reported and
    /// passed over.
    ///
    /// # Errors
    /// Where `from` itself can't be read, or the sandbox fails.
    async fn upload(&self, from: &Path, to: &SandboxPath) -> Result<UploadedFiles, SandboxError> {
        let mut files = host::read_tree(from.to_owned(), to.clone())?;
        let mut uploaded = UploadedFiles::default();
        while let Some(item) = files.recv().await {
            match item {
                host::TreeItem::Directory(path) => self.mkdir(&path).await?,
                host::TreeItem::Refused(refusal) => uploaded.refused.push(refusal),
                host::TreeItem::Failed(error) => return Err(error),
                host::TreeItem::File(file) => {
                    let options = WriteOptions::default()
                        .with_mode(file.mode)
                        .with_size(file.size_bytes);
                    let path = file.to.clone();
                    let (report, data) = file.into_stream();
                    match self.write(&path, options, data).await {
                        Ok(()) => uploaded.files.push(report),
                        // A file that changed while it was read is its own failure, not ours.
                        Err(error) if error.kind() == SandboxErrorKind::InvalidInput => {
                            uploaded.refused.push(report.refused(error.to_string()));
                        }
                        Err(error) => return Err(error),
                    }
                }
            }
        }
        Ok(uploaded)
    }

    /// Copies a regular file out to the host, whole or not at all. Its mode is kept.
    ///
    /// # Errors
    /// As [`Sandbox::read`], or where the host's file can't be written.
    async fn download(&self, from: &SandboxPath, to: &Path) -> Result<u64, SandboxError> {
        let mode = file_mode(&self.stat(from).await?);
        let data = self.read(from, ByteRange::all()).await?;
        let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
        let directory = directory.unwrap_or(Path::new(".")).to_owned();
        let written = host::write_temporary(directory, mode, data).await?;
        host::persist(written, to.to_owned()).await
    }

    /// Copies a regular file into another sandbox, in pieces, of this backend or another one.
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

    /// Saves the files that a run names as its results, keeping their relative paths.
    ///
    /// A path named twice is saved once. Refused, each with its reason: an empty path, NUL, `..`, a
    /// directory or special file, a path outside the working directory, a link that leads out, two
    /// paths that would be one file on the host, and a link in the output directory's own tree.
    /// Everything is copied before anything is put in place, so an output directory may overlap the
    /// working directory; each file appears whole or not at all. Sources stay.
    ///
    /// # Errors
    /// Where the output directory can't be made or written, or the sandbox is gone.
    async fn save_outputs(
        &self,
        paths: &[String],
        output_directory: &Path,
    ) -> Result<SavedOutputs, SandboxError> {
        let mut saved = SavedOutputs::default();
        if paths.is_empty() {
            return Ok(saved);
        }
        let staging = host::Staging::in_directory(output_directory.to_owned()).await?;
        let mut staged = Vec::new();
        let mut seen: Vec<&String> = Vec::new();
        for source in paths {
            if seen.contains(&source) {
                continue;
            }
            seen.push(source);
            match stage(self, source, &staging).await {
                Ok(file) => staged.push(file),
                Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error),
                Err(error) => saved
                    .refused
                    .push(host::Refusal::new(source, error.to_string())),
            }
        }
        staging.put_in_place(staged, &mut saved).await?;
        Ok(saved)
    }

    /// The same into another sandbox, file by file, at the same paths below its working directory.
    ///
    /// # Errors
    /// Where one of the sandboxes is gone.
    async fn hand_over(
        &self,
        paths: &[String],
        other: &dyn Sandbox,
    ) -> Result<SavedOutputs, SandboxError> {
        let mut saved = SavedOutputs::default();
        let mut seen: Vec<&String> = Vec::new();
        for source in paths {
            if seen.contains(&source) {
                continue;
            }
            seen.push(source);
            let copied = async {
                let path = output_path(source, &self.info().working_directory)?;
                self.copy_to(&path, other, &path).await?;
                let size_bytes = other.stat(&path).await?.size_bytes;
                Ok::<_, SandboxError>(host::SavedFile {
                    source: source.clone(),
                    path: PathBuf::from(path.to_string()),
                    size_bytes,
                })
            };
            match copied.await {
                Ok(file) => saved.saved.push(file),
                Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error),
                Err(error) => saved
                    .refused
                    .push(host::Refusal::new(source, error.to_string())),
            }
        }
        Ok(saved)
    }
}

#[async_trait]
impl<S: Sandbox + ?Sized> SandboxExt for S {}

mod sealed {
    pub trait Sealed {}
    impl<S: super::Sandbox + ?Sized> Sealed for S {}
}

/// The mode that a copy gets. That of a link says nothing about the file it leads to, and allows
/// everything.
fn file_mode(info: &FileInfo) -> Option<u32> {
    info.mode.filter(|_| info.kind == FileKind::File)
}

/// Copies one output to where it waits for its place.
async fn stage<S: Sandbox + ?Sized>(
    sandbox: &S,
    source: &str,
    staging: &host::Staging,
) -> Result<host::StagedFile, SandboxError> {
    let path = output_path(source, &sandbox.info().working_directory)?;
    let mode = file_mode(&sandbox.stat(&path).await?);
    let data = sandbox.read(&path, ByteRange::all()).await?;
    let file = host::write_temporary(staging.directory(), mode, data).await?;
    Ok(host::StagedFile::new(
        source,
        PathBuf::from(path.to_string()),
        file,
    ))
}

/// Where an output lies below the working directory, and so below the output directory.
fn output_path(source: &str, working_directory: &SandboxPath) -> Result<SandboxPath, SandboxError> {
    let refuse = |message: &str| SandboxError::new(SandboxErrorKind::InvalidInput, message);
    if source.is_empty() {
        return Err(refuse("the path is empty"));
    }
    if source.split('/').any(|component| component == "..") {
        return Err(refuse("the path contains `..`"));
    }
    let path = SandboxPath::new(source)?;
    let path = if path.is_absolute() {
        path.strip_root(working_directory)
            .ok_or_else(|| refuse("the path is outside the working directory"))?
    } else {
        path
    };
    if path.is_start() {
        return Err(refuse("the path names a directory, not a file"));
    }
    Ok(path)
}
