//! Differences between two listings of a directory.

use std::cmp::Ordering;
use std::collections::HashMap;

use cantle_core::sandbox::FileKind;
use serde::Serialize;

use super::listing::ListedEntry;

/// A change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Change {
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Created,
    /// Renamed away; the new name has a `Created` event.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Renamed,
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    ModeChanged,
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Written,
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Removed,
}

/// Returns the changes between two listings, sorted by path, with the current entry, or the previous one if
/// removed. The mode of an uploaded file changes after its creation. The time is linear in the number of entries.
pub(crate) fn diff<'s>(
    before: &'s [ListedEntry],
    after: &'s [ListedEntry],
    is_upload: impl Fn(&ListedEntry) -> bool,
) -> Vec<(&'s ListedEntry, Change)> {
    let (mut removed, mut added, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    let (mut old, mut new) = (before.iter().peekable(), after.iter().peekable());
    loop {
        let order = match (old.peek(), new.peek()) {
            (Some(old), Some(new)) => old.relative_path.cmp(&new.relative_path),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (None, None) => break,
        };
        match order {
            Ordering::Less => removed.extend(old.next()),
            Ordering::Greater => added.extend(new.next()),
            Ordering::Equal => kept.extend(old.next().zip(new.next())),
        }
    }
    let by_inode = |entries: &[&'s ListedEntry]| -> HashMap<u64, FileKind> {
        let known = entries.iter().filter(|entry| entry.inode != 0);
        known.map(|entry| (entry.inode, entry.kind)).collect()
    };
    let (gone, come) = (by_inode(&removed), by_inode(&added));
    let mut events = Vec::new();
    for entry in removed {
        let is_renamed = come.get(&entry.inode) == Some(&entry.kind);
        let change = if is_renamed {
            Change::Renamed
        } else {
            Change::Removed
        };
        events.push((entry, change));
    }
    for entry in added {
        events.push((entry, Change::Created));
        if is_upload(entry) {
            events.push((entry, Change::ModeChanged));
        }
        // Creation and the first write usually fall between the same two listings.
        let was_renamed = gone.contains_key(&entry.inode);
        if entry.kind == FileKind::File && entry.size_bytes > 0 && !was_renamed {
            events.push((entry, Change::Written));
        }
    }
    for (old, entry) in kept {
        let replaced = old.inode != entry.inode;
        if old.mode != entry.mode || old.owner != entry.owner || old.group != entry.group {
            events.push((entry, Change::ModeChanged));
        }
        let written = old.size_bytes != entry.size_bytes || old.modified != entry.modified;
        if entry.kind == FileKind::File && (replaced || written) {
            events.push((entry, Change::Written));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, inode: u64, size_bytes: u64, mode: u32) -> ListedEntry {
        ListedEntry {
            relative_path: name.as_bytes().into(),
            kind: FileKind::File,
            target_kind: Some(FileKind::File),
            size_bytes,
            mode,
            owner: "".into(),
            group: "".into(),
            modified: None,
            inode,
        }
    }

    fn changes(before: &[ListedEntry], after: &[ListedEntry]) -> Vec<(String, Change)> {
        diff(before, after, |entry| *entry.relative_path == *b"uploaded")
            .into_iter()
            .map(|(entry, change)| {
                (
                    String::from_utf8_lossy(&entry.relative_path).into_owned(),
                    change,
                )
            })
            .collect()
    }

    #[test]
    fn each_change_is_detected() {
        use Change::{Created, ModeChanged, Removed, Renamed, Written};
        let a = || vec![file("a", 1, 5, 0o644)];
        let one = |name, inode, size, mode| vec![file(name, inode, size, mode)];
        for (before, after, expected) in [
            (vec![], vec![], &[][..]),
            (a(), a(), &[]),
            (vec![], a(), &[("a", Created), ("a", Written)]),
            (vec![], one("b", 2, 0, 0o644), &[("b", Created)]),
            (
                vec![],
                one("uploaded", 2, 5, 0o644),
                &[
                    ("uploaded", Created),
                    ("uploaded", ModeChanged),
                    ("uploaded", Written),
                ],
            ),
            (a(), vec![], &[("a", Removed)]),
            (a(), one("a", 1, 6, 0o644), &[("a", Written)]),
            (a(), one("a", 9, 5, 0o644), &[("a", Written)]),
            (a(), one("a", 1, 5, 0o600), &[("a", ModeChanged)]),
            (
                a(),
                one("b", 1, 5, 0o644),
                &[("a", Renamed), ("b", Created)],
            ),
        ] {
            let found = changes(&before, &after);
            let found: Vec<_> = found.iter().map(|(name, it)| (&**name, *it)).collect();
            assert_eq!(found, expected, "{before:?} {after:?}");
        }
    }

    #[test]
    fn replacing_every_file_takes_linear_time() {
        let files = |inode: u64| -> Vec<ListedEntry> {
            let names = 0..100_000;
            names
                .map(|name| file(&format!("{inode}-{name:06}"), inode + name, 1, 0o644))
                .collect()
        };
        // In quadratic time, minutes.
        let all = changes(&files(1_000_000), &files(2_000_000));
        assert_eq!(all.len(), 300_000);
    }
}
