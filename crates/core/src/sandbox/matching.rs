//! The files that a model names: by path, by directory, or by pattern.

use globset::GlobBuilder;

use super::{FileKind, RefusedFile, SandboxPath, Walk};

/// Maximum number of entries that are searched.
pub(super) const MAX_ENTRIES: usize = 100_000;
/// Maximum number of files that a directory or pattern stands for.
const MAX_FILES: usize = 10_000;
/// Maximum length of a pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1_000;

pub(super) const NO_FILE: &str = "there is no such file in the working directory";

/// The files that paths, directories and patterns stand for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MatchedFiles {
    /// The files, in the order of what names them.
    pub files: Vec<String>,
    /// Names that stand for no file, or for too many, and files that can't be named.
    pub refused: Vec<RefusedFile>,
}

/// Returns the files below a directory, or those that match a pattern. Cantle's own files are not among them.
pub(super) fn find(path: &SandboxPath, walk: &Walk) -> Result<MatchedFiles, &'static str> {
    let pattern = path.to_string();
    let entry = walk.entries.get(path);
    let is_directory = path.is_base() || entry.is_some_and(|it| it.kind == FileKind::Directory);
    let glob = match entry {
        _ if is_directory => None,
        Some(_) => return Err("it is not a regular file"),
        None if pattern.len() > MAX_PATTERN_BYTES => return Err(NO_FILE),
        None => {
            let glob = GlobBuilder::new(&pattern).literal_separator(true).build();
            Some(glob.map_err(|_| NO_FILE)?.compile_matcher())
        }
    };
    let files = walk
        .entries
        .iter()
        .filter(|(_, it)| it.kind == FileKind::File);
    let files = files.filter(|(file, _)| match &glob {
        Some(glob) => glob.is_match(file.to_string()),
        None => file.strip_prefix(path).is_some(),
    });
    let files = files.map(|(file, _)| file);
    let files = files.filter(|file| !file.relative_bytes().starts_with(b".cantle/"));
    let files: Vec<_> = files.take(MAX_FILES + 1).collect();
    match files.len() {
        _ if walk.is_truncated => {
            Err("the working directory has too many entries to search: name each file")
        }
        0 if is_directory => Err("the directory has no files"),
        0 => Err(NO_FILE),
        1..=MAX_FILES => Ok(named(&files)),
        _ => Err("it stands for more than 10,000 files: pack them into an archive"),
    }
}

/// Returns files by their names. Another file may have the text of a name that is not UTF-8, so such files are refused.
fn named(files: &[&SandboxPath]) -> MatchedFiles {
    let mut matched = MatchedFiles::default();
    for file in files {
        let name = file.to_string();
        if str::from_utf8(file.relative_bytes()).is_ok() {
            matched.files.push(name);
        } else {
            let refused = RefusedFile::new(name, "its name is not UTF-8: rename it");
            matched.refused.push(refused);
        }
    }
    matched
}
