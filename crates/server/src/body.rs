//! Reading request bodies, with limits on size and idle time, and accounting response bodies.

use std::time::Duration;

use axum::body::{Body, HttpBody as _};
use axum::response::Response;
use bytes::{Bytes, BytesMut};
use futures_util::TryStreamExt as _;
use http::header;
use http_body_util::{BodyDataStream, BodyExt as _};
use tokio::time::timeout;

use crate::accounts::{MemoryCharge, ResourceExhausted};

/// Size below which a response is not charged: a client that has used up its memory still gets answers.
pub(crate) const SMALL_RESPONSE_BYTES: u64 = 64 * 1024;

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

/// Returns the next bytes of a body, or `None` at its end. Trailers are ignored.
pub(crate) async fn next_chunk(
    body: &mut Body,
    idle: Duration,
) -> Result<Option<Bytes>, BodyError> {
    let chunk = timeout(idle, BodyDataStream::new(body).try_next()).await;
    let chunk = chunk.map_err(|_| BodyError::Idle)?;
    chunk.map_err(|_| BodyError::Disconnected)
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

/// Data, and the charge for it.
struct ChargedData {
    data: Bytes,
    _charge: MemoryCharge,
}

impl AsRef<[u8]> for ChargedData {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

/// Attaches a charge to data until the last part of it is dropped, which a connection does after it has sent it.
pub(crate) fn charged(data: Bytes, charge: MemoryCharge) -> Bytes {
    Bytes::from_owner(ChargedData {
        data,
        _charge: charge,
    })
}

/// Charges a response, if it is large and in memory, until it is sent.
pub(crate) fn charge_response(
    response: Response,
    mut charge: MemoryCharge,
) -> Result<Response, ResourceExhausted> {
    let size_bytes = response.body().size_hint().exact();
    let Some(size_bytes) = size_bytes.filter(|size| *size >= SMALL_RESPONSE_BYTES) else {
        return Ok(response);
    };
    charge.grow(usize::try_from(size_bytes).unwrap_or(usize::MAX))?;
    // Such a body is one piece.
    let mut charge = Some(charge);
    let mut response = response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            frame.map_data(|data| match charge.take() {
                Some(charge) => charged(data, charge),
                None => data,
            })
        }))
    });
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, size_bytes.into());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::accounts::{Account, Accounts};
    use crate::keys::Keys;
    use crate::settings::ServerLimits;

    #[tokio::test]
    async fn a_large_response_is_charged_until_its_data_is_dropped() {
        let keys = Keys::default();
        let accounts = Arc::new(Accounts::new(&ServerLimits::default(), &keys));
        let account = Account::new(&accounts, &keys.owner("any").unwrap());
        for (size, expected) in [(1000, 0), (100_000, 100_000)] {
            let response = Response::new(Body::from(vec![0_u8; size]));
            let mut response = charge_response(response, account.charge()).unwrap();
            let frame = response.body_mut().frame().await.unwrap();
            let data = frame.unwrap().into_data().unwrap();
            // As a connection does before the client has read it.
            drop(response);
            assert_eq!((data.len(), accounts.memory.used()), (size, expected));
            drop(data);
            assert_eq!(accounts.memory.used(), 0);
        }
    }
}
