//! Changes as text: a patch as git writes it, and a line per file.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use similar::{ChangeTag, TextDiff};

use super::WorkingCopy;
use super::changes::{Change, Changes, Tree, Version};

/// Time for comparing two texts; a longer diff than necessary is found after it.
const DEADLINE: Duration = Duration::from_secs(2);

/// Files with more bytes are compared as binary ones.
const MAX_TEXT_BYTES: u64 = 10_000_000;

/// Bytes at the start of a file in which a NUL means that it is no text, as for git.
const PROBED_BYTES: usize = 8_000;

/// A changed file in a diff; a new file with the content of a deleted one is that file, renamed.
#[derive(Debug)]
pub(crate) struct FileDiff<'c> {
    pub(crate) change: &'c Change,
    /// The deletion of the file that this one was before it was renamed.
    pub(crate) renamed_from: Option<&'c Change>,
    pub(crate) added_lines: usize,
    pub(crate) removed_lines: usize,
    pub(crate) is_binary: bool,
}

impl WorkingCopy {
    /// Compares the files of both versions. Blocks.
    ///
    /// # Errors
    /// If a file can't be read.
    pub(crate) fn diff<'c>(&self, changes: &'c Changes) -> anyhow::Result<Vec<FileDiff<'c>>> {
        let mut deleted: HashMap<&str, &Change> = HashMap::new();
        for change in &changes.files {
            if let (Some(old), None) = (&change.old, &change.new) {
                deleted.insert(&old.sha256, change);
            }
        }
        let mut renames: HashMap<&str, &Change> = HashMap::new();
        for change in &changes.files {
            if let (None, Some(new)) = (&change.old, &change.new)
                && let Some(from) = deleted.remove(&*new.sha256)
            {
                renames.insert(&change.path, from);
            }
        }
        let sources: HashSet<_> = renames.values().map(|from| &from.path).collect();
        let files = changes.files.iter();
        let shown = files.filter(|change| !sources.contains(&change.path));
        shown
            .map(|change| {
                let from = renames.get(&*change.path).copied();
                Ok(self.compare(change, from)?.0)
            })
            .collect()
    }

    /// Returns the patch of a file; not of all at once, which may be large. Blocks.
    ///
    /// # Errors
    /// As [`diff`](Self::diff).
    pub(crate) fn patch(&self, file: &FileDiff<'_>) -> anyhow::Result<Vec<u8>> {
        Ok(self.compare(file.change, file.renamed_from)?.1)
    }

    fn compare<'c>(
        &self,
        change: &'c Change,
        renamed_from: Option<&'c Change>,
    ) -> anyhow::Result<(FileDiff<'c>, Vec<u8>)> {
        let mut diff = FileDiff {
            change,
            renamed_from,
            added_lines: 0,
            removed_lines: 0,
            is_binary: false,
        };
        let source = renamed_from.unwrap_or(change);
        let (a, b) = (quoted("a", &source.path), quoted("b", &change.path));
        let mut patch = format!("diff --git {a} {b}\n");
        match (&source.old, &change.new) {
            (Some(old), Some(new)) if old.executable != new.executable => {
                patch += &format!("old mode {}\nnew mode {}\n", mode(old), mode(new));
            }
            (Some(old), None) => patch += &format!("deleted file mode {}\n", mode(old)),
            (None, Some(new)) => patch += &format!("new file mode {}\n", mode(new)),
            _ => {}
        }
        if let Some(from) = renamed_from {
            let (from, to) = (quoted("", &from.path), quoted("", &change.path));
            patch += &format!("similarity index 100%\nrename from {from}\nrename to {to}\n");
        }
        let mut patch = patch.into_bytes();
        let digest = |version: &Option<Version>| version.as_ref().map(|it| it.sha256.clone());
        if digest(&source.old) == digest(&change.new) {
            return Ok((diff, patch));
        }
        let read = |tree, name: String, version: &Option<Version>| match version {
            Some(_) => {
                let path = self.content(tree, &change.path);
                let text = read_text(&path);
                let text = text.with_context(|| format!("failed to read {}", path.display()))?;
                anyhow::Ok((name, text))
            }
            None => Ok(("/dev/null".to_owned(), Some(Vec::new()))),
        };
        let (a, old) = read(Tree::Old, a, &change.old)?;
        let (b, new) = read(Tree::New, b, &change.new)?;
        let (Some(old), Some(new)) = (old, new) else {
            diff.is_binary = true;
            // Git refuses all of a patch that has a header for a binary file, but not its content. It passes over this line,
            // unless that is next to the header of another file.
            let named = format!("\nBinary files {a} and {b} differ\n");
            return Ok((diff, named.into_bytes()));
        };
        let (old, new) = (lines(&old), lines(&new));
        let text = TextDiff::configure()
            .timeout(DEADLINE)
            .diff_slices(&old, &new);
        for (index, hunk) in text.unified_diff().iter_hunks().enumerate() {
            if index == 0 {
                writeln!(patch, "--- {a}\n+++ {b}")?;
            }
            writeln!(patch, "{}", hunk.header())?;
            for change in hunk.iter_changes() {
                match change.tag() {
                    ChangeTag::Insert => diff.added_lines += 1,
                    ChangeTag::Delete => diff.removed_lines += 1,
                    ChangeTag::Equal => {}
                }
                write!(patch, "{}", change.tag())?;
                patch.write_all(change.value())?;
                if !change.value().ends_with(b"\n") {
                    writeln!(patch, "\n\\ No newline at end of file")?;
                }
            }
        }
        Ok((diff, patch))
    }
}

/// Splits a text into lines as git does: carriage returns end none.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn mode(version: &Version) -> &'static str {
    if version.executable {
        "100755"
    } else {
        "100644"
    }
}

/// Reads a file; `None` if it is a binary one.
fn read_text(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut content = Vec::new();
    let mut file = File::open(path)?.take(MAX_TEXT_BYTES + 1);
    file.read_to_end(&mut content)?;
    let is_binary = content.len() as u64 > MAX_TEXT_BYTES
        || content.iter().take(PROBED_BYTES).any(|byte| *byte == 0);
    Ok((!is_binary).then_some(content))
}

/// Returns `SIDE/PATH` as git writes it: quoted if it has special characters.
fn quoted(side: &str, path: &str) -> String {
    let path = if side.is_empty() {
        path.to_owned()
    } else {
        format!("{side}/{path}")
    };
    if !path
        .chars()
        .any(|c| c.is_control() || matches!(c, '"' | '\\'))
    {
        return path;
    }
    let mut quoted = String::from("\"");
    for byte in path.bytes() {
        match byte {
            b'"' | b'\\' => quoted.extend(['\\', char::from(byte)]),
            b' '..=b'~' => quoted.push(char::from(byte)),
            _ => quoted += &format!("\\{byte:03o}"),
        }
    }
    quoted + "\""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn huge_files_are_binary_and_not_read_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 36).unwrap();
        assert_eq!(read_text(file.path()).unwrap(), None);
    }
}
