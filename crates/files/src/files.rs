//! Files of owners: a store and a catalogue.

use std::error::Error as StdError;
use std::fmt;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, Stream, StreamExt as _, TryStreamExt as _};
use jiff::{Timestamp, Unit};
use object_store::{Error as ObjectError, GetOptions, GetRange, ObjectStoreExt as _};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::error::{FilesError, FilesErrorKind};
use crate::name::{media_type, safe_name};
use crate::record::{FileId, FileRecord, Quota, Usage};
use crate::records::Records;
use crate::store::FileStore;
use crate::upload::{StoredObject, upload};

/// Bytes of an owner's id.
const MAX_OWNER_BYTES: usize = 255;
/// Bytes of a record's metadata as JSON.
const MAX_METADATA_BYTES: usize = 16 << 10;
/// Files of one page.
const MAX_PAGE: u32 = 1000;

/// The content of a file, or a range of it. The last item is an error if it has another length than the record
/// says, or, for a whole file, another SHA-256.
pub type FileStream = Pin<Box<dyn Stream<Item = Result<Bytes, FilesError>> + Send + 'static>>;

/// Bounds on what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Size of one file.
    pub file_bytes: u64,
    /// Files of one owner.
    pub quota: Quota,
}

impl Limits {
    /// Creates limits.
    pub fn new(file_bytes: u64, quota: Quota) -> Self {
        Self { file_bytes, quota }
    }
}

impl Default for Limits {
    /// 2 GiB per file, and the default quota.
    fn default() -> Self {
        Self::new(2 << 30, Quota::default())
    }
}

/// Name and facts of a file that is to be stored.
#[derive(Clone, Debug)]
#[must_use]
pub struct NewFile {
    name: String,
    group: &'static str,
    run: Option<String>,
    metadata: Map<String, Value>,
}

impl NewFile {
    /// A file with a name, which [`safe_name`] makes safe.
    pub fn named(name: impl AsRef<str>) -> Self {
        Self {
            name: safe_name(name.as_ref()),
            group: "uploads",
            run: None,
            metadata: Map::new(),
        }
    }

    /// Sets the first component of the key: `uploads` by default, `generated` for what code made.
    pub fn with_group(mut self, group: &'static str) -> Self {
        self.group = group;
        self
    }

    /// Sets the run that produced the file.
    pub fn with_run(mut self, run: impl Into<String>) -> Self {
        self.run = Some(run.into());
        self
    }

    /// Adds a fact.
    pub fn with_fact(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.metadata.insert(name.to_owned(), value.into());
        self
    }
}

/// Counts of removed objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Swept {
    /// Objects without a record, and uploads that never ended.
    pub objects: u64,
    /// Their size, as far as the store tells.
    pub bytes: u64,
}

/// A store and the catalogue of its files. Cheap to clone.
#[derive(Clone)]
pub struct Files {
    store: FileStore,
    records: Arc<dyn Records>,
    limits: Limits,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut files = f.debug_struct("Files");
        files.field("store", &self.store);
        files.field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl Files {
    /// Joins a store and the catalogue that it belongs to, from now on if it belongs to none.
    ///
    /// # Errors
    /// The store fails, or belongs to another catalogue.
    pub async fn open(store: FileStore, records: impl Records) -> Result<Self, FilesError> {
        store.claim(records.identity()).await?;
        Ok(Self {
            store,
            records: Arc::new(records),
            limits: Limits::default(),
        })
    }

    /// Sets the limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Returns the store, for its signatures.
    pub fn store(&self) -> &FileStore {
        &self.store
    }

    /// Stores a file. If this is dropped after the end of the content, the file is stored all the same.
    ///
    /// # Errors
    /// The content is too large or exceeds the quota, its source fails, or the store or the catalogue does.
    /// The file is not stored then.
    pub async fn put<S, E>(
        &self,
        owner: &str,
        new: NewFile,
        content: S,
    ) -> Result<FileRecord, FilesError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        check_owner(owner)?;
        check_metadata(&new.metadata)?;
        let quota = self.limits.quota;
        let usage = self.records.usage(owner).await?;
        // Refused before the first byte is read, and during the upload; the catalogue decides in the end.
        quota.check(usage, 0)?;
        let id = Uuid::now_v7();
        // `object_store` signs encoded keys for Azure, which verifies them decoded.
        let name = new.name.replace(|it: char| !it.is_ascii(), "_");
        let key = format!("{}/{}_{name}", new.group, Uuid::new_v4().simple());
        let file_bytes = self.limits.file_bytes;
        let check_size = |size| {
            if size > file_bytes {
                let message = format!("the file is larger than the limit of {file_bytes} bytes");
                return Err(FilesError::new(FilesErrorKind::TooLarge, message));
            }
            quota.check(usage, size)
        };
        let path = self.store.path(&key)?;
        let (files, owner) = (self.clone(), owner.to_owned());
        let finish = move |object: StoredObject| async move {
            let now = Timestamp::now();
            let record = FileRecord {
                id,
                owner,
                mime_type: media_type(&new.name).to_owned(),
                filename: new.name,
                public_url: files.store.public_url(&key),
                key,
                size_bytes: object.size_bytes,
                sha256: object.sha256,
                created_at: now.round(Unit::Microsecond).unwrap_or(now),
                run: new.run,
                metadata: new.metadata,
            };
            if let Err(error) = files.records.insert(&record, quota).await {
                // After a failure of the catalogue the record may exist all the same. The sweep knows.
                if error.kind() == FilesErrorKind::QuotaExceeded {
                    let _ = files.delete_object(&record.key).await;
                }
                return Err(error);
            }
            Ok(record)
        };
        upload(self.store.objects(), &path, content, check_size, finish).await
    }

