//! Envelopes: a byte of flags, four of length, and a message.

use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::Serialize;

use super::MESSAGE_BYTES;
use crate::body;
use crate::envd::fault::{Code, Fault};

/// The flag of the last envelope of a stream.
pub(crate) const END: u8 = 0b10;
const COMPRESSED: u8 = 0b01;

/// Flags and length.
pub(crate) const HEAD: usize = 5;

/// Puts a message into an envelope.
pub(crate) fn wrap(flags: u8, message: &[u8]) -> Bytes {
    let mut envelope = BytesMut::with_capacity(HEAD + message.len());
    envelope.put_u8(flags);
    envelope.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
    envelope.put_slice(message);
    envelope.freeze()
}

/// An envelope with room for a message, which is to be written at its end.
pub(crate) fn begin(message_bytes: usize) -> Vec<u8> {
    let mut envelope = Vec::with_capacity(HEAD + message_bytes);
    envelope.extend_from_slice(&[0; HEAD]);
    envelope
}

/// The same with its message, once that is written.
pub(crate) fn finish(mut envelope: Vec<u8>) -> Bytes {
    let length = envelope.len().saturating_sub(HEAD);
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if let Some(place) = envelope.get_mut(1..HEAD) {
        place.copy_from_slice(&length.to_be_bytes());
    }
    envelope.into()
}

/// Writes a message into an envelope.
pub(crate) fn of<T: Serialize>(message: &T) -> Bytes {
    // What is serialized here has text as keys, and so never fails.
    wrap(0, &serde_json::to_vec(message).unwrap_or_default())
}

/// The messages of a caller's stream.
pub(crate) struct Envelopes {
    body: Body,
    idle: Duration,
    buffer: BytesMut,
}

impl Envelopes {
    pub(crate) fn new(body: Body, idle: Duration) -> Self {
        Self {
            body,
            idle,
            buffer: BytesMut::new(),
        }
    }

    /// The next message; `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            match body::next(&mut self.body, self.idle).await? {
                Some(piece) => self.buffer.extend_from_slice(&piece),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(Fault::invalid("the stream ended within a message")),
            }
        }
    }

    /// A message that is whole: `Some(None)` for the one that ends the stream.
    fn take(&mut self) -> Result<Option<Option<Bytes>>, Fault> {
        let mut head = self.buffer.as_ref();
        if head.len() < HEAD {
            return Ok(None);
        }
        let flags = head.get_u8();
        let length = head.get_u32() as usize;
        if flags & COMPRESSED != 0 {
            return Err(Fault::invalid("compressed messages are not supported"));
        }
        if length > MESSAGE_BYTES {
            let message = format!("a message may have {MESSAGE_BYTES} bytes");
            return Err(Fault::new(Code::ResourceExhausted, message));
        }
        if head.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD);
        let message = self.buffer.split_to(length).freeze();
        Ok(Some((flags & END == 0).then_some(message)))
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;

    use super::*;

    async fn read(pieces: Vec<Vec<u8>>) -> Result<Vec<Bytes>, Code> {
        let pieces = stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
        let mut envelopes = Envelopes::new(Body::from_stream(pieces), Duration::from_secs(5));
        let mut messages = Vec::new();
        while let Some(message) = envelopes.next().await.map_err(|fault| fault.code)? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[tokio::test]
    async fn messages_come_whole_however_they_are_cut() {
        let all = [&wrap(0, b"{\"a\":1}")[..], &wrap(0, b""), &wrap(0, b"{}")].concat();
        for size in 1..all.len() {
            let pieces = all.chunks(size).map(<[u8]>::to_vec).collect();
            let messages = read(pieces).await.unwrap();
            assert_eq!(messages, ["{\"a\":1}", "", "{}"], "pieces of {size}");
        }
    }

    #[tokio::test]
    async fn what_is_too_large_or_broken_off_is_refused() {
        assert_eq!(
            read(vec![vec![0, 0xff, 0, 0, 0]]).await,
            Err(Code::ResourceExhausted)
        );
        assert_eq!(
            read(vec![vec![0, 0, 0, 0, 9, 1]]).await,
            Err(Code::InvalidArgument)
        );
        assert_eq!(
            read(vec![vec![1, 0, 0, 0, 0]]).await,
            Err(Code::InvalidArgument)
        );
    }
}
