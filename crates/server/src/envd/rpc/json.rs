//! Deserializers for protobuf's JSON mapping (<https://protobuf.dev/programming-guides/json/>).

use std::borrow::Cow;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Unexpected};

const LENIENT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, LENIENT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, LENIENT);

/// Deserializes a field whose `null` means the default value.
pub(crate) fn or_default<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + Default,
{
    Ok(Option::deserialize(from)?.unwrap_or_default())
}

/// Deserializes base64 in either alphabet, padded or not.
pub(crate) fn bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
    #[derive(Deserialize)]
    struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

    let Some(Text(text)) = Option::deserialize(from)? else {
        return Ok(None);
    };
    let decoded = if text.contains(['-', '_']) {
        URL_SAFE.decode(&*text)
    } else {
        STANDARD.decode(&*text)
    };
    let invalid = |_| D::Error::invalid_value(Unexpected::Str("…"), &"bytes in base64");
    Ok(Some(decoded.map_err(invalid)?.into()))
}

/// Deserializes a number or a string with a number.
pub(crate) fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    Ok(optional_number(from)?.unwrap_or_default())
}

/// Like [`number`], for an optional field.
pub(crate) fn optional_number<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a number from 0 to 4294967295")]
    enum Written {
        Number(u32),
        Text(String),
    }

    match Option::deserialize(from)? {
        None => Ok(None),
        Some(Written::Number(number)) => Ok(Some(number)),
        Some(Written::Text(text)) => text.parse().map(Some).map_err(D::Error::custom),
    }
}

/// Returns the length of the base64 encoding of `bytes`.
pub(crate) fn base64_length(bytes: &[u8]) -> usize {
    bytes.len().div_ceil(3) * 4
}

/// Appends the base64 encoding of `bytes` to `text`.
pub(crate) fn push_base64(text: &mut Vec<u8>, bytes: &[u8]) {
    let start = text.len();
    text.resize(start + base64_length(bytes), 0);
    let buffer = text.get_mut(start..).unwrap_or_default();
    // The buffer has the exact size.
    let written = STANDARD.encode_slice(bytes, buffer).unwrap_or(0);
    text.truncate(start + written);
}

/// Decodes base64 in the standard alphabet.
pub(crate) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, PartialEq, Deserialize)]
    struct Both {
        #[serde(default, deserialize_with = "bytes")]
        data: Option<Bytes>,
        #[serde(default, deserialize_with = "number")]
        pid: u32,
    }

    #[test]
    fn bytes_and_numbers_are_read_in_all_forms() {
        let read = |text| serde_json::from_str::<Both>(text).ok();
        let both = |data: &'static [u8], pid| {
            let data = Some(Bytes::from_static(data));
            Some(Both { data, pid })
        };
        assert_eq!(read(r#"{"data":"/+8=","pid":7}"#), both(b"\xff\xef", 7));
        assert_eq!(read(r#"{"data":"_-8","pid":"7"}"#), both(b"\xff\xef", 7));
        assert_eq!(read(r#"{"data":"","x":null}"#), both(b"", 0));
        let null = read(r#"{"data":null,"pid":null}"#);
        assert_eq!(null, Some(Both { data: None, pid: 0 }));
        assert_eq!(read("{}"), Some(Both { data: None, pid: 0 }));
        assert_eq!(read(r#"{"data":"*"}"#), None);
        assert_eq!(read(r#"{"pid":-1}"#), None);
    }
}
