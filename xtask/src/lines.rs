//! `cargo xtask lines`: the size of the code.
//!
//! A line counts if it holds code: comments, documentation and blank lines don't count, and neither do
//! tests (`tests.rs`, `tests/`, items under `#[cfg(test)]`). Formatting is what `cargo fmt` produces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use syn::Item;
use syn::spanned::Spanned;

use crate::{source, workspace};

/// Count the lines of code of each crate.
#[derive(clap::Args)]
pub struct LinesArgs {
    /// The root of the checkout to count (default: this one).
    #[arg(long)]
    root: Option<PathBuf>,
}

pub fn run(args: &LinesArgs) -> Result<()> {
    let root = args.root.as_deref().unwrap_or(workspace::root());
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for (part, directory) in parts(root)? {
        let files = workspace::files(&directory)?;
        let files: Vec<_> = files.iter().filter(|file| is_code(file)).collect();
        let mut tests = BTreeSet::new();
        let mut lines = Vec::new();
        for file in files {
            let text = fs::read_to_string(file)
                .with_context(|| format!("failed to read {}", file.display()))?;
            let counted =
                count(&text).with_context(|| format!("failed to parse {}", file.display()))?;
            let is_root = ["mod.rs", "lib.rs", "main.rs"]
                .iter()
                .any(|name| file.ends_with(name));
            let children = if is_root {
                file.with_file_name("")
            } else {
                file.with_extension("")
            };
            tests.extend(counted.test_modules.iter().map(|name| children.join(name)));
            lines.push((file.with_extension(""), counted.lines));
        }
        let code = lines
            .iter()
            .filter(|(file, _)| !tests.iter().any(|test| file.starts_with(test)));
        *counts.entry(part).or_default() += code.map(|(_, lines)| lines).sum::<usize>();
    }
    for (part, lines) in &counts {
        println!("{lines:>7}  {part}");
    }
    println!("{:>7}  total", counts.values().sum::<usize>());
    Ok(())
}

/// The directories to count, with the name of the crate they belong to.
fn parts(root: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut parts = vec![("xtask".to_owned(), root.join("xtask/src"))];
    for entry in fs::read_dir(root.join("crates"))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        for directory in ["src", "program"].map(|directory| entry.path().join(directory)) {
            if directory.exists() {
                parts.push((name.clone(), directory));
            }
        }
    }
    Ok(parts)
}

fn is_code(file: &Path) -> bool {
    let is_rust = file.extension().is_some_and(|extension| extension == "rs");
    let is_test = file.components().any(|part| part.as_os_str() == "tests")
        || file.file_name().is_some_and(|name| name == "tests.rs");
    is_rust && !is_test
}

struct Counted {
    lines: usize,
    /// Modules with a file of their own that are compiled for tests only.
    test_modules: Vec<String>,
}

fn count(text: &str) -> Result<Counted> {
    let mut lines = BTreeSet::new();
    let source: Vec<&str> = text.lines().collect();
    let tokens = text
        .parse::<TokenStream>()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    add_lines(tokens, &source, &mut lines);
    let mut test_modules = Vec::new();
    for item in syn::parse_file(text)?.items {
        if source::is_test(source::attributes(&item)) {
            let span = item.span();
            for line in span.start().line..=span.end().line {
                lines.remove(&line);
            }
            if let Item::Mod(declared) = &item
                && declared.content.is_none()
            {
                test_modules.push(declared.ident.to_string());
            }
        }
    }
    Ok(Counted {
        lines: lines.len(),
        test_modules,
    })
}

/// Adds the lines on which a token stands, without those of comments, which are attributes here.
fn add_lines(tokens: TokenStream, source: &[&str], lines: &mut BTreeSet<usize>) {
    for token in tokens {
        let span = token.span();
        let (start, end) = (span.start(), span.end());
        let line = source.get(start.line - 1).into_iter();
        let at_start: String = line
            .flat_map(|line| line.chars().skip(start.column).take(2))
            .collect();
        if matches!(&*at_start, "//" | "/*") {
            continue;
        }
        match token {
            TokenTree::Group(group) => {
                lines.insert(start.line);
                lines.insert(end.line);
                add_lines(group.stream(), source, lines);
            }
            _ => lines.extend(start.line..=end.line),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_blank_lines_and_tests_do_not_count() {
        let text = "//! Docs.\n\n/// Docs,\n/// two lines.\nfn one() {\n    // Comment.\n    two(); // Same line.\n\n    \
                    \"three\n\n    five\";\n}\n\n/* block\n*/\n#[cfg(test)]\nmod fixture;\n\n\
                    #[cfg(test)]\nmod tests {\n    fn a() {}\n}\n";
        let counted = count(text).unwrap();
        assert_eq!(counted.lines, 6);
        assert_eq!(counted.test_modules, ["fixture"]);
    }

    #[test]
    fn test_files_are_known_by_their_place() {
        assert!(!is_code(Path::new("crates/core/src/path/tests.rs")));
        assert!(!is_code(Path::new("crates/core/src/tests/deep.rs")));
        assert!(!is_code(Path::new("crates/core/src/notes.md")));
        assert!(is_code(Path::new("crates/core/src/contests.rs")));
    }
}
