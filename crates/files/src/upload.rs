//! One object that is being written.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use object_store::buffered::BufWriter;
use object_store::path::Path;
use object_store::{Error as ObjectError, ObjectStore, ObjectStoreExt as _};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;

use crate::error::{FilesError, FilesErrorKind};

/// Bytes of a part; smaller objects are written by one request.
const PART_BYTES: usize = 8 << 20;
/// Parts in flight, besides the one that is being filled.
const PARTS: usize = 2;
/// How long the removal of an incomplete upload may take.
const ABORT: Duration = Duration::from_secs(10);

/// An object that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredObject {
    /// Its key, with the store's prefix.
    pub key: String,
    /// Its size.
    pub size_bytes: u64,
    /// SHA-256 of its content, in hexadecimal digits.
    pub sha256: String,
}

/// An object that exists once [`finish`](Self::finish) succeeds, and never in part. Dropped before, it removes
/// what it has written.
pub(crate) struct Upload {
    objects: Arc<dyn ObjectStore>,
    path: Path,
    writer: Option<BufWriter>,
    digest: Sha256,
    size_bytes: u64,
}

impl Upload {
    pub(crate) fn new(objects: Arc<dyn ObjectStore>, path: Path) -> Self {
        let writer = BufWriter::with_capacity(Arc::clone(&objects), path.clone(), PART_BYTES)
            .with_max_concurrency(PARTS);
        Self {
            objects,
            path,
            writer: Some(writer),
            digest: Sha256::new(),
            size_bytes: 0,
        }
    }

    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    async fn write(&mut self, chunk: Bytes) -> Result<(), FilesError> {
        self.size_bytes += chunk.len() as u64;
        self.digest.update(&chunk);
        match &mut self.writer {
            Some(writer) => Ok(writer.put(chunk).await?),
            None => Err(FilesError::new(
                FilesErrorKind::Store,
                "the upload has ended",
            )),
        }
    }

    /// Writes all of a stream. Each size that it would have is checked first.
    pub(crate) async fn write_all<S, E>(
        &mut self,
        content: S,
        check: impl Fn(u64) -> Result<(), FilesError>,
    ) -> Result<(), FilesError>
    where
        S: Stream<Item = Result<Bytes, E>> + Send,
        E: Into<Box<dyn StdError + Send + Sync>>,
    {
        let mut content = std::pin::pin!(content);
        while let Some(chunk) = content.next().await {
            let chunk = chunk.map_err(|error| {
                FilesError::new(FilesErrorKind::Source, "the content could not be read")
                    .with_source(error)
            })?;
            check(self.size_bytes.saturating_add(chunk.len() as u64))?;
            self.write(chunk).await?;
        }
        Ok(())
    }

    /// Completes the object and returns its SHA-256.
    pub(crate) async fn finish(mut self) -> Result<String, FilesError> {
        if let Some(mut writer) = self.writer.take() {
            writer.shutdown().await.map_err(|error| {
                FilesError::new(FilesErrorKind::Store, "the file store failed").with_source(error)
            })?;
        }
        check(&*self.objects, &self.path, self.size_bytes).await?;
        Ok(hex(&self.digest.finalize_reset()))
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        // A store of another machine keeps, and charges for, the parts of an upload that is not aborted. The
        // task has its own deadline, and nothing waits for it.
        if let (Some(mut writer), Ok(runtime)) =
            (self.writer.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(ABORT, writer.abort()).await;
            });
        }
    }
}

/// Checks that the store has the object: a success may be the answer of something else, such as a proxy.
async fn check(objects: &dyn ObjectStore, path: &Path, size_bytes: u64) -> Result<(), FilesError> {
    let problem = match objects.head(path).await {
        Ok(found) if found.size == size_bytes => return Ok(()),
        // The credentials may allow no more than writing.
        Err(ObjectError::PermissionDenied { .. }) => return Ok(()),
        Ok(found) => format!("has {} bytes of {}", found.size, size_bytes),
        Err(ObjectError::NotFound { .. }) => "does not have it".to_owned(),
        Err(error) => return Err(error.into()),
    };
    let message = format!("the file store accepted the object `{path}`, and {problem}");
    Err(FilesError::new(FilesErrorKind::Store, message))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
