//! Response bodies, read in chunks.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_tls::root_cause;
use reqwest::Response;
use tokio::time::timeout;

use super::timeouts::seconds;

/// Maximum size of a turn in bytes, far above that of a model's longest one.
pub(super) const MAX_TURN_BYTES: usize = 64 << 20;

/// A response body that is read in chunks.
pub(super) trait BodyChunks: Send {
    /// Returns the next chunk, or `None` at the end.
    fn chunk(&mut self) -> impl Future<Output = Result<Option<Bytes>, LlmError>> + Send;
}

/// A response body with limits on its size and on the time between two chunks.
pub(super) struct ResponseBody {
    response: Response,
    max_bytes: usize,
    remaining: usize,
    idle_timeout: Duration,
}

impl ResponseBody {
    pub(super) fn new(response: Response, max_bytes: usize, idle_timeout: Duration) -> Self {
        Self {
            response,
            max_bytes,
            remaining: max_bytes,
            idle_timeout,
        }
    }

    /// Reads the body to its end.
    pub(super) async fn read(mut self) -> Result<Vec<u8>, LlmError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = self.chunk().await? {
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }
}

impl BodyChunks for ResponseBody {
    async fn chunk(&mut self) -> Result<Option<Bytes>, LlmError> {
        let interrupted = |message| LlmError::new(LlmErrorKind::Interrupted, message);
        let Ok(chunk) = timeout(self.idle_timeout, self.response.chunk()).await else {
            let idle = seconds(self.idle_timeout);
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
        self.remaining = self.remaining.checked_sub(length).ok_or_else(|| {
            let limit = self.max_bytes >> 20;
            LlmError::protocol(format!("the response is longer than {limit} MiB"))
        })?;
        Ok(chunk)
    }
}
