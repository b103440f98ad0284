//! Stores that runs deliver to and get inputs from: the stored files of [`FilesArgs`], or a bucket without a catalogue.
//!
//! Files are complete on this machine before they are copied, so a store that fails costs none of them.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;

use anyhow::Context as _;
use bytes::Bytes;
use cantle::core::ids::RunId;
use cantle_files::{FileId, FileStore, Files, NewFile, safe_name};
use futures_util::{Stream, TryStreamExt as _, stream};
use serde_json::Value;
use tempfile::TempDir;
use tokio::fs::File;
use tokio_util::io::ReaderStream;
use walkdir::WalkDir;

use crate::files::{self, FilesArgs};
use crate::state_dir::StateDir;

/// The stored files, and before the id of one of them.
const FILES: &str = "files:";
/// Bytes of a file that are read at once.
const CHUNK_BYTES: usize = 1 << 20;
/// The fact that has the path of a run's file.
const PATH: &str = "path";

/// The addresses of stored files, by name and SHA-256.
pub(crate) type StoredFiles = HashMap<(String, String), String>;

/// Which stored files a command uses, and whose they are.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Stored files")]
pub(crate) struct StoreArgs {
    /// Owner of the stored files: the `user_id` that a client sends, or the ID of a principal
    #[arg(long, value_name = "ID", default_value = "local")]
    pub(crate) owner: String,

    #[command(flatten)]
    pub(crate) files: FilesArgs,
}

/// The stores that a run uses.
#[derive(Debug)]
pub(crate) struct RunStores {
    pub(crate) args: StoreArgs,
    /// The store to deliver to.
    pub(crate) target: Option<StoreTarget>,
    /// The stored files that are inputs.
    pub(crate) inputs: Vec<FileId>,
}

/// A place that a run or an export can be delivered to, besides a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreTarget {
    /// The stored files: `files:`.
    Files,
    /// A bucket, such as `s3://BUCKET/PREFIX`; each run has a prefix of its own below.
    Bucket(String),
}

impl StoreTarget {
    /// Returns the store that a path names, or `None` for a path on this machine.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let text = path.to_str()?;
        match text == FILES {
            true => Some(Self::Files),
            false => {
                files::is_bucket(text).then(|| Self::Bucket(text.trim_end_matches('/').to_owned()))
            }
        }
    }
}

/// Separates the ids of stored files, `files:ID`, from the paths of inputs.
///
/// # Errors
/// If one is no id.
pub(crate) fn split_inputs(inputs: &[PathBuf]) -> anyhow::Result<(Vec<PathBuf>, Vec<FileId>)> {
    let (mut paths, mut ids) = (Vec::new(), Vec::new());
    for input in inputs {
        match input.to_str().and_then(|text| text.strip_prefix(FILES)) {
            Some(id) => ids.push(id.parse().with_context(|| {
                format!(
                    "`{}` is not a stored file: `cantle files ls` lists the ids",
                    input.display()
                )
            })?),
            None => paths.push(input.clone()),
        }
    }
    Ok((paths, ids))
}

impl StoreArgs {
    /// Opens a store to deliver to, and checks that it can be used.
    pub(crate) async fn open(&self, target: &StoreTarget) -> anyhow::Result<OpenStore> {
        Ok(match target {
            StoreTarget::Files => OpenStore::Files(self.open_files().await?, self.owner.clone()),
            StoreTarget::Bucket(address) => {
                let store = self.files.open_bucket(address)?;
                // Credentials that are wrong are reported before the run, not after it.
                let check = store.check().await;
                check.with_context(|| format!("{address} can't be used"))?;
                let bucket: Vec<_> = address.splitn(4, '/').take(3).collect();
                OpenStore::Bucket(store, bucket.join("/"))
            }
        })
    }

    async fn open_files(&self) -> anyhow::Result<Files> {
        self.files.open(&StateDir::find()?).await
    }

    /// Copies stored files into a directory, each in one of its own, and returns their paths.
    pub(crate) async fn fetch(&self, ids: &[FileId]) -> anyhow::Result<(TempDir, Vec<PathBuf>)> {
        let directory = TempDir::with_prefix("cantle-stored-")
            .context("no directory for the stored files can be created")?;
        let files = self.open_files().await?;
        let mut paths = Vec::new();
        for id in ids {
            let (record, content) = files.read(&self.owner, *id, None).await?;
            let below = directory.path().join(id.to_string());
            // Another program may have written the name.
            let path = below.join(safe_name(&record.filename));
            let copied = async {
                tokio::fs::create_dir_all(&below).await?;
                files::copy(content, &mut File::create(&path).await?).await
            };
            copied
                .await
                .with_context(|| format!("failed to copy the stored file {id}"))?;
            paths.push(path);
        }
        Ok((directory, paths))
    }
}

