//! Paths in the documentation: every file that it names exists.

use std::collections::BTreeSet;
use std::path::{Component, Path, PathBuf};

use super::{assert_none, texts};
use crate::workspace;

/// The ends of the paths of all files and directories: of `a/b/c.rs`, for example, `b` and `b/c.rs`.
fn path_ends(files: impl IntoIterator<Item = PathBuf>) -> BTreeSet<PathBuf> {
    let mut ends = BTreeSet::new();
    for file in files {
        for path in file.ancestors() {
            let mut rest = path.components();
            while !rest.as_path().as_os_str().is_empty() {
                ends.insert(rest.as_path().to_owned());
                rest.next();
            }
        }
    }
    ends
}

/// Returns the relative paths among the code spans of a line: those with a slash, and names of source files.
fn paths(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |word: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
        let is_source = ["rs", "py", "js"].iter().any(|extension| {
            Path::new(word)
                .extension()
                .is_some_and(|it| it == *extension)
        });
        word.chars().all(plain) && !word.starts_with('/') && (word.contains('/') || is_source)
    };
    line.split('`').skip(1).step_by(2).filter(is_path)
}

/// Returns the targets of a line's links within the repository.
fn links(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| {
        let target = rest.split([')', ' ']).next()?.split('#').next()?;
        (!target.is_empty() && !target.contains(':')).then_some(target)
    })
}

/// Resolves `..` without looking at the disk.
fn normalize(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[test]
fn files_named_in_the_architecture_exist() {
    let root = workspace::root();
    let text = std::fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let files = ["crates", "examples", "fuzz", "xtask"].map(|part| root.join(part));
    let files = files
        .iter()
        .flat_map(|part| workspace::files(part).unwrap())
        .map(|path| path.strip_prefix(root).unwrap().to_owned());
    let files: Vec<PathBuf> = files.collect();
    let everywhere = path_ends(files.iter().cloned());
    let mut broken = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        // A row of the table of crates is about the files of one.
        let of_crate = line.strip_prefix("| `").and_then(|row| {
            let (name, _) = row.split_once('`')?;
            let directories = [Path::new("crates").join(name), PathBuf::from(name)];
            let of_crate = files
                .iter()
                .filter(|file| directories.iter().any(|it| file.starts_with(it)));
            Some(path_ends(of_crate.cloned()))
        });
        let known = of_crate.as_ref().unwrap_or(&everywhere);
        let missing = paths(line).filter(|path| !known.contains(&normalize(Path::new(path))));
        broken.extend(missing.map(|path| format!("ARCHITECTURE.md:{number}: no file {path}")));
    }
    assert_none(&broken);
}

#[test]
fn files_named_in_the_documentation_exist() {
    let root = workspace::root();
    let parts = [
        "crates/",
        "docs/",
        "examples/",
        "fuzz/",
        "xtask/",
        "benches/",
    ];
    let mut broken = Vec::new();
    for (document, text) in texts(&["crates", "docs", "examples"], &["md"]) {
        let directory = document.parent().unwrap();
        for (number, line) in (1..).zip(text.lines()) {
            let named = paths(line).filter(|path| parts.iter().any(|part| path.starts_with(part)));
            let named = named.map(PathBuf::from);
            let linked = links(line).map(|target| normalize(&directory.join(target)));
            let missing = named.chain(linked).filter(|path| !root.join(path).exists());
            broken.extend(missing.map(|path| {
                format!(
                    "{}:{number}: no file {}",
                    document.display(),
                    path.display()
                )
            }));
        }
    }
    assert_none(&broken);
}

#[test]
fn named_paths_are_found() {
    let line =
        "`a/b.rs`, `mod.rs`, `/tmp`, `a b/c` and [`x`](../y.md#part), [z](https://example.org/z)";
    assert_eq!(paths(line).collect::<Vec<_>>(), ["a/b.rs", "mod.rs"]);
    assert_eq!(links(line).collect::<Vec<_>>(), ["../y.md"]);
    let ends = path_ends([PathBuf::from("a/b/c.rs")]);
    let found = |path: &str| ends.contains(Path::new(path));
    assert!(found("b/c.rs") && found("a/b") && found("b") && !found("a/c.rs"));
    assert_eq!(normalize(Path::new("docs/../a/./b")), Path::new("a/b"));
}
