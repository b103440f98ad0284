//! Names of servers and tools, within the limits of model providers.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

/// Between the server's name and the tool's.
const SEPARATOR: &str = "__";
/// The tools that find and call others.
pub(crate) const SEARCH: &str = "mcp_search";
pub(crate) const CALL: &str = "mcp_call";
/// The limit of model providers.
const MAX_TOOL_NAME: usize = 64;
const MAX_SERVER_NAME: usize = 32;

/// Checks the name of a server, which begins the names of its tools.
pub(crate) fn check_server_name(name: &str) -> Result<(), String> {
    let is_valid = (1..=MAX_SERVER_NAME).contains(&name.len())
        && name.bytes().all(is_allowed)
        && !name.contains(SEPARATOR)
        && !name.ends_with('_');
    if is_valid {
        return Ok(());
    }
    Err(format!(
        "a server's name has 1 to {MAX_SERVER_NAME} of `a-z A-Z 0-9 _ -`, no `{SEPARATOR}`, and no `_` at its end"
    ))
}

/// Returns the model's name for a tool. Characters that providers refuse become `_`; the end of a name that is too
/// long becomes a digest.
pub(crate) fn tool_name(server: &str, tool: &str) -> String {
    let allowed = |c: char| match c {
        c if c.is_ascii() && is_allowed(c as u8) => c,
        _ => '_',
    };
    let name: String = tool.chars().take(MAX_TOOL_NAME + 1).map(allowed).collect();
    let name = format!("{server}{SEPARATOR}{name}");
    if name.len() <= MAX_TOOL_NAME {
        return name;
    }
    let digest = format!("_{:08x}", digest(tool.as_bytes()));
    let kept = MAX_TOOL_NAME - digest.len();
    name.chars().take(kept).collect::<String>() + &digest
}

/// A short digest, for names. Not for security.
pub(crate) fn digest(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish() & 0xffff_ffff
}

fn is_allowed(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}
