//! Response bodies, read in chunks.

use std::time::Duration;

use bytes::Bytes;
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_tls::root_cause;
use futures_util::stream::{self, BoxStream, TryStreamExt as _};
use reqwest::Response;
use tokio::time::timeout;

use super::timeouts::seconds;

/// Maximum size of a turn in bytes, far above that of a model's longest one.
pub(super) const MAX_TURN_BYTES: usize = 64 << 20;

/// The chunks of a response body.
pub(super) type BodyChunks = BoxStream<'static, Result<Bytes, LlmError>>;

/// Returns the chunks of a body, with limits on its size and on the time between two chunks.
pub(super) fn body_chunks(
    response: Response,
    max_bytes: usize,
    idle_timeout: Duration,
) -> BodyChunks {
    let interrupted = |message| LlmError::new(LlmErrorKind::Interrupted, message);
    let chunks = stream::try_unfold(
        (response, max_bytes),
        move |(mut response, remaining)| async move {
            let Ok(chunk) = timeout(idle_timeout, response.chunk()).await else {
                let idle = seconds(idle_timeout);
                return Err(interrupted(format!(
                    "the response stalled: no data for {idle}"
                )));
            };
            let chunk = chunk.map_err(|error| {
                let error = error.without_url();
                let cause = root_cause(&error);
                interrupted(format!("the connection broke during the response: {cause}"))
                    .with_source(error)
            })?;
            let length = chunk.as_ref().map_or(0, Bytes::len);
            let remaining = remaining.checked_sub(length).ok_or_else(|| {
                let limit = max_bytes >> 20;
                LlmError::protocol(format!("the response is longer than {limit} MiB"))
            })?;
            Ok(chunk.map(|chunk| (chunk, (response, remaining))))
        },
    );
    Box::pin(chunks)
}

/// Reads a body to its end.
pub(super) async fn read_body(mut chunks: BodyChunks) -> Result<Vec<u8>, LlmError> {
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.try_next().await? {
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}
