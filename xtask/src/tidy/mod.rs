//! Rules for source files that no lint covers, as tests.

mod paths;
mod words;

use std::path::{Path, PathBuf};

use crate::workspace;

/// Maximum number of lines of a source file before its tests.
const MAX_LINES: usize = 600;

/// Forbidden text in source files, in halves so that this file does not contain it.
const FORBIDDEN: &[(&str, &str)] = &[("to", "do!("), ("FIX", "ME"), ("db", "g!(")];

fn sources() -> Vec<(PathBuf, String)> {
    texts(&["benches", "crates", "fuzz", "xtask", "examples"], &["rs"])
}

/// Returns the files with these extensions, and `.ci/run`, in the root of the repository and below the given directories:
/// their path from the root, and their text.
fn texts(directories: &[&str], extensions: &[&str]) -> Vec<(PathBuf, String)> {
    let root = workspace::root();
    let nested = directories.iter().map(|directory| root.join(directory));
    let nested = nested.flat_map(|directory| workspace::files(&directory).unwrap());
    let top = std::fs::read_dir(root)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file());
    let is_wanted = |path: &PathBuf| match path.extension() {
        Some(extension) => extensions.iter().any(|known| extension == *known),
        None => path.ends_with(".ci/run"),
    };
    nested
        .chain(top)
        .filter(is_wanted)
        .map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            (path.strip_prefix(root).unwrap().to_owned(), text)
        })
        .collect()
}

/// Fails with one line per violation.
fn assert_none(broken: &[String]) {
    assert!(broken.is_empty(), "\n{}", broken.join("\n"));
}

fn is_test_file(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "tests.rs")
        || path.components().any(|part| part.as_os_str() == "tests")
}

/// Returns the line of the first `allow` without a reason.
fn unreasoned_allow(text: &str) -> Option<usize> {
    let starts = ["#[", "#!["].map(|opening| format!("{opening}allow("));
    let found = starts
        .iter()
        .flat_map(|start| text.match_indices(start.as_str()));
    let mut lines = found.filter_map(|(at, _)| {
        let attribute = &text[at..];
        let end = attribute.find(")]").unwrap_or(attribute.len());
        let unreasoned = !attribute[..end].contains("reason");
        unreasoned.then(|| text[..at].matches('\n').count() + 1)
    });
    lines.next()
}

fn lines_before_tests(text: &str) -> usize {
    text.lines()
        .take_while(|line| line.trim() != "#[cfg(test)]")
        .count()
}

#[test]
fn no_file_has_unfinished_code() {
    let broken = |(path, text): &(PathBuf, String)| {
        let marks = FORBIDDEN.iter().map(|(one, other)| format!("{one}{other}"));
        let found: Vec<String> = marks.filter(|mark| text.contains(mark.as_str())).collect();
        (!found.is_empty()).then(|| format!("{} has {}", path.display(), found.join(", ")))
    };
    assert_none(&sources().iter().filter_map(broken).collect::<Vec<_>>());
}

#[test]
fn tests_named_in_the_threat_model_exist() {
    let text = std::fs::read_to_string(workspace::root().join("docs/security.md")).unwrap();
    let (_, evidence) = text.split_once("\n## Evidence\n").unwrap();
    let evidence = evidence.split("\n## ").next().unwrap();
    let rows = evidence.lines().filter(|line| line.starts_with("| "));
    let sources = sources();
    let mut broken = Vec::new();
    for row in rows.skip(1) {
        let names: Vec<&str> = row
            .split('`')
            .skip(1)
            .step_by(2)
            .filter(|name| !name.contains(' '))
            .collect();
        if names.is_empty() {
            broken.push(format!("no test: {row}"));
        }
        let missing = names.iter().filter(|name| {
            let function = format!("fn {name}(");
            let is_test = |(_, text): &(PathBuf, String)| text.contains(&function);
            !sources.iter().any(is_test)
        });
        broken.extend(missing.map(|name| format!("no function {name}")));
    }
    assert_none(&broken);
}

#[test]
fn every_allow_gives_a_reason() {
    let broken = |(path, text): &(PathBuf, String)| {
        unreasoned_allow(text)
            .map(|line| format!("{}:{line} allows without a reason", path.display()))
    };
    assert_none(&sources().iter().filter_map(broken).collect::<Vec<_>>());
}

#[test]
fn no_file_is_too_long() {
    let broken = |(path, text): &(PathBuf, String)| {
        let lines = lines_before_tests(text);
        let long = lines > MAX_LINES && !is_test_file(path);
        long.then(|| {
            format!(
                "{} has {lines} lines, more than {MAX_LINES}",
                path.display()
            )
        })
    };
    assert_none(&sources().iter().filter_map(broken).collect::<Vec<_>>());
}

#[test]
fn every_module_has_documentation() {
    let broken = |(path, text): &(PathBuf, String)| {
        let ours = path.components().any(|part| part.as_os_str() == "src");
        let silent = ours && !is_test_file(path) && !text.starts_with("//!");
        silent.then(|| format!("{} does not begin with //!", path.display()))
    };
    assert_none(&sources().iter().filter_map(broken).collect::<Vec<_>>());
}

#[test]
fn every_crate_has_the_lints_of_the_workspace() {
    let crates = std::fs::read_dir(workspace::root().join("crates")).unwrap();
    let broken = crates
        .map(|entry| entry.unwrap().path().join("Cargo.toml"))
        .filter_map(|path| {
            let text = std::fs::read_to_string(&path).unwrap();
            let missing = !text.contains("[lints]\nworkspace = true\n");
            missing.then(|| format!("{} lacks [lints] workspace = true", path.display()))
        });
    assert_none(&broken.collect::<Vec<_>>());
}

#[test]
fn violations_are_found() {
    let attribute = |rest: &str| format!("fn a() {{}}\n#[{}{rest}\nfn b() {{}}", "allow(");
    assert_eq!(unreasoned_allow(&attribute("dead_code)]")), Some(2));
    assert_eq!(
        unreasoned_allow(&attribute("\n    dead_code,\n    reason = \"why\"\n)]")),
        None
    );
    assert_eq!(
        lines_before_tests("a\nb\n    #[cfg(test)]\nmod tests {}\n"),
        2
    );
    assert!(is_test_file(Path::new("crates/core/src/path/tests.rs")));
    assert!(is_test_file(Path::new("crates/core/tests/history.rs")));
    assert!(!is_test_file(Path::new("crates/core/src/contests.rs")));
}
