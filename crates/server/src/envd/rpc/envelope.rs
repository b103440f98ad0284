//! Connect envelopes: one byte of flags, four bytes of length, and a message.

use std::time::Duration;

use axum::body::Body;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use serde::Serialize;

use super::MESSAGE_BYTES;
use crate::accounts::MemoryCharge;
use crate::body;
use crate::envd::error::{EnvdError, Result};

/// Flag of a stream's last envelope.
pub(crate) const END_STREAM: u8 = 0b10;
const COMPRESSED: u8 = 0b01;

/// Size of flags and length.
pub(crate) const HEAD_BYTES: usize = 5;

/// Wraps a message in an envelope.
pub(crate) fn wrap(flags: u8, message: &[u8]) -> Bytes {
    let mut envelope = begin(flags, message.len());
    envelope.extend_from_slice(message);
    envelope.into()
}

/// Returns the head of an envelope, with capacity for its message of `length` bytes.
pub(crate) fn begin(flags: u8, length: usize) -> Vec<u8> {
    let mut envelope = Vec::with_capacity(HEAD_BYTES + length);
    envelope.put_u8(flags);
    envelope.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    envelope
}

/// Serializes a message into an envelope.
pub(crate) fn encode<T: Serialize>(message: &T) -> Bytes {
    // Serialization can't fail: all map keys are strings.
    wrap(0, &serde_json::to_vec(message).unwrap_or_default())
}

/// Reader of a client's message stream.
pub(crate) struct EnvelopeReader {
    body: Body,
    idle: Duration,
    buffer: BytesMut,
    charge: MemoryCharge,
    /// Bytes charged for each byte in the buffer and of the latest message.
    weight: usize,
}

impl EnvelopeReader {
    pub(crate) fn new(body: Body, idle: Duration, charge: MemoryCharge, weight: usize) -> Self {
        Self {
            body,
            idle,
            buffer: BytesMut::new(),
            charge,
            weight,
        }
    }

    /// Returns the next message, or `None` at the end.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>> {
        self.charge.set(self.buffer.len() * self.weight)?;
        loop {
            if let Some(message) = self.take()? {
                return Ok(message);
            }
            match body::next_chunk(&mut self.body, self.idle).await? {
                Some(chunk) => {
                    self.charge.grow(chunk.len() * self.weight)?;
                    self.buffer.extend_from_slice(&chunk);
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(EnvdError::invalid("the stream ended within a message")),
            }
        }
    }

    /// Takes a complete message from the buffer; `Some(None)` is the end of the stream.
    fn take(&mut self) -> Result<Option<Option<Bytes>>> {
        let mut head = self.buffer.as_ref();
        if head.len() < HEAD_BYTES {
            return Ok(None);
        }
        let flags = head.get_u8();
        let length = head.get_u32() as usize;
        if flags & COMPRESSED != 0 {
            return Err(EnvdError::invalid("compressed messages are not supported"));
        }
        if length > MESSAGE_BYTES {
            let message = format!("a message may have at most {MESSAGE_BYTES} bytes");
            return Err(EnvdError::exhausted(message));
        }
        if head.len() < length {
            return Ok(None);
        }
        self.buffer.advance(HEAD_BYTES);
        let message = self.buffer.split_to(length).freeze();
        Ok(Some((flags & END_STREAM == 0).then_some(message)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::stream;

    use super::*;
    use crate::accounts::{Account, Accounts};
    use crate::envd::error::RpcCode;
    use crate::keys::Keys;
    use crate::settings::ServerLimits;

    async fn read(chunks: Vec<Vec<u8>>) -> Result<Vec<Bytes>, RpcCode> {
        let chunks = stream::iter(chunks.into_iter().map(Ok::<_, std::io::Error>));
        let keys = Keys::default();
        let accounts = Accounts::new(&ServerLimits::default(), &keys);
        let charge = Account::new(&Arc::new(accounts), &keys.owner("any").unwrap()).charge();
        let body = Body::from_stream(chunks);
        let mut envelopes = EnvelopeReader::new(body, Duration::from_secs(5), charge, 1);
        let mut messages = Vec::new();
        while let Some(message) = envelopes.next().await.map_err(|error| error.code)? {
            messages.push(message);
        }
        Ok(messages)
    }

    #[tokio::test]
    async fn messages_are_complete_for_every_chunk_size() {
        let all = [&wrap(0, b"{\"a\":1}")[..], &wrap(0, b""), &wrap(0, b"{}")].concat();
        for size in 1..all.len() {
            let chunks = all.chunks(size).map(<[u8]>::to_vec).collect();
            let messages = read(chunks).await.unwrap();
            assert_eq!(messages, ["{\"a\":1}", "", "{}"], "chunks of {size}");
        }
    }

    #[tokio::test]
    async fn oversized_truncated_and_compressed_messages_are_refused() {
        assert_eq!(
            read(vec![vec![0, 0xff, 0, 0, 0]]).await,
            Err(RpcCode::ResourceExhausted)
        );
        assert_eq!(
            read(vec![vec![0, 0, 0, 0, 9, 1]]).await,
            Err(RpcCode::InvalidArgument)
        );
        assert_eq!(
            read(vec![vec![1, 0, 0, 0, 0]]).await,
            Err(RpcCode::InvalidArgument)
        );
    }
}
