//! What callers mean by a path.

use cantle_core::sandbox::SandboxPath;

use super::fault::Fault;

/// The path that `text` means to a user whose home is `home`: empty and `~` are the home, and what is
/// relative lies in it.
pub(crate) fn resolve(text: &str, home: &SandboxPath) -> Result<SandboxPath, Fault> {
    if text.starts_with('/') {
        return Ok(SandboxPath::new(text)?);
    }
    let below = match text.strip_prefix('~') {
        None => text,
        Some("") => "",
        Some(rest) => rest.strip_prefix('/').ok_or_else(|| {
            let message = format!("path '{text}': the homes of others are not known");
            Fault::invalid(message)
        })?,
    };
    // As text, since it may climb out of the home.
    Ok(SandboxPath::new(format!("{home}/{below}"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_start_at_the_home_or_at_the_root() {
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
