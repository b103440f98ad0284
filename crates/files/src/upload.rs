//! Writing of objects.

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

/// Writes an object, which exists once this succeeds, and never in part, and passes it to `finish`. Each size that it
/// would have is checked first. After the end of the content the rest happens even if this is dropped.
pub(crate) async fn upload<S, E, F, T>(
    objects: &Arc<dyn ObjectStore>,
    path: &Path,
    content: S,
    check_size: impl Fn(u64) -> Result<(), FilesError>,
    finish: impl FnOnce(StoredObject) -> F + Send + 'static,
) -> Result<T, FilesError>
where
    S: Stream<Item = Result<Bytes, E>> + Send,
    E: Into<Box<dyn StdError + Send + Sync>>,
    F: Future<Output = Result<T, FilesError>> + Send + 'static,
    T: Send + 'static,
{
    let writer = BufWriter::with_capacity(Arc::clone(objects), path.clone(), PART_BYTES);
    let mut incomplete = Incomplete(Some(writer.with_max_concurrency(PARTS)));
    let (mut digest, mut size_bytes) = (Sha256::new(), 0);
    let mut content = std::pin::pin!(content);
    while let Some(chunk) = content.next().await {
        let chunk = chunk.map_err(|error| {
            FilesError::new(FilesErrorKind::Source, "the content could not be read")
                .with_source(error)
        })?;
        size_bytes += chunk.len() as u64;
        check_size(size_bytes)?;
        digest.update(&chunk);
        if let Some(writer) = &mut incomplete.0 {
            writer.put(chunk).await?;
        }
    }
    let writer = incomplete.0.take();
    let (objects, path) = (Arc::clone(objects), path.clone());
    // The writer removes the parts if it fails, but not if it is dropped: a task continues without the caller.
    let end = tokio::spawn(async move {
        if let Some(mut writer) = writer {
            writer.shutdown().await.map_err(FilesError::store)?;
        }
        check_written(&*objects, &path, size_bytes).await?;
        let object = StoredObject {
            key: path.to_string(),
            size_bytes,
            sha256: format!("{:x}", digest.finalize()),
        };
        finish(object).await
    });
    end.await.map_err(FilesError::store)?
}

/// An object that is being written. Dropped before its end, it removes what was written.
struct Incomplete(Option<BufWriter>);

impl Drop for Incomplete {
    fn drop(&mut self) {
        // A store of another machine keeps, and charges for, the parts of an upload that is not aborted. The
        // task has its own deadline, and nothing waits for it.
        if let (Some(mut writer), Ok(runtime)) =
            (self.0.take(), tokio::runtime::Handle::try_current())
        {
            runtime.spawn(async move {
                let _ = tokio::time::timeout(ABORT, writer.abort()).await;
            });
        }
    }
}

/// Checks that the store has the object: a success may be the answer of something else, such as a proxy.
async fn check_written(
    objects: &dyn ObjectStore,
    path: &Path,
    size_bytes: u64,
) -> Result<(), FilesError> {
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
