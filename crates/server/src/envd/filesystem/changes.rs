//! What changed between two looks at a directory.

use std::collections::{BTreeMap, HashMap};

use cantle_core::sandbox::FileKind;

use super::census::Seen;

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Created,
    /// It is called something else now, which is created.
    Renamed,
    Changed,
    Written,
    Removed,
}

impl What {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Created => "EVENT_TYPE_CREATE",
            Self::Renamed => "EVENT_TYPE_RENAME",
            Self::Changed => "EVENT_TYPE_CHMOD",
            Self::Written => "EVENT_TYPE_WRITE",
            Self::Removed => "EVENT_TYPE_REMOVE",
        }
    }
}

/// All that was seen at once, by path below the start.
pub(crate) type Look = BTreeMap<Vec<u8>, Seen>;

/// What happened between two looks, with what is there now where something is.
pub(crate) fn between<'l>(before: &'l Look, after: &'l Look) -> Vec<(&'l Seen, What)> {
    let new = || {
        after
            .values()
            .filter(|seen| !before.contains_key(&seen.below))
    };
    let moved: HashMap<u64, &Seen> = new()
        .filter(|seen| seen.inode != 0)
        .map(|seen| (seen.inode, seen))
        .collect();
    let mut events = Vec::new();
    for seen in before.values() {
        let came_back = moved.get(&seen.inode).filter(|new| new.kind == seen.kind);
        match (after.contains_key(&seen.below), came_back) {
            (true, _) => {}
            (false, Some(_)) => events.push((seen, What::Renamed)),
            (false, None) => events.push((seen, What::Removed)),
        }
    }
    let was_there = |seen: &Seen| {
        seen.inode != 0
            && before
                .values()
                .any(|old| old.inode == seen.inode && !after.contains_key(&old.below))
    };
    for seen in new() {
        events.push((seen, What::Created));
        // Making a file and writing it is one look apart at the most.
        if seen.kind == FileKind::File && seen.size_bytes > 0 && !was_there(seen) {
            events.push((seen, What::Written));
        }
    }
    for seen in after.values() {
        let Some(old) = before.get(&seen.below) else {
            continue;
        };
        let replaced = old.inode != seen.inode;
        if old.mode != seen.mode || old.owner != seen.owner || old.group != seen.group {
            events.push((seen, What::Changed));
        }
        let written = old.size_bytes != seen.size_bytes || old.modified != seen.modified;
        if seen.kind == FileKind::File && (replaced || written) {
            events.push((seen, What::Written));
        }
    }
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, inode: u64, size_bytes: u64, mode: u32) -> Seen {
        Seen {
            below: name.into(),
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

    fn look(files: &[Seen]) -> Look {
        files
            .iter()
            .map(|file| (file.below.clone(), file.clone()))
            .collect()
    }

    fn told(before: &[Seen], after: &[Seen]) -> Vec<(String, What)> {
        let (before, after) = (look(before), look(after));
        between(&before, &after)
            .into_iter()
            .map(|(seen, what)| (String::from_utf8_lossy(&seen.below).into_owned(), what))
            .collect()
    }

    #[test]
    fn each_change_has_its_event() {
        let a = file("a", 1, 5, 0o644);
        let event = |name: &str, what| (name.to_owned(), what);
        assert_eq!(told(&[], &[]), []);
        assert_eq!(told(std::slice::from_ref(&a), std::slice::from_ref(&a)), []);
        assert_eq!(
            told(&[], std::slice::from_ref(&a)),
            [event("a", What::Created), event("a", What::Written)]
        );
        assert_eq!(
            told(&[], &[file("b", 2, 0, 0o644)]),
            [event("b", What::Created)]
        );
        assert_eq!(
            told(std::slice::from_ref(&a), &[]),
            [event("a", What::Removed)]
        );
        assert_eq!(
            told(std::slice::from_ref(&a), &[file("a", 1, 6, 0o644)]),
            [event("a", What::Written)]
        );
        assert_eq!(
            told(std::slice::from_ref(&a), &[file("a", 9, 5, 0o644)]),
            [event("a", What::Written)]
        );
        assert_eq!(
            told(std::slice::from_ref(&a), &[file("a", 1, 5, 0o600)]),
            [event("a", What::Changed)]
        );
        assert_eq!(
            told(&[a], &[file("b", 1, 5, 0o644)]),
            [event("a", What::Renamed), event("b", What::Created)]
        );
    }
}
