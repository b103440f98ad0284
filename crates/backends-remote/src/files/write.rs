//! Files going in: beside their place first, and there once they are whole.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{
    ByteStream, FileKind, SandboxError, SandboxErrorKind, SandboxPath, WriteOptions,
};
use futures_util::{Stream, StreamExt as _, stream};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Body, Method};
use tokio::select;
use tokio::time::{Instant, sleep};

use super::place::{Last, join};
use super::{Files, SERVICE};
use crate::envd::{Envd, Fault, Path, Version};
use crate::http::Broken;
use crate::sandbox::Shared;

/// What a file that the other side makes has.
const USUAL_MODE: u32 = 0o644;
/// How long the other side may take for the next piece of a file, and for its answer after the last.
const STANDSTILL: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// Writes a regular file, and the directories above it.
pub(crate) async fn write(
    shared: &Arc<Shared>,
    path: &SandboxPath,
    options: WriteOptions,
    data: ByteStream,
) -> Result<(), SandboxError> {
    let doing = format!("failed to write `{path}`");
    let files = Files::open(shared).await?;
    let place = files.find(path, Last::Followed, &doing).await?;
    place.must_fit(&doing)?;
    let is_replaced = |kind| matches!(kind, FileKind::File | FileKind::Symlink);
    if place
        .last
        .as_ref()
        .is_some_and(|there| !is_replaced(there.kind))
    {
        let message = format!("{doing}: something else than a file is there");
        return Err(SandboxError::new(SandboxErrorKind::NotAFile, message));
    }
    let Some(directory) = place.bytes.iter().rposition(|byte| *byte == b'/') else {
        let message = format!("{doing}: it has no directory");
        return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
    };
    let directory = place.bytes.get(..directory).unwrap_or_default();
    let (above, token) = (std::str::from_utf8(directory), crate::random_token());
    // The protocol has text for names, so what is none waits in the working directory.
    let above = above.unwrap_or(&shared.home);
    let waiting = Waiting::new(
        shared,
        &join(above.as_bytes(), format!(".{token}.part").as_bytes()),
    );

    let count = Arc::new(AtomicU64::new(0));
    let failure: Arc<Mutex<Option<SandboxError>>> = Arc::default();
    let counted = counted(
        data,
        options.size_bytes,
        Arc::clone(&count),
        Arc::clone(&failure),
    );
    let uploading = upload(&files.awake.envd, &waiting.text, Box::pin(counted));
    let uploaded = shared.while_alive(&files.awake.envd, uploading).await?;
    let failure = failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    if let Some(error) = failure {
        return Err(error);
    }
    if let Err(fault) = uploaded {
        return Err(files.explain(fault, &doing).await);
    }
    let came = count.load(Ordering::Relaxed);
    if let Some(announced) = options.size_bytes
        && announced != came
    {
        return Err(another_size(announced, came));
    }
    if options.mode != USUAL_MODE {
        files
            .set_mode(waiting.text.as_bytes(), options.mode, &doing)
            .await?;
    }
    if std::str::from_utf8(directory).is_err() {
        files.mkdir_by_script(directory, &doing).await?;
    }
    files
        .put(waiting.text.as_bytes(), &place.bytes, &doing)
        .await?;
    waiting.settle();
    Ok(())
}

fn another_size(announced: u64, came: u64) -> SandboxError {
    let message = format!("{came} bytes came where {announced} were announced");
    SandboxError::new(SandboxErrorKind::InvalidInput, message)
}

/// The data as it is sent, cut off where it fails or there is too much of it.
fn counted(
    data: ByteStream,
    announced: Option<u64>,
    count: Arc<AtomicU64>,
    failure: Arc<Mutex<Option<SandboxError>>>,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    data.map(move |piece| {
        let error = match piece {
            Ok(piece) => {
                let length = piece.len() as u64;
                let came = count.fetch_add(length, Ordering::Relaxed) + length;
                match announced {
                    Some(announced) if came > announced => another_size(announced, came),
                    _ => return Ok(piece),
                }
            }
            Err(error) => error,
        };
        *failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
        Err(io::Error::other("the data ended early"))
    })
}

