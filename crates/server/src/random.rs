//! Unguessable names and tokens.

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";

/// Returns `length` random characters (lower-case letters and digits, 5 bits each).
///
/// # Errors
/// Made of a message by `failed`, if the system has no source of randomness.
pub(crate) fn text<E>(length: usize, failed: impl FnOnce(&'static str) -> E) -> Result<String, E> {
    let mut bytes = vec![0; length];
    let filled = getrandom::fill(&mut bytes);
    filled.map_err(|_| failed("the system has no source of randomness"))?;
    let letter = |byte: &u8| LETTERS.get(usize::from(byte % 32)).copied();
    Ok(bytes.iter().filter_map(letter).map(char::from).collect())
}
