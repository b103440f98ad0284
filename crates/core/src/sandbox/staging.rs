//! Staging of output files: complete copies that are not in place yet.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::host::{HostThread, TemporaryFile};
use super::{RefusedFile, SandboxError, SavedFile, SavedOutputs};
use crate::ids::unique_id;

/// A directory inside the output directory, so that putting a copy in place is a rename. Removed
/// when dropped.
pub(super) struct Staging {
    output_directory: PathBuf,
    pub(super) directory: PathBuf,
}

/// A complete copy of one output file.
pub(super) struct StagedFile {
    pub(super) source: String,
    /// Its path below the output directory.
    pub(super) relative: PathBuf,
    pub(super) file: TemporaryFile,
}

impl Staging {
    pub(super) async fn create(
        host: &HostThread,
        output_directory: PathBuf,
    ) -> Result<Self, SandboxError> {
        host.run(move || {
            let directory = output_directory.join(format!(".cantle-{}", unique_id()));
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
        })
        .await
    }

    /// Moves the copies to their final names.
    pub(super) async fn put_in_place(
        self,
        host: &HostThread,
        staged: Vec<StagedFile>,
        mut outputs: SavedOutputs,
    ) -> Result<SavedOutputs, SandboxError> {
        host.run(move || {
            let mut placed = PlacedFiles::default();
            for file in staged {
                let source = file.source.clone();
                match placed.place(&self.output_directory, file) {
                    Ok(file) => outputs.saved.push(file),
                    Err(error) => {
                        let refused = RefusedFile::new(source, error.to_string());
                        outputs.refused.push(refused);
                    }
                }
            }
            Ok(outputs)
        })
        .await
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// The files that were put in place, by identity: on a file system that ignores case, or through a
/// link, two names can be one file.
#[derive(Default)]
struct PlacedFiles(HashMap<FileIdentity, String>);

impl PlacedFiles {
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
        let path = output_directory.join(&relative);
        if let Some(other) = identity(&path).and_then(|identity| self.0.get(&identity)) {
            let message = format!("it would replace `{other}`, another output of this run");
            return Err(io::Error::other(message));
        }
        let size_bytes = file.rename(&path)?;
        if let Some(identity) = identity(&path) {
            self.0.insert(identity, source.clone());
        }
        Ok(SavedFile {
            source,
            path,
            size_bytes,
        })
    }
}

#[cfg(unix)]
type FileIdentity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<FileIdentity> {
    use std::os::unix::fs::MetadataExt as _;
    let metadata = fs::symlink_metadata(path).ok()?;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
type FileIdentity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<FileIdentity> {
    path.canonicalize().ok()
}
