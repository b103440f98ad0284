//! Reading request bodies, with limits on size and idle time.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

use crate::accounts::{MemoryCharge, ResourceExhausted};

/// Failure to read a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("the body has more than {limit_bytes} bytes")]
    TooLarge { limit_bytes: usize },
    /// No data within the idle time.
    #[error("no data of the body arrived in time")]
    Idle,
    /// The client closed the connection.
    #[error("the connection ended within the body")]
    Disconnected,
    #[error(transparent)]
    Memory(#[from] ResourceExhausted),
}

/// Returns the next bytes of a body, or `None` at its end.
pub(crate) async fn next_chunk(
    body: &mut Body,
    idle: Duration,
) -> Result<Option<Bytes>, BodyError> {
    loop {
        match timeout(idle, body.frame()).await {
            Err(_) => return Err(BodyError::Idle),
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => return Err(BodyError::Disconnected),
            Ok(Some(Ok(frame))) => {
                // Trailers are ignored.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// Reads a whole body of at most `limit_bytes`. Each byte is charged as `weight` bytes, because a parsed
/// message is larger than its text.
pub(crate) async fn read_all(
    mut body: Body,
    limit_bytes: usize,
    idle: Duration,
    charge: &mut MemoryCharge,
    weight: usize,
) -> Result<Bytes, BodyError> {
    let mut all = BytesMut::new();
    while let Some(chunk) = next_chunk(&mut body, idle).await? {
        if all.len() + chunk.len() > limit_bytes {
            return Err(BodyError::TooLarge { limit_bytes });
        }
        charge.grow(chunk.len() * weight)?;
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}
