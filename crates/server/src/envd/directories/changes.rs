//! Differences between two snapshots of a directory.

use std::collections::{BTreeMap, HashMap};

use cantle_core::sandbox::FileKind;

use super::listing::ListedEntry;

/// A change of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Created,
    /// Renamed away; the new name has a `Created` event.
    Renamed,
    ModeChanged,
    Written,
    Removed,
}

impl Change {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "EVENT_TYPE_CREATE",
            Self::Renamed => "EVENT_TYPE_RENAME",
            Self::ModeChanged => "EVENT_TYPE_CHMOD",
            Self::Written => "EVENT_TYPE_WRITE",
            Self::Removed => "EVENT_TYPE_REMOVE",
        }
    }
}

/// A listing by path below the start.
pub(crate) type Snapshot = BTreeMap<Vec<u8>, ListedEntry>;

/// Returns the changes between two snapshots, with the current entry, or the previous one if removed.
pub(crate) fn diff<'s>(
    before: &'s Snapshot,
    after: &'s Snapshot,
) -> Vec<(&'s ListedEntry, Change)> {
    let new = || {
        after
            .values()
            .filter(|entry| !before.contains_key(&entry.relative_path))
    };
    let moved: HashMap<u64, &ListedEntry> = new()
        .filter(|entry| entry.inode != 0)
        .map(|entry| (entry.inode, entry))
        .collect();
    let mut events = Vec::new();
    for entry in before.values() {
        let renamed_to = moved.get(&entry.inode).filter(|new| new.kind == entry.kind);
        match (after.contains_key(&entry.relative_path), renamed_to) {
            (true, _) => {}
            (false, Some(_)) => events.push((entry, Change::Renamed)),
            (false, None) => events.push((entry, Change::Removed)),
        }
    }
    let was_renamed = |entry: &ListedEntry| {
        entry.inode != 0
            && before
                .values()
                .any(|old| old.inode == entry.inode && !after.contains_key(&old.relative_path))
    };
    for entry in new() {
        events.push((entry, Change::Created));
        // Creation and the first write usually fall between the same two snapshots.
        if entry.kind == FileKind::File && entry.size_bytes > 0 && !was_renamed(entry) {
            events.push((entry, Change::Written));
        }
    }
    for entry in after.values() {
        let Some(old) = before.get(&entry.relative_path) else {
            continue;
        };
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
            relative_path: name.into(),
            kind: FileKind::File,
            target_kind: Some(FileKind::File),
            size_bytes,
            mode,
            owner: String::new(),
            group: String::new(),
            modified: None,
            changed: String::new(),
            inode,
        }
    }

    fn snapshot(files: &[ListedEntry]) -> Snapshot {
        files
            .iter()
            .map(|file| (file.relative_path.clone(), file.clone()))
            .collect()
    }

    fn changes(before: &[ListedEntry], after: &[ListedEntry]) -> Vec<(String, Change)> {
        let (before, after) = (snapshot(before), snapshot(after));
        diff(&before, &after)
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
        let a = file("a", 1, 5, 0o644);
        let event = |name: &str, change| (name.to_owned(), change);
        assert_eq!(changes(&[], &[]), []);
        assert_eq!(
            changes(std::slice::from_ref(&a), std::slice::from_ref(&a)),
            []
        );
        assert_eq!(
            changes(&[], std::slice::from_ref(&a)),
            [event("a", Change::Created), event("a", Change::Written)]
        );
        assert_eq!(
            changes(&[], &[file("b", 2, 0, 0o644)]),
            [event("b", Change::Created)]
        );
        assert_eq!(
            changes(std::slice::from_ref(&a), &[]),
            [event("a", Change::Removed)]
        );
        assert_eq!(
            changes(std::slice::from_ref(&a), &[file("a", 1, 6, 0o644)]),
            [event("a", Change::Written)]
        );
        assert_eq!(
            changes(std::slice::from_ref(&a), &[file("a", 9, 5, 0o644)]),
            [event("a", Change::Written)]
        );
        assert_eq!(
            changes(std::slice::from_ref(&a), &[file("a", 1, 5, 0o600)]),
            [event("a", Change::ModeChanged)]
        );
        assert_eq!(
            changes(&[a], &[file("b", 1, 5, 0o644)]),
            [event("a", Change::Renamed), event("b", Change::Created)]
        );
    }
}
