//! The keys of a server's clients, and the principals that some are bound to.

use std::collections::HashMap;
use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use cantle::core::principal::{Level, Principal};
use cantle::core::secret::SecretText;

use crate::environment::variable;
use crate::text::without_byte_order_mark;

/// Variable of the comma-separated keys, if there is no key file.
pub(super) const KEYS_VARIABLE: &str = "CANTLE_SERVE_KEYS";

/// Returns the keys of the file, or else of the variable.
pub(super) fn keys(file: Option<&Path>) -> anyhow::Result<Vec<SecretText>> {
    let (text, separator) = match file {
        Some(path) => (read(path)?, '\n'),
        None => (variable(KEYS_VARIABLE).unwrap_or_default(), ','),
    };
    let entries = entries(&text, separator);
    let keys: Vec<SecretText> = entries.map(|(_, key)| key.into()).collect();
    match file {
        Some(path) if keys.is_empty() => Err(anyhow!("{} contains no key", path.display())),
        _ => Ok(keys),
    }
}

/// Returns the keys of a file of principals: lines of `KEY ID [LEVEL]`.
pub(super) fn principals(file: &Path) -> anyhow::Result<Vec<(SecretText, Principal)>> {
    let text = read(file)?;
    let (mut levels, mut owners) = (HashMap::new(), HashMap::new());
    let mut principals = Vec::new();
    for (number, line) in entries(&text, '\n') {
        // The line has a key: an error does not repeat it.
        let place = || format!("line {number} of {}", file.display());
        let mut words = line.split_whitespace();
        let (Some(key), Some(id)) = (words.next(), words.next()) else {
            bail!("{} is not `KEY ID [LEVEL]`", place());
        };
        if *owners.entry(key).or_insert(id) != id {
            bail!("{} binds a key to a second principal", place());
        }
        let level = words.next().map_or(Ok(Level::Guest), str::parse);
        let level = level.with_context(place)?;
        if words.next().is_some() || *levels.entry(id).or_insert(level) != level {
            bail!("{} gives `{id}` a second level", place());
        }
        let principal = Principal::new(id, level).with_context(place)?;
        principals.push((key.into(), principal));
    }
    if principals.is_empty() {
        bail!("{} contains no principal", file.display());
    }
    Ok(principals)
}

fn read(file: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(file)
        .with_context(|| format!("failed to read the keys in {}", file.display()))
}

/// Returns the entries with their numbers, counted from 1, without empty ones and comments.
fn entries(text: &str, separator: char) -> impl Iterator<Item = (usize, &str)> {
    let text = without_byte_order_mark(text);
    let entries = text.split(separator).map(str::trim);
    let numbered = (1..).zip(entries);
    numbered.filter(|(_, entry)| !entry.is_empty() && !entry.starts_with('#'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> anyhow::Result<Vec<(String, Principal)>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        let principals = principals(file.path())?;
        let shown = principals.into_iter();
        Ok(shown
            .map(|(key, it)| (key.expose().to_owned(), it))
            .collect())
    }

    #[test]
    fn principals_are_read_and_checked_without_showing_keys() {
        let alice = Principal::new("alice", Level::Admin).unwrap();
        let bob = Principal::new("bob", Level::Guest).unwrap();
        let text = "\u{feff}one alice admin\r\n# key id level\n\ntwo alice admin\nthree bob\n";
        let expected = [("one", &alice), ("two", &alice), ("three", &bob)];
        let expected = expected.map(|(key, it)| (key.to_owned(), it.clone()));
        assert_eq!(parsed(text).unwrap(), expected);
        for (wrong, line) in [
            ("", ""),
            ("hunter2", "line 1 of "),
            ("# key id level\n\nhunter2", "line 3 of "),
            ("hunter2 alice root", "line 1 of "),
            ("hunter2 alice user more", "line 1 of "),
            ("hunter2 alice user\nkey alice admin", "line 2 of "),
            ("hunter2 alice\nhunter2 bob", "line 2 of "),
        ] {
            let error = format!("{:#}", parsed(wrong).unwrap_err());
            assert!(!error.contains("hunter2"), "{error}");
            assert!(error.starts_with(line), "{error}");
        }
    }
}