    /// Stores bytes.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub async fn put_bytes(
        &self,
        owner: &str,
        new: NewFile,
        content: impl Into<Bytes>,
    ) -> Result<FileRecord, FilesError> {
        let content = stream::iter([Ok::<_, FilesError>(content.into())]);
        self.put(owner, new, content).await
    }

    /// Returns a file's record.
    ///
    /// # Errors
    /// The owner has no such file, or the catalogue fails.
    pub async fn find(&self, owner: &str, id: FileId) -> Result<FileRecord, FilesError> {
        check_owner(owner)?;
        let found = self.records.find(owner, id).await?;
        found.ok_or_else(|| FilesError::not_found(id))
    }

    /// Returns the record of an object, whoever owns it: for a server that has checked a signature of its key.
    ///
    /// # Errors
    /// There is no such object, or the catalogue fails.
    pub async fn find_by_key(&self, key: &str) -> Result<FileRecord, FilesError> {
        let found = self.records.by_key(key).await?;
        found.ok_or_else(|| FilesError::not_found(key))
    }

    /// Returns a file's record and its content, or a range of it.
    ///
    /// # Errors
    /// The owner has no such file, the range is not within it, or the store or the catalogue fails.
    pub async fn read(
        &self,
        owner: &str,
        id: FileId,
        range: Option<Range<u64>>,
    ) -> Result<(FileRecord, FileStream), FilesError> {
        let record = self.find(owner, id).await?;
        let content = self.content(&record, range).await?;
        Ok((record, content))
    }

    /// Returns the content of a file that was found, or a range of it.
    ///
    /// # Errors
    /// The range is not within the file, or the store fails.
    pub async fn content(
        &self,
        record: &FileRecord,
        range: Option<Range<u64>>,
    ) -> Result<FileStream, FilesError> {
        if let Some(range) = &range
            && (range.start > range.end || range.end > record.size_bytes)
        {
            let message = format!(
                "the range {}..{} is not within the file's {} bytes",
                range.start, range.end, record.size_bytes
            );
            return Err(FilesError::new(FilesErrorKind::InvalidInput, message));
        }
        let whole = 0..record.size_bytes;
        let range = range.filter(|range| *range != whole);
        let length = range
            .as_ref()
            .map_or(record.size_bytes, |it| it.end - it.start);
        // Stores refuse an empty range.
        if length == 0 {
            return Ok(stream::empty().boxed());
        }
        let digest = range.is_none().then(Sha256::new);
        let options = GetOptions::default().with_range(range.map(GetRange::Bounded));
        let path = self.store.path(&record.key)?;
        let object = match self.store.objects().get_opts(&path, options).await {
            Err(ObjectError::NotFound { .. }) => return Err(damaged(record)),
            object => object?,
        };
        let content = object.into_stream().map_err(FilesError::from);
        Ok(verified(content, length, digest, record.clone()).boxed())
    }

    /// Returns the content of a file of at most `limit` bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read), or the file is larger.
    pub async fn read_bytes(
        &self,
        owner: &str,
        id: FileId,
        limit: u64,
    ) -> Result<Bytes, FilesError> {
        let record = self.find(owner, id).await?;
        if record.size_bytes > limit {
            let message = format!(
                "the file has {} bytes, more than {limit}",
                record.size_bytes
            );
            return Err(FilesError::new(FilesErrorKind::TooLarge, message));
        }
        let content = self.content(&record, None).await?;
        let chunks: Vec<Bytes> = content.try_collect().await?;
        Ok(chunks.concat().into())
    }

    /// Returns an owner's files, newest first, at most 1,000 from the one after `after`.
    ///
    /// # Errors
    /// The catalogue fails.
    pub async fn list(
        &self,
        owner: &str,
        after: Option<FileId>,
        limit: u32,
    ) -> Result<Vec<FileRecord>, FilesError> {
        check_owner(owner)?;
        self.records.list(owner, after, limit.min(MAX_PAGE)).await
    }

    /// Returns all files of an owner, newest first.
    pub fn all(&self, owner: &str) -> impl Stream<Item = Result<FileRecord, FilesError>> + Send {
        let pages = stream::try_unfold(None, move |after| async move {
            let page = self.list(owner, after, MAX_PAGE).await?;
            let last = page.last().map(|record| record.id);
            let page = stream::iter(page).map(Ok);
            Ok::<_, FilesError>(last.map(|last| (page, Some(last))))
        });
        pages.try_flatten()
    }

    /// Returns what an owner has stored.
    ///
    /// # Errors
    /// The catalogue fails.
    pub async fn usage(&self, owner: &str) -> Result<Usage, FilesError> {
        check_owner(owner)?;
        self.records.usage(owner).await
    }

    /// Returns the present address of a file, if files have any.
    ///
    /// # Errors
    /// The store can't sign one.
    pub async fn url(&self, record: &FileRecord) -> Result<Option<String>, FilesError> {
        match &record.public_url {
            Some(url) => Ok(Some(url.clone())),
            None => self.store.url(&record.key).await,
        }
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// The owner has no such file, or the store or the catalogue fails. If it is the store, the record is
    /// gone, and a sweep will remove the object.
    pub async fn remove(&self, owner: &str, id: FileId) -> Result<FileRecord, FilesError> {
        check_owner(owner)?;
        let removed = self.records.remove(owner, id).await?;
        let record = removed.ok_or_else(|| FilesError::not_found(id))?;
        self.delete_object(&record.key).await?;
        Ok(record)
    }

    /// Deletes objects without a record that are older than `age`, which must exceed the time of a whole upload: its
    /// record comes last, and S3 dates an object from the beginning of its upload in parts.
    ///
    /// # Errors
    /// The store or the catalogue fails.
    pub async fn sweep(&self, age: Duration) -> Result<Swept, FilesError> {
        let store = self.store.clone();
        let staged = tokio::task::spawn_blocking(move || store.sweep_staged(age));
        let mut swept = Swept {
            objects: staged.await.unwrap_or_default(),
            bytes: 0,
        };
        let now = Timestamp::now().as_second();
        let mut objects = self.store.objects().list(Some(self.store.prefix()));
        while let Some(object) = objects.try_next().await? {
            let modified = object.last_modified.timestamp();
            let is_old =
                now.saturating_sub(modified) >= age.as_secs().try_into().unwrap_or(i64::MAX);
            let Some(key) = self.store.key_of(&object.location).filter(|_| is_old) else {
                continue;
            };
            if self.records.by_key(&key).await?.is_none() {
                self.delete_object(&key).await?;
                swept.objects += 1;
                swept.bytes += object.size;
            }
        }
        Ok(swept)
    }

    async fn delete_object(&self, key: &str) -> Result<(), FilesError> {
        match self.store.objects().delete(&self.store.path(key)?).await {
            Ok(()) | Err(ObjectError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

fn check_owner(owner: &str) -> Result<(), FilesError> {
    // PostgreSQL has no text with NUL.
    if (1..=MAX_OWNER_BYTES).contains(&owner.len()) && !owner.contains('\0') {
        return Ok(());
    }
    let message = format!("the owner of a file has 1 to {MAX_OWNER_BYTES} bytes");
    Err(FilesError::new(FilesErrorKind::InvalidInput, message))
}

fn check_metadata(metadata: &Map<String, Value>) -> Result<(), FilesError> {
    let text = serde_json::to_string(metadata).unwrap_or_default();
    if text.len() <= MAX_METADATA_BYTES {
        return Ok(());
    }
    let message = format!("the metadata of a file has more than {MAX_METADATA_BYTES} bytes");
    Err(FilesError::new(FilesErrorKind::InvalidInput, message))
}

fn damaged(record: &FileRecord) -> FilesError {
    let message = format!(
        "the stored content of `{}` is missing or damaged",
        record.filename
    );
    FilesError::new(FilesErrorKind::Damaged, message)
}

/// Ends with an error if the content has another length, or, with a digest, another SHA-256 than the record.
fn verified(
    content: impl Stream<Item = Result<Bytes, FilesError>> + Send + 'static,
    length: u64,
    digest: Option<Sha256>,
    record: FileRecord,
) -> impl Stream<Item = Result<Bytes, FilesError>> + Send + 'static {
    let start = (Box::pin(content), length, digest, record);
    stream::try_unfold(start, async |(mut content, rest, mut digest, record)| {
        let Some(chunk) = content.try_next().await? else {
            let is_same = |digest: Sha256| format!("{:x}", digest.finalize()) == record.sha256;
            return match rest == 0 && digest.is_none_or(is_same) {
                true => Ok(None),
                false => Err(damaged(&record)),
            };
        };
        let rest = rest.checked_sub(chunk.len() as u64);
        let rest = rest.ok_or_else(|| damaged(&record))?;
        if let Some(digest) = &mut digest {
            digest.update(&chunk);
        }
        Ok(Some((chunk, (content, rest, digest, record))))
    })
}
