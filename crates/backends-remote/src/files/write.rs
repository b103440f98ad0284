//! Writing of files: to a temporary file, renamed when complete.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cantle_command_driver::OnDrop;
use cantle_core::ids::unique_id;
use cantle_core::sandbox::{
    ByteStream, FileKind, SandboxError, SandboxErrorKind, SandboxPath, WriteOptions,
};
use futures_util::{Stream, StreamExt as _, stream};
use parking_lot::Mutex;
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Method};
use serde_json::json;
use tokio::select;
use tokio::time::{Instant, sleep};

use super::resolve::FinalLink;
use crate::envd::{Envd, FILES, Fault, Version};
use crate::http::RequestError;
use crate::quote::quote;
use crate::shared::{ActiveSandbox, Shared};

/// The mode of files that envd creates.
const DEFAULT_MODE: u32 = 0o644;
/// Time without progress of the server after which an upload fails.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_secs(1);

impl ActiveSandbox {
    /// Writes a regular file and creates its parent directories.
    pub(crate) async fn write(
        &self,
        path: &SandboxPath,
        options: WriteOptions,
        data: ByteStream,
    ) -> Result<(), SandboxError> {
        let doing = format!("failed to write `{path}`");
        let resolved = self.resolve(path, FinalLink::Follow, &doing).await?;
        resolved.check_parents(&doing)?;
        let is_replaced = |kind| matches!(kind, FileKind::File | FileKind::Symlink);
        let there = resolved.stat.as_ref();
        if there.is_some_and(|there| !is_replaced(there.kind)) {
            let message = format!("{doing}: the target is not a regular file");
            return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
        }
        let Some(directory) = resolved.bytes.iter().rposition(|byte| *byte == b'/') else {
            let message = format!("{doing}: it has no parent directory");
            return Err(SandboxError::invalid_input(message));
        };
        let directory = resolved.bytes.get(..directory).unwrap_or_default();
        // The protocol needs UTF-8 paths; otherwise the temporary file is in the working directory.
        let above = std::str::from_utf8(directory).unwrap_or(&self.shared.home);
        let above = above.strip_suffix('/').unwrap_or(above);
        let temporary = format!("{above}/.{}.part", unique_id());
        let abandoned = OnDrop::new(|| remove_in_background(&self.shared, &temporary));

        let received_bytes = Arc::new(AtomicU64::new(0));
        let failure: Arc<Mutex<Option<SandboxError>>> = Arc::default();
        let checked = {
            let (received_bytes, failure) = (Arc::clone(&received_bytes), Arc::clone(&failure));
            checked(data, path.clone(), options, received_bytes, failure)
        };
        let uploading = upload(&self.envd, &temporary, Box::pin(checked));
        let uploaded = self.while_alive(uploading).await?;
        let failure = failure.lock().take();
        if let Some(error) = failure {
            return Err(error);
        }
        self.explained(uploaded, &doing).await?;
        options.check_size(path, received_bytes.load(Ordering::Relaxed), true)?;
        let mode = options.mode & 0o777;
        if mode != DEFAULT_MODE {
            let mode = format!("{mode:o}");
            let words = ["mode", &quote(temporary.as_bytes()), &mode];
            self.run_script(&words, &doing).await?;
        }
        if std::str::from_utf8(directory).is_err() {
            let words = ["mkdir", &quote(directory)];
            self.run_script(&words, &doing).await?;
        }
        self.rename_path(temporary.as_bytes(), &resolved.bytes, &doing)
            .await?;
        abandoned.disarm();
        Ok(())
    }
}

/// Counts the data; ends the upload with an error if they fail or exceed the announced size.
fn checked(
    data: ByteStream,
    path: SandboxPath,
    options: WriteOptions,
    received_bytes: Arc<AtomicU64>,
    failure: Arc<Mutex<Option<SandboxError>>>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    data.map(move |piece| {
        let checked = piece.and_then(|piece| {
            let length = piece.len() as u64;
            let received = received_bytes.fetch_add(length, Ordering::Relaxed) + length;
            options.check_size(&path, received, false)?;
            Ok(piece)
        });
        checked.map_err(|error| {
            *failure.lock() = Some(error);
            io::Error::other("the data ended early")
        })
    })
}

