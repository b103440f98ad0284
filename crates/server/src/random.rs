//! Unguessable names and tokens.

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";

/// Returns `length` random characters (lower-case letters and digits, 5 bits each).
///
/// # Errors
/// If the system has no source of randomness.
pub(crate) fn text(length: usize) -> Result<String, getrandom::Error> {
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes)?;
    let letter = |byte: &u8| LETTERS.get(usize::from(byte % 32)).copied();
    Ok(bytes.iter().filter_map(letter).map(char::from).collect())
}
