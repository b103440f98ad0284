//! Bodies of requests: whole ones of limited size, and never waited for without end.

use std::time::Duration;

use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::timeout;

/// Why a body could not be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    TooLarge {
        limit_bytes: usize,
    },
    /// Nothing came for so long.
    Idle,
    /// The caller has gone.
    Broken,
}

impl std::fmt::Display for BodyError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::TooLarge { limit_bytes } => {
                write!(f, "the body has more than {limit_bytes} bytes")
            }
            Self::Idle => f.write_str("the body did not come in time"),
            Self::Broken => f.write_str("the body broke off"),
        }
    }
}

/// The next bytes of a body; `None` at its end.
pub(crate) async fn next(body: &mut Body, idle: Duration) -> Result<Option<Bytes>, BodyError> {
    loop {
        match timeout(idle, body.frame()).await {
            Err(_) => return Err(BodyError::Idle),
            Ok(None) => return Ok(None),
            Ok(Some(Err(_))) => return Err(BodyError::Broken),
            Ok(Some(Ok(frame))) => {
                // Trailers mean nothing here.
                if let Ok(data) = frame.into_data() {
                    return Ok(Some(data));
                }
            }
        }
    }
}

/// A whole body of at most `limit_bytes`.
pub(crate) async fn whole(
    mut body: Body,
    limit_bytes: usize,
    idle: Duration,
) -> Result<Bytes, BodyError> {
    let Some(first) = next(&mut body, idle).await? else {
        return Ok(Bytes::new());
    };
    let mut rest: Option<BytesMut> = None;
    if first.len() > limit_bytes {
        return Err(BodyError::TooLarge { limit_bytes });
    }
    while let Some(piece) = next(&mut body, idle).await? {
        let all = rest.get_or_insert_with(|| BytesMut::from(&*first));
        if all.len() + piece.len() > limit_bytes {
            return Err(BodyError::TooLarge { limit_bytes });
        }
        all.extend_from_slice(&piece);
    }
    Ok(rest.map_or(first, BytesMut::freeze))
}