/// Uploads a file, replacing an existing one.
pub(crate) async fn upload(
    envd: &Envd,
    absolute: &str,
    data: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<(), Fault> {
    let progress = Arc::new(UploadProgress::default());
    let data = track_progress(data, Arc::clone(&progress));
    let request = envd.file_request(Method::POST, absolute);
    let request = if envd.version >= Version::RAW_UPLOADS {
        request
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(Body::wrap_stream(data))
    } else {
        let boundary = format!("cantle-{}", unique_id());
        let kind = format!("multipart/form-data; boundary={boundary}");
        request
            .header(CONTENT_TYPE, kind)
            .body(Body::wrap_stream(form(&boundary, data)))
    };
    select! {
        biased;
        response = request.send() => {
            envd.check_status(response?).await?;
            Ok(())
        }
        () = progress.stalled() => Err(RequestError::timed_out(STALL_TIMEOUT).into()),
    }
}

/// The time since when the upload waits for the server; `None` while it waits for the data.
#[derive(Debug)]
struct UploadProgress(Mutex<Option<Instant>>);

impl Default for UploadProgress {
    fn default() -> Self {
        Self(Mutex::new(Some(Instant::now())))
    }
}

impl UploadProgress {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock() = since;
    }

    /// Waits until the server has made no progress for [`STALL_TIMEOUT`].
    async fn stalled(&self) {
        loop {
            let since = *self.0.lock();
            if since.is_some_and(|since| since.elapsed() >= STALL_TIMEOUT) {
                return;
            }
            sleep(POLL_INTERVAL).await;
        }
    }
}

/// Records in `progress` whether the data or the server is waited for.
fn track_progress<T: Send + 'static>(
    data: impl Stream<Item = T> + Send + 'static,
    progress: Arc<UploadProgress>,
) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold(
        (Box::pin(data), progress),
        |(mut data, progress)| async move {
            progress.set(None);
            let piece = data.next().await;
            progress.set(Some(Instant::now()));
            Some((piece?, (data, progress)))
        },
    )
}

/// Encodes a form with the file as its only part.
fn form(
    boundary: &str,
    data: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let chunk = |text: String| stream::iter([Ok(Bytes::from(text))]);
    chunk(head).chain(data).chain(chunk(tail))
}

/// Removes a temporary file that was not renamed.
fn remove_in_background(shared: &Arc<Shared>, absolute: &str) {
    if shared.closed.is_cancelled() {
        return;
    }
    let (owned, message) = (Arc::clone(shared), json!({ "path": absolute }));
    shared.spawn_task(async move {
        if let Ok(active) = owned.activate().await {
            // It may not have been created.
            let _ = active.envd.order(FILES, "Remove", &message).await;
        }
    });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::{StreamExt as _, stream};
    use tokio::time::{Instant, timeout};

    use super::{POLL_INTERVAL, STALL_TIMEOUT, UploadProgress, track_progress};

    #[tokio::test(start_paused = true)]
    async fn upload_without_progress_is_stalled() {
        let progress = Arc::new(UploadProgress::default());
        let mut data = Box::pin(track_progress(
            stream::iter([1, 2, 3]),
            Arc::clone(&progress),
        ));
        tokio::time::sleep(STALL_TIMEOUT / 2).await;
        assert_eq!(data.next().await, Some(1));
        let began = Instant::now();
        progress.stalled().await;
        assert!((STALL_TIMEOUT..=STALL_TIMEOUT + POLL_INTERVAL).contains(&began.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn waiting_for_data_is_not_a_stall() {
        let progress = Arc::new(UploadProgress::default());
        let slow = stream::pending::<u8>();
        let mut data = Box::pin(track_progress(slow, Arc::clone(&progress)));
        let waiting = async { tokio::join!(data.next(), progress.stalled()) };
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(timeout(day, waiting).await.is_err());
    }
}
