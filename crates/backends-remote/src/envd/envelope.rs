//! Connect's streaming envelopes: flags, a length, and a JSON message.

use bytes::{Buf as _, Bytes, BytesMut};

/// Maximum message size; chunks of output have some ten thousand bytes.
const MAX_MESSAGE_BYTES: usize = 16 << 20;

const HEADER_BYTES: usize = 5;
const COMPRESSED: u8 = 0b01;
const END: u8 = 0b10;

/// Encodes a message.
pub(super) fn encode_envelope(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// A message of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Envelope {
    Message(Bytes),
    /// The last message, with the result of the call.
    End(Bytes),
}

/// Incremental decoder of a stream of envelopes.
#[derive(Debug, Default)]
pub(super) struct EnvelopeDecoder {
    buffer: BytesMut,
}

impl EnvelopeDecoder {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the next complete message.
    ///
    /// # Errors
    /// The bytes are not a valid stream.
    pub(super) fn next(&mut self) -> Result<Option<Envelope>, &'static str> {
        let Some((flags, length)) = self.header() else {
            return Ok(None);
        };
        if flags & COMPRESSED != 0 {
            return Err("a message is compressed although compression was not requested");
        }
        if flags & !END != 0 {
            return Err("a message has unknown flags");
        }
        if length > MAX_MESSAGE_BYTES {
            return Err("a message is too long");
        }
        if self.buffer.len() < HEADER_BYTES + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        let message = self.buffer.split_to(length).freeze();
        Ok(Some(match flags & END {
            0 => Envelope::Message(message),
            _ => Envelope::End(message),
        }))
    }

    fn header(&self) -> Option<(u8, usize)> {
        let (flags, rest) = self.buffer.split_first()?;
        let length = rest.first_chunk::<4>()?;
        Some((*flags, u32::from_be_bytes(*length) as usize))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::{Envelope, EnvelopeDecoder, encode_envelope};

    proptest! {
        #[test]
        fn messages_round_trip(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cut in 1_usize..50,
        ) {
            let sent: Vec<u8> = messages.iter().flat_map(|message| encode_envelope(message)).collect();
            let mut envelopes = EnvelopeDecoder::default();
            let mut decoded = Vec::new();
            for piece in sent.chunks(cut) {
                envelopes.push(piece);
                while let Some(envelope) = envelopes.next().unwrap() {
                    decoded.push(envelope);
                }
            }
            let expected: Vec<_> =
                messages.into_iter().map(|it| Envelope::Message(it.into())).collect();
            assert_eq!(decoded, expected);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut envelopes = EnvelopeDecoder::default();
            envelopes.push(&bytes);
            while let Ok(Some(_)) = envelopes.next() {}
        }
    }

    #[test]
    fn end_is_distinguished_from_a_message() {
        let mut envelopes = EnvelopeDecoder::default();
        envelopes.push(b"\x02\0\0\0\x02{}");
        assert_eq!(envelopes.next(), Ok(Some(Envelope::End("{}".into()))));
        assert_eq!(envelopes.next(), Ok(None));
    }
}
