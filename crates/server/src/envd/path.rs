//! Resolution of paths in requests.

use cantle_core::sandbox::SandboxPath;

use super::error::{EnvdError, Result};

/// Resolves a path: the empty path and `~` are `home`, and relative paths start there.
pub(crate) fn resolve(text: &str, home: &SandboxPath) -> Result<SandboxPath> {
    if text.starts_with('/') {
        return Ok(SandboxPath::new(text)?);
    }
    let below = match text.strip_prefix('~') {
        None => text,
        Some("") => "",
        Some(rest) => rest.strip_prefix('/').ok_or_else(|| {
            let message = format!("path '{text}': the home directories of other users are unknown");
            EnvdError::invalid(message)
        })?,
    };
    // Joined as text because `..` may lead out of the home directory.
    Ok(SandboxPath::new(format!("{home}/{below}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_resolve_relative_to_home_or_root() {
        let home = SandboxPath::new("/home/user").unwrap();
        let at = |text| resolve(text, &home).map(|path| path.to_string()).ok();
        for (text, path) in [
            ("", "/home/user"),
            ("~", "/home/user"),
            ("~/a", "/home/user/a"),
            ("a/./b", "/home/user/a/b"),
            ("../other", "/home/other"),
            ("/tmp//x/", "/tmp/x"),
        ] {
            assert_eq!(at(text).as_deref(), Some(path), "{text}");
        }
        for text in ["~root", "/..", "a\0b", "../../../x"] {
            assert_eq!(at(text), None, "{text}");
        }
    }
}
