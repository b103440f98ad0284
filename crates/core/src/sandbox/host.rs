//! The bridge to the host's file system, for uploads and outputs.
//!
//! Core has no runtime, and blocking calls don't belong on one. So the host's side of a transfer
//! runs on a thread of its own, and bytes cross in pieces over a bounded channel: the slower side
//! sets the pace and memory stays bounded.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream;
use tokio::sync::{mpsc, oneshot};

use super::{ByteStream, SandboxError, SandboxErrorKind, SandboxPath};
use crate::ids::fresh_id;

const PIECE_BYTES: usize = 128 * 1024;
const PIECES_IN_FLIGHT: usize = 4;

/// What an upload copied, and what it passed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadedFiles {
    /// Files copied, in the order they were met.
    pub files: Vec<UploadedFile>,
    /// What could not be copied, and why.
    pub refused: Vec<Refusal>,
}

/// One file copied into a sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UploadedFile {
    /// Where it came from.
    pub from: PathBuf,
    /// Where it is now.
    pub to: SandboxPath,
    /// Its size.
    pub size_bytes: u64,
}

impl UploadedFile {
    pub(super) fn refused(self, reason: String) -> Refusal {
        Refusal::new(self.from.display().to_string(), reason)
    }
}

/// What a run's results were saved as.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedOutputs {
    /// Files saved, in the order they were named.
    pub saved: Vec<SavedFile>,
    /// What was refused, and why.
    pub refused: Vec<Refusal>,
}

/// One file saved on the host.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SavedFile {
    /// The path as it was named.
    pub source: String,
    /// Where it is: on the host, or in the sandbox it was handed over to.
    pub path: PathBuf,
    /// Its size.
    pub size_bytes: u64,
}

/// Something that was not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// What it is called where it comes from.
    pub source: String,
    /// Why it was not copied.
    pub reason: String,
}

impl Refusal {
    pub(super) fn new(source: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            source: source.into(),
            reason: reason.into(),
        }
    }
}

/// What a walk over a tree of the host meets.
pub(super) enum TreeItem {
    Directory(SandboxPath),
    File(TreeFile),
    Refused(Refusal),
    Failed(SandboxError),
}

pub(super) struct TreeFile {
    from: PathBuf,
    pub(super) to: SandboxPath,
    pub(super) mode: u32,
    pub(super) size_bytes: u64,
    data: mpsc::Receiver<Result<Bytes, SandboxError>>,
}

impl TreeFile {
    pub(super) fn into_stream(self) -> (UploadedFile, ByteStream) {
        let report = UploadedFile {
            from: self.from,
            to: self.to,
            size_bytes: self.size_bytes,
        };
        let data = stream::unfold(self.data, |mut data| async move {
            data.recv().await.map(|piece| (piece, data))
        });
        (report, Box::pin(data))
    }
}

/// Walks a file or directory of the host and reads its files one after another. Dropping the
/// receiver ends the walk.
pub(super) fn read_tree(
    from: PathBuf,
    to: SandboxPath,
) -> Result<mpsc::Receiver<TreeItem>, SandboxError> {
    let (items, receiver) = mpsc::channel(1);
    thread(move || {
        let walk = Walk {
            root: from.canonicalize().unwrap_or_else(|_| from.clone()),
            items,
        };
        if let Err(Stop::Failed(error)) = walk.visit(&from, to, true) {
            let _ = walk.items.blocking_send(TreeItem::Failed(error));
        }
    })?;
    Ok(receiver)
}

struct Walk {
    /// The tree's real path: links inside the tree must stay below it.
    root: PathBuf,
    items: mpsc::Sender<TreeItem>,
}

enum Stop {
    Failed(SandboxError),
    /// Nobody wants the rest.
    Abandoned,
}

impl Walk {
    fn visit(&self, from: &Path, to: SandboxPath, top: bool) -> Result<(), Stop> {
        match self.visit_one(from, to, top) {
            // What was asked for by name must be there; what a directory holds may be odd.
            Err(Problem::Entry(error)) if top => {
                let doing = format!("failed to read `{}`", from.display());
                Err(Stop::Failed(SandboxError::io(doing, error)))
            }
            Err(Problem::Entry(error)) => self.send(TreeItem::Refused(Refusal::new(
                from.display().to_string(),
                error.to_string(),
            ))),
            Err(Problem::Stop(stop)) => Err(stop),
            Ok(()) => Ok(()),
        }
    }