/// Sends a whole file to a place, whatever is there.
pub(crate) async fn upload(
    envd: &Envd,
    place: &str,
    data: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> Result<(), Fault> {
    let flow = Arc::new(Flow::default());
    let data = watched(data, Arc::clone(&flow));
    let request = envd.files(Method::POST, place);
    let request = if envd.version >= Version::TAKES_BYTES {
        request
            .header(CONTENT_TYPE, "application/octet-stream")
            .body(Body::wrap_stream(data))
    } else {
        let boundary = format!("cantle-{}", crate::random_token());
        let kind = format!("multipart/form-data; boundary={boundary}");
        request
            .header(CONTENT_TYPE, kind)
            .body(Body::wrap_stream(form(&boundary, data)))
    };
    select! {
        biased;
        response = request.send() => {
            envd.accepted(response?).await?;
            Ok(())
        }
        () = flow.stands_still() => Err(Broken::silent(STANDSTILL).into()),
    }
}

/// Since when the other side has had a piece of the data; nothing where the data is what is waited for.
#[derive(Debug)]
struct Flow(Mutex<Option<Instant>>);

impl Default for Flow {
    fn default() -> Self {
        Self(Mutex::new(Some(Instant::now())))
    }
}

impl Flow {
    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }

    /// Waits until the other side has taken nothing for too long.
    async fn stands_still(&self) {
        loop {
            let since = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if since.is_some_and(|since| since.elapsed() >= STANDSTILL) {
                return;
            }
            sleep(LOOK).await;
        }
    }
}

/// The data, and who waits for whom.
fn watched<T: Send + 'static>(
    data: impl Stream<Item = T> + Send + 'static,
    flow: Arc<Flow>,
) -> impl Stream<Item = T> + Send + 'static {
    stream::unfold((Box::pin(data), flow), |(mut data, flow)| async move {
        flow.set(None);
        let piece = data.next().await;
        flow.set(Some(Instant::now()));
        Some((piece?, (data, flow)))
    })
}

/// A form with the file as its only part; its place is in the address.
fn form(
    boundary: &str,
    data: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let head = format!(
        "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"file\"\r\n\
         Content-Type: application/octet-stream\r\n\r\n"
    );
    let tail = format!("\r\n--{boundary}--\r\n");
    let one = |text: String| stream::iter([Ok(Bytes::from(text))]);
    one(head).chain(data).chain(one(tail))
}

/// A file that is not in its place yet. Dropped before, it is removed.
struct Waiting {
    shared: Arc<Shared>,
    text: String,
    in_place: bool,
}

impl Waiting {
    fn new(shared: &Arc<Shared>, place: &[u8]) -> Self {
        Self {
            shared: Arc::clone(shared),
            // What it is made of is text.
            text: String::from_utf8_lossy(place).into_owned(),
            in_place: false,
        }
    }

    fn settle(mut self) {
        self.in_place = true;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.in_place || self.shared.closed.is_cancelled() {
            return;
        }
        let (shared, text) = (Arc::clone(&self.shared), std::mem::take(&mut self.text));
        self.shared.attend(async move {
            if let Ok(awake) = shared.awake().await {
                let request = Path { path: &text };
                let removed = awake
                    .envd
                    .call::<serde_json::Value>(SERVICE, "Remove", &request);
                // Where it was never made there is nothing to remove.
                let _ = removed.await;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::{StreamExt as _, stream};
    use tokio::time::{Instant, timeout};

    use super::{Flow, LOOK, STANDSTILL, watched};

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up() {
        let flow = Arc::new(Flow::default());
        let mut data = Box::pin(watched(stream::iter([1, 2, 3]), Arc::clone(&flow)));
        tokio::time::sleep(STANDSTILL / 2).await;
        assert_eq!(data.next().await, Some(1));
        let began = Instant::now();
        flow.stands_still().await;
        assert!((STANDSTILL..=STANDSTILL + LOOK).contains(&began.elapsed()));
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_for_the_data_is_not() {
        let flow = Arc::new(Flow::default());
        let slow = stream::pending::<u8>();
        let mut data = Box::pin(watched(slow, Arc::clone(&flow)));
        let waiting = async { tokio::join!(data.next(), flow.stands_still()) };
        let day = Duration::from_secs(24 * 60 * 60);
        assert!(timeout(day, waiting).await.is_err());
    }
}
