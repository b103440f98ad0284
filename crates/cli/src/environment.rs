//! Environment variables.

use std::path::PathBuf;

/// Returns the value of an environment variable that is set and not empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Returns the path in an environment variable that is set and not empty.
pub(crate) fn path_variable(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os(name).filter(|value| !value.is_empty());
    path.map(PathBuf::from)
}
