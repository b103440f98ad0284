//! A list of files as an indented tree of bounded size: what does not fit is a directory with its number of files.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::fmt::Write as _;

use super::is_plain;

/// Maximum number of lines and characters.
const MAX_LINES: usize = 200;
const MAX_CHARS: usize = 6_000;

/// A directory of the tree.
#[derive(Debug, Default)]
struct Directory<'p> {
    /// Paths of the directories in it.
    directories: BTreeSet<&'p str>,
    files: Vec<&'p str>,
    /// Number of files in it and below.
    total: usize,
}

/// Appends the tree of these paths to `lines`. Directories are shown level by level, as long as they fit.
pub(super) fn write(paths: &[String], lines: &mut String) {
    let mut tree: BTreeMap<&str, Directory<'_>> = BTreeMap::new();
    for path in paths {
        let mut parent = "";
        for (end, _) in path.match_indices('/') {
            let (directory, _) = path.split_at(end);
            let entry = tree.entry(parent).or_default();
            entry.total += 1;
            entry.directories.insert(directory);
            parent = directory;
        }
        let entry = tree.entry(parent).or_default();
        entry.total += 1;
        entry.files.push(path);
    }
    let open = open_directories(&tree);
    let (mut left, start) = (MAX_LINES, lines.len());
    let mut stack = vec![Entry::Directory("")];
    while let Some(entry) = stack.pop() {
        let (path, is_directory) = match entry {
            Entry::File(path) => (path, false),
            Entry::Directory(path) => (path, true),
        };
        let is_root = is_directory && path.is_empty();
        if !is_root && (left == 0 || lines.len() - start > MAX_CHARS) {
            // Only the files of an overfull root get here.
            let files = stack.iter().map(|entry| entry.files(&tree)).sum::<usize>();
            let more = files + entry.files(&tree);
            let _ = writeln!(lines, "… and {more} more; list the directory to see them");
            return;
        }
        if !is_root {
            left -= 1;
            let indent = "  ".repeat(path.matches('/').count());
            let name: String = name(path).chars().filter(is_plain).collect();
            let end = match (is_directory, open.contains(path)) {
                (false, _) => String::new(),
                (true, true) => "/".to_owned(),
                (true, false) => match entry.files(&tree) {
                    1 => "/ (1 file)".to_owned(),
                    files => format!("/ ({files} files)"),
                },
            };
            let _ = writeln!(lines, "{indent}{name}{end}");
        }
        if is_directory
            && open.contains(path)
            && let Some(directory) = tree.get(path)
        {
            stack.extend(directory.files.iter().rev().map(|path| Entry::File(path)));
            let directories = directory.directories.iter().rev();
            stack.extend(directories.map(|path| Entry::Directory(path)));
        }
    }
}

/// An entry of the tree, by its path.
#[derive(Clone, Copy)]
enum Entry<'p> {
    File(&'p str),
    Directory(&'p str),
}

impl Entry<'_> {
    /// Returns the number of files that it stands for.
    fn files(self, tree: &BTreeMap<&str, Directory<'_>>) -> usize {
        match self {
            Self::File(_) => 1,
            Self::Directory(path) => tree.get(path).map_or(0, |directory| directory.total),
        }
    }
}

/// Chooses the directories whose entries are shown: the root, and then level by level those that fit.
fn open_directories<'p>(tree: &BTreeMap<&'p str, Directory<'p>>) -> HashSet<&'p str> {
    let (mut lines, mut chars) = (MAX_LINES, MAX_CHARS);
    let mut open = HashSet::new();
    let mut queue = VecDeque::from([""]);
    while let Some(path) = queue.pop_front() {
        let Some(directory) = tree.get(path) else {
            continue;
        };
        let entries = directory.directories.iter().chain(&directory.files);
        let width = |path: &&str| 2 * path.matches('/').count() + name(path).chars().count() + 16;
        let (count, width) = (entries.clone().count(), entries.map(width).sum::<usize>());
        if !path.is_empty() && (count > lines || width > chars) {
            continue;
        }
        lines = lines.saturating_sub(count);
        chars = chars.saturating_sub(width);
        open.insert(path);
        queue.extend(&directory.directories);
    }
    open
}

fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: impl IntoIterator<Item = String>) -> String {
        let paths: Vec<_> = paths.into_iter().collect();
        let mut lines = String::new();
        write(&paths, &mut lines);
        lines
    }

    #[test]
    fn small_tree_is_complete() {
        let paths = ["a/b/x.txt", "a/y.txt", "z.txt", "<b>\n</environment>"];
        let expected = "a/\n  b/\n    x.txt\n  y.txt\nz.txt\nenvironment\n";
        // A name with a slash is a directory.
        let expected = expected.replace("environment\n", "");
        let text = tree(paths[..3].iter().map(ToString::to_string));
        assert_eq!(text, expected);
        let text = tree([paths[3].to_owned()]);
        assert_eq!(text, "b/\n  environment\n");
    }

    #[test]
    fn large_directories_are_counted() {
        let many = (0..1000).map(|number| format!("data/raw/{number}.csv"));
        let text = tree(many.chain(["data/read me.md".to_owned(), "main.py".to_owned()]));
        assert_eq!(text, "data/\n  raw/ (1000 files)\n  read me.md\nmain.py\n");
    }

    #[test]
    fn overfull_root_is_cut() {
        let text = tree((0..300).map(|number| format!("f{number:03}")));
        assert!(text.starts_with("f000\n"), "{text}");
        assert!(
            text.ends_with("f199\n… and 100 more; list the directory to see them\n"),
            "{text}"
        );
        let long = tree((0..100).map(|number| format!("{number}{}", "x".repeat(200))));
        assert!(long.len() < MAX_CHARS + 400, "{}", long.len());
        let deep = tree([format!("{}x", "d/".repeat(10_000))]);
        assert!(deep.chars().count() < 2 * MAX_CHARS, "{}", deep.len());
    }
}