    fn visit_one(&self, from: &Path, to: SandboxPath, top: bool) -> Result<(), Problem> {
        let is_link = fs::symlink_metadata(from)?.is_symlink();
        if is_link && !from.canonicalize()?.starts_with(&self.root) {
            return Err(io::Error::other("the link leads out of the directory").into());
        }
        let metadata = fs::metadata(from)?;
        if metadata.is_dir() {
            // A link to a directory above would never end.
            if is_link && !top {
                return Err(io::Error::other("a link to a directory is not followed").into());
            }
            self.send(TreeItem::Directory(to.clone()))?;
            let mut entries = fs::read_dir(from)?.collect::<Result<Vec<_>, _>>()?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let below = to.join(entry.file_name().as_encoded_bytes());
                let below = below.map_err(|error| io::Error::other(error.to_string()))?;
                self.visit(&entry.path(), below, false)?;
            }
            return Ok(());
        }
        if !metadata.is_file() {
            return Err(io::Error::other("it is neither a file nor a directory").into());
        }
        let mut file = File::open(from)?;
        let (pieces, data) = mpsc::channel(PIECES_IN_FLIGHT);
        self.send(TreeItem::File(TreeFile {
            from: from.to_owned(),
            to,
            mode: mode_of(&metadata),
            size_bytes: metadata.len(),
            data,
        }))?;
        loop {
            let mut piece = vec![0; PIECE_BYTES.min(metadata.len() as usize + 1)];
            let read = match file.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let doing = format!("failed to read `{}`", from.display());
                    let _ = pieces.blocking_send(Err(SandboxError::io(doing, error)));
                    return Ok(());
                }
            };
            piece.truncate(read);
            // The receiver is gone where the write failed; it reports that itself.
            if pieces.blocking_send(Ok(piece.into())).is_err() {
                return Ok(());
            }
        }
    }

    fn send(&self, item: TreeItem) -> Result<(), Stop> {
        self.items.blocking_send(item).map_err(|_| Stop::Abandoned)
    }
}

enum Problem {
    Entry(io::Error),
    Stop(Stop),
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::Entry(error)
    }
}

impl From<Stop> for Problem {
    fn from(stop: Stop) -> Self {
        Self::Stop(stop)
    }
}

#[cfg(unix)]
fn mode_of(metadata: &fs::Metadata) -> u32 {
    use std::os::unix::fs::PermissionsExt as _;
    metadata.permissions().mode() & 0o777
}

#[cfg(not(unix))]
fn mode_of(_: &fs::Metadata) -> u32 {
    0o644
}

/// A complete file under a name that nobody knows; removed when dropped.
pub(super) struct TemporaryFile {
    path: PathBuf,
    pub(super) size_bytes: u64,
    persisted: bool,
}

