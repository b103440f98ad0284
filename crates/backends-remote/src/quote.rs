//! Quoting of arbitrary bytes as bash words in ASCII.

/// Quotes bytes as one word.
pub(crate) fn quote(bytes: &[u8]) -> String {
    let mut word = String::with_capacity(bytes.len() + 3);
    word.push_str("$'");
    for byte in bytes {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'.' | b'_' | b'-' | b' ' => {
                word.push(char::from(*byte));
            }
            // Always three digits, so that a following digit isn't part of the escape.
            other => word.push_str(&format!("\\{other:03o}")),
        }
    }
    word.push('\'');
    word
}

/// Quotes each of the words.
pub(crate) fn quote_all<'b>(words: impl IntoIterator<Item = &'b [u8]>) -> String {
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::{any, prop, proptest};

    use super::quote_all;

    proptest! {
        #[test]
        fn bash_reads_the_same_bytes(
            words in prop::collection::vec(prop::collection::vec(1..=255_u8, 0..40), 1..4),
            _more in any::<u8>(),
        ) {
            let quoted = quote_all(words.iter().map(Vec::as_slice));
            let script = format!("printf '%s\\0' {quoted}");
            let output = Command::new("bash").args(["-c", &script]).output().unwrap();
            let mut expected = words.join(&0);
            expected.push(0);
            assert_eq!(output.stdout, expected);
        }
    }
}