/// A store that can be delivered to.
#[derive(Debug)]
pub(crate) enum OpenStore {
    /// The stored files of an owner.
    Files(Files, String),
    /// A prefix in a bucket, and the bucket's address.
    Bucket(FileStore, String),
}

impl OpenStore {
    /// Returns the addresses of the files of a run that are stored already, by name and SHA-256. A bucket needs none of
    /// them: the file gets the same key again.
    pub(crate) async fn files_of(&self, run: RunId) -> anyhow::Result<StoredFiles> {
        let mut stored = HashMap::new();
        let Self::Files(files, owner) = self else {
            return Ok(stored);
        };
        let run = run.to_string();
        let mut records = pin!(files.all(owner));
        while let Some(record) = records.try_next().await? {
            // Both ids begin with their time.
            if record.id.simple().to_string() < run {
                break;
            }
            let name = record.metadata.get(PATH).and_then(Value::as_str);
            if let Some(name) = name.filter(|_| record.run.as_ref() == Some(&run)) {
                let key = (name.to_owned(), record.sha256);
                stored.insert(key, format!("{FILES}{}", record.id));
            }
        }
        Ok(stored)
    }

    /// Copies a file of this machine, and returns its address.
    pub(crate) async fn put_file(
        &self,
        run: RunId,
        name: &str,
        path: &Path,
    ) -> anyhow::Result<String> {
        let failed = || format!("failed to store {}", path.display());
        let file = File::open(path).await.with_context(failed)?;
        let content = ReaderStream::with_capacity(file, CHUNK_BYTES);
        self.put(run, name, content).await.with_context(failed)
    }

    /// Stores a text, and returns its address.
    pub(crate) async fn put_text(
        &self,
        run: RunId,
        name: &str,
        text: String,
    ) -> anyhow::Result<String> {
        let content = stream::iter([Ok::<_, io::Error>(Bytes::from(text))]);
        self.put(run, name, content).await
    }

    async fn put(
        &self,
        run: RunId,
        name: &str,
        content: impl Stream<Item = io::Result<Bytes>> + Send,
    ) -> anyhow::Result<String> {
        match self {
            Self::Files(files, owner) => {
                let new = NewFile::named(name)
                    .with_group("runs")
                    .with_run(run.to_string())
                    .with_fact(PATH, name);
                Ok(format!(
                    "{FILES}{}",
                    files.put(owner, new, content).await?.id
                ))
            }
            Self::Bucket(store, bucket) => {
                let object = store.put_object(&format!("{run}/{name}"), content).await?;
                Ok(format!("{bucket}/{}", object.key))
            }
        }
    }

    /// Copies all files below a directory, and returns how many.
    pub(crate) async fn put_tree(&self, run: RunId, directory: &Path) -> anyhow::Result<u64> {
        let mut count = 0;
        for entry in WalkDir::new(directory) {
            let entry = entry?;
            if entry.file_type().is_file() {
                let name = text(entry.path().strip_prefix(directory)?);
                self.put_file(run, &name, entry.path()).await?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// Returns a path as text. Two paths have two texts, also if they are not UTF-8.
fn text(path: &Path) -> String {
    match path.to_str() {
        Some(text) => text.to_owned(),
        None => path
            .as_os_str()
            .as_encoded_bytes()
            .escape_ascii()
            .to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn names_that_are_not_text_stay_different() {
        let text = |name: &[u8]| text(Path::new(OsStr::from_bytes(name)));
        assert_eq!(text("dir/é.txt".as_bytes()), "dir/é.txt");
        assert_eq!(text(b"dir/\xff"), "dir/\\xff");
        assert_ne!(text(b"\xfe"), text(b"\xff"));
    }

    #[test]
    fn stores_are_told_from_paths() {
        let bucket = |text: &str| Some(StoreTarget::Bucket(text.to_owned()));
        for (path, target) in [
            ("files:", Some(StoreTarget::Files)),
            ("s3://b/p/", bucket("s3://b/p")),
            ("az://c", bucket("az://c")),
            ("out", None),
            ("files:out", None),
            ("./s3:/b", None),
        ] {
            assert_eq!(StoreTarget::of(Path::new(path)), target, "{path}");
        }
        let error = split_inputs(&["files:x".into()]).unwrap_err();
        assert!(
            error
                .to_string()
                .starts_with("`files:x` is not a stored file"),
            "{error}"
        );
    }
}