impl TemporaryFile {
    /// Moves the file to its name, over a file or a link that has it.
    fn rename(mut self, to: &Path) -> io::Result<u64> {
        fs::rename(&self.path, to)?;
        self.persisted = true;
        Ok(self.size_bytes)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.persisted {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Writes a stream to a new file in `directory`, and syncs it.
pub(super) async fn write_temporary(
    directory: PathBuf,
    mode: Option<u32>,
    mut data: ByteStream,
) -> Result<TemporaryFile, SandboxError> {
    let (pieces, mut received) = mpsc::channel::<Bytes>(PIECES_IN_FLIGHT);
    let written = on_thread(move || {
        let path = directory.join(format!(".cantle-{}", fresh_id()));
        let failed =
            |e| SandboxError::io(format!("failed to write in `{}`", directory.display()), e);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(failed)?;
        let mut temporary = TemporaryFile {
            path,
            size_bytes: 0,
            persisted: false,
        };
        while let Some(piece) = received.blocking_recv() {
            file.write_all(&piece).map_err(failed)?;
            temporary.size_bytes += piece.len() as u64;
        }
        set_mode(&file, mode)
            .and_then(|()| file.sync_all())
            .map_err(failed)?;
        Ok(temporary)
    })?;
    let mut failure = None;
    while let Some(piece) = data.next().await {
        match piece {
            // The thread is gone where writing failed; it says why.
            Ok(piece) => {
                if pieces.send(piece).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    drop(pieces);
    let temporary = written.await?;
    failure.map_or(Ok(temporary), Err)
}

#[cfg(unix)]
fn set_mode(file: &File, mode: Option<u32>) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    mode.map_or(Ok(()), |mode| {
        file.set_permissions(fs::Permissions::from_mode(mode & 0o777))
    })
}

#[cfg(not(unix))]
fn set_mode(_: &File, _: Option<u32>) -> io::Result<()> {
    Ok(())
}

/// Gives a temporary file its name.
pub(super) async fn persist(file: TemporaryFile, to: PathBuf) -> Result<u64, SandboxError> {
    on_thread(move || {
        file.rename(&to)
            .map_err(|error| SandboxError::io(format!("failed to write `{}`", to.display()), error))
    })?
    .await
}

/// A directory for copies that are not in place yet, inside the output directory so that putting
/// them in place is a rename. Removed when dropped.
pub(super) struct Staging {
    output_directory: PathBuf,
    directory: PathBuf,
}

/// A copy that waits for its place.
pub(super) struct StagedFile {
    source: String,
    relative: PathBuf,
    file: TemporaryFile,
}

impl StagedFile {
    pub(super) fn new(source: &str, relative: PathBuf, file: TemporaryFile) -> Self {
        Self {
            source: source.to_owned(),
            relative,
            file,
        }
    }
}

impl Staging {
    pub(super) async fn in_directory(output_directory: PathBuf) -> Result<Self, SandboxError> {
        on_thread(move || {
            let directory = output_directory.join(format!(".cantle-{}", fresh_id()));
            fs::create_dir_all(&directory).map_err(|error| {
                let doing = format!(
                    "failed to write in the output directory `{}`",
                    output_directory.display()
                );
                SandboxError::io(doing, error)
            })?;
            Ok(Self {
                output_directory,
                directory,
            })
        })?
        .await
    }

    pub(super) fn directory(&self) -> PathBuf {
        self.directory.clone()
    }

    pub(super) async fn put_in_place(
        self,
        staged: Vec<StagedFile>,
        saved: &mut SavedOutputs,
    ) -> Result<(), SandboxError> {
        let (files, refused) = on_thread(move || {
            let mut placed = Placed::default();
            let mut files = Vec::new();
            let mut refused = Vec::new();
            for file in staged {
                let source = file.source.clone();
                match placed.place(&self.output_directory, file) {
                    Ok(file) => files.push(file),
                    Err(error) => refused.push(Refusal::new(source, error.to_string())),
                }
            }
            Ok((files, refused))
        })?
        .await?;
        saved.saved.extend(files);
        saved.refused.extend(refused);
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// What this save has put in place, by identity and not by name: on a file system that ignores
/// case, or over a link, two names can be one file.
#[derive(Default)]
struct Placed(HashMap<FileIdentity, String>);

impl Placed {
    fn place(&mut self, output_directory: &Path, staged: StagedFile) -> io::Result<SavedFile> {
        let StagedFile {
            source,
            relative,
            file,
        } = staged;
        let mut directory = output_directory.to_owned();
        for component in relative.parent().into_iter().flat_map(Path::components) {
            directory.push(component);
            match fs::symlink_metadata(&directory) {
                Ok(metadata) if metadata.is_dir() => {}
                Ok(_) => {
                    let message = format!("`{}` is in the way", directory.display());
                    return Err(io::Error::other(message));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir(&directory)?;
                }
                Err(error) => return Err(error),
            }
        }
        let to = output_directory.join(&relative);
        if let Some(claimed) = identity(&to).and_then(|identity| self.0.get(&identity)) {
            let message = format!("it would replace `{claimed}`, another output of this run");
            return Err(io::Error::other(message));
        }
        let size_bytes = file.rename(&to)?;
        if let Some(identity) = identity(&to) {
            self.0.insert(identity, source.clone());
        }
        Ok(SavedFile {
            source,
            path: to,
            size_bytes,
        })
    }
}

#[cfg(unix)]
type FileIdentity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    fs::symlink_metadata(path)
        .ok()
        .map(|metadata| (metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
type FileIdentity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<FileIdentity> {
    path.canonicalize().ok()
}

/// Runs blocking work on a thread of its own.
fn on_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, SandboxError> + Send + 'static,
) -> Result<impl Future<Output = Result<T, SandboxError>>, SandboxError> {
    let (done, result) = oneshot::channel();
    thread(move || {
        // The receiver is gone where the caller was cancelled.
        let _ = done.send(work());
    })?;
    Ok(async {
        result.await.unwrap_or_else(|_| {
            Err(SandboxError::new(
                SandboxErrorKind::Io,
                "the file thread ended unexpectedly",
            ))
        })
    })
}

fn thread(work: impl FnOnce() + Send + 'static) -> Result<(), SandboxError> {
    std::thread::Builder::new()
        .name("cantle-files".to_owned())
        .spawn(work)
        .map(drop)
        .map_err(|error| SandboxError::io("failed to start a thread for files", error))
}
