//! Names and tokens that nobody guesses.

const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz012345";

/// `length` random characters of 5 bits each: lower-case letters and digits.
///
/// # Errors
/// Where the system has no randomness, which is as good as never.
pub(crate) fn text(length: usize) -> Result<String, getrandom::Error> {
    let mut bytes = vec![0; length];
    getrandom::fill(&mut bytes)?;
    let letter = |byte: &u8| LETTERS.get(usize::from(byte % 32)).copied();
    Ok(bytes.iter().filter_map(letter).map(char::from).collect())
}
