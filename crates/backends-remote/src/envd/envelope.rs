//! Messages of a stream: flags, a length, and a JSON message each.

use bytes::{Buf as _, Bytes, BytesMut};

/// What one message may have in bytes. Pieces of output are some ten thousand.
const LONGEST: usize = 16 << 20;

const HEADER: usize = 5;
const COMPRESSED: u8 = 0b01;
const END: u8 = 0b10;

/// A message as it goes out.
pub(super) fn enclose(message: &[u8]) -> Vec<u8> {
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], message].concat()
}

/// One message of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Envelope {
    Message(Bytes),
    /// The last one, which says whether all went well.
    End(Bytes),
}

/// Takes a stream apart.
#[derive(Debug, Default)]
pub(super) struct Envelopes {
    buffer: BytesMut,
}

impl Envelopes {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole message.
    ///
    /// # Errors
    /// Where this is no stream of messages.
    pub(super) fn next(&mut self) -> Result<Option<Envelope>, &'static str> {
        let Some((flags, length)) = self.header() else {
            return Ok(None);
        };
        if flags & COMPRESSED != 0 {
            return Err("a message is compressed, which was not asked for");
        }
        if flags & !END != 0 {
            return Err("a message has flags that nobody knows: this is no stream of messages");
        }
        if length > LONGEST {
            return Err("a message is too long");
        }
        if self.buffer.len() < HEADER + length {
            return Ok(None);
        }
        self.buffer.advance(HEADER);
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

    use super::{Envelope, Envelopes, enclose};

    proptest! {
        #[test]
        fn messages_come_out_as_they_went_in(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..8),
            cut in 1_usize..50,
        ) {
            let sent: Vec<u8> = messages.iter().flat_map(|message| enclose(message)).collect();
            let mut envelopes = Envelopes::default();
            let mut came = Vec::new();
            for piece in sent.chunks(cut) {
                envelopes.push(piece);
                while let Some(envelope) = envelopes.next().unwrap() {
                    came.push(envelope);
                }
            }
            let expected: Vec<_> =
                messages.into_iter().map(|it| Envelope::Message(it.into())).collect();
            assert_eq!(came, expected);
        }

        #[test]
        fn nonsense_is_an_error_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
            let mut envelopes = Envelopes::default();
            envelopes.push(&bytes);
            while let Ok(Some(_)) = envelopes.next() {}
        }
    }

    #[test]
    fn the_end_is_told_from_a_message() {
        let mut envelopes = Envelopes::default();
        envelopes.push(b"\x02\0\0\0\x02{}");
        assert_eq!(envelopes.next(), Ok(Some(Envelope::End("{}".into()))));
        assert_eq!(envelopes.next(), Ok(None));
    }
}
