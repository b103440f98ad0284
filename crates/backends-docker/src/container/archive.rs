//! Large files through the engine's archive API, which copies them less often than a container's
//! streams.

use std::future::ready;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bollard::query_parameters::{
    DownloadFromContainerOptionsBuilder, UploadToContainerOptionsBuilder,
};
use bytes::{Bytes, BytesMut};
use cantle_core::sandbox::{ByteStream, SandboxError};
use cantle_supervisor::wire::STAGING;
use futures_util::{Stream, StreamExt as _, stream};

use super::Container;
use crate::engine::failure::failed;
use crate::relay::{Brought, StagedFile, Staging, StagingError};

/// What an archive is made of.
const BLOCK_BYTES: u64 = 512;
/// What an archive ends with.
const END_BYTES: usize = 1024;
/// What is read of records that belong to a file.
const MOST_RECORDS: u64 = 1 << 20;
/// How long the engine may take for all of a file. Whether it is still there says the container's stream.
const DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

#[async_trait]
impl Staging for Container {
    async fn put(&self, file: StagedFile, data: ByteStream) -> Result<(), StagingError> {
        let broken = Arc::default();
        let archive = archive(&file, data, Arc::clone(&broken)).map_err(|error| {
            StagingError::Itself(SandboxError::io("failed to pack a file", error))
        })?;
        let options = UploadToContainerOptionsBuilder::default()
            .path(&STAGING.to_string_lossy())
            .build();
        let body = bollard::body_try_stream(archive);
        let engine = self.engine.api().clone().with_timeout(DEADLINE);
        let put = engine.upload_to_container(&self.id, Some(options), body);
        let put = put.await;
        if let Some(error) = lock(&broken).take() {
            return Err(StagingError::Data(error));
        }
        put.map_err(|error| {
            StagingError::Itself(failed("failed to write a file to the container", error))
        })
    }

    async fn get(&self, name: &str) -> Result<Brought, SandboxError> {
        let path = format!("{}/{name}", STAGING.to_string_lossy());
        let options = DownloadFromContainerOptionsBuilder::default()
            .path(&path)
            .build();
        let engine = self.engine.api().clone().with_timeout(DEADLINE);
        let id = self.id.clone();
        let mut archive = Archive {
            pieces: Box::pin(engine.download_from_container(&id, Some(options))),
            held: BytesMut::new(),
        };
        let size_bytes = archive.file().await?;
        Ok(Brought {
            size_bytes,
            data: archive.data(size_bytes),
        })
    }
}

/// An archive that comes from the engine.
struct Archive {
    pieces: Pin<Box<dyn Stream<Item = Result<Bytes, bollard::errors::Error>> + Send>>,
    held: BytesMut,
}

impl Archive {
    /// The size of the file, which is all there is in it. Then its bytes come.
    async fn file(&mut self) -> Result<u64, SandboxError> {
        let unknown = || {
            SandboxError::io(
                "the engine's archive is none",
                io::ErrorKind::InvalidData.into(),
            )
        };
        let mut long_size = None;
        loop {
            let block = self.take(BLOCK_BYTES).await?;
            let header = tar::Header::from_byte_slice(&block);
            let size_bytes = header.entry_size().map_err(|_| unknown())?;
            match header.entry_type() {
                tar::EntryType::Regular => return Ok(long_size.unwrap_or(size_bytes)),
                // What there is no room for in the header itself.
                tar::EntryType::XHeader if size_bytes <= MOST_RECORDS => {
                    let records = self.take(size_bytes.next_multiple_of(BLOCK_BYTES)).await?;
                    for record in tar::PaxExtensions::new(&records).map_while(Result::ok) {
                        if let (Ok("size"), Ok(value)) = (record.key(), record.value()) {
                            long_size = value.parse().ok();
                        }
                    }
                }
                _ => return Err(unknown()),
            }
        }
    }

    async fn take(&mut self, count: u64) -> Result<Bytes, SandboxError> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        while self.held.len() < count {
            let piece = self.pieces.next().await;
            let piece = piece
                .transpose()
                .map_err(|error| failed("failed to read a file of the container", error))?;
            self.held.extend_from_slice(&piece.ok_or_else(|| {
                SandboxError::io(
                    "the engine's archive broke off",
                    io::ErrorKind::UnexpectedEof.into(),
                )
            })?);
        }
        Ok(self.held.split_to(count).freeze())
    }

    /// So many bytes, or fewer.
    fn data(self, size_bytes: u64) -> Pin<Box<dyn Stream<Item = Bytes> + Send>> {
        let held = stream::iter([self.held.freeze()]);
        let pieces = self
            .pieces
            .take_while(|piece| ready(piece.is_ok()))
            .filter_map(|piece| ready(piece.ok()));
        let counted = held.chain(pieces).scan(size_bytes, |left, mut piece| {
            piece.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= piece.len() as u64;
            ready(Some(piece))
        });
        Box::pin(counted.filter(|piece| ready(!piece.is_empty())))
    }
}

/// What was wrong with the data.
type Broken = Arc<Mutex<Option<SandboxError>>>;

fn lock(broken: &Broken) -> std::sync::MutexGuard<'_, Option<SandboxError>> {
    broken.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An archive of one file, which breaks off where the data do.
fn archive(
    file: &StagedFile,
    data: ByteStream,
    broken: Broken,
) -> io::Result<impl Stream<Item = io::Result<Bytes>> + Send + use<>> {
    let padding = file.size_bytes.next_multiple_of(BLOCK_BYTES) - file.size_bytes;
    let end = vec![0; usize::try_from(padding).unwrap_or(0) + END_BYTES];
    let content = data.map(move |piece| {
        piece.map_err(|error| {
            *lock(&broken) = Some(error);
            io::ErrorKind::InvalidData.into()
        })
    });
    Ok(stream::iter([Ok(head(file)?)])
        .chain(content)
        .chain(stream::iter([Ok(end.into())])))
}

fn head(file: &StagedFile) -> io::Result<Bytes> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut header = tar::Header::new_gnu();
    header.set_path(&file.name)?;
    header.set_size(file.size_bytes);
    header.set_mode(file.mode);
    header.set_uid(file.owner.0.into());
    header.set_gid(file.owner.1.into());
    header.set_mtime(now.unwrap_or_default().as_secs());
    header.set_cksum();
    Ok(Bytes::copy_from_slice(header.as_bytes()))
}
