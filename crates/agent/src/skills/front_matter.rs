//! The front matter of a `SKILL.md`: YAML between two lines of `---` at its beginning.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::Deserialize;

/// Bytes of a file that are looked at; the rest of it is the model's to read.
const MAX_BYTES: u64 = 64 * 1024;

/// What is read of it; other fields are somebody else's.
#[derive(Debug, PartialEq)]
pub(super) struct FrontMatter {
    pub(super) name: String,
    pub(super) description: String,
}

#[derive(Deserialize)]
struct Fields {
    name: Option<String>,
    description: Option<String>,
}

/// What is wrong with a file, and in which of its lines.
#[derive(Debug)]
pub(super) struct Problem {
    line: Option<u64>,
    message: String,
}

impl Problem {
    fn new(line: impl Into<Option<u64>>, message: impl Into<String>) -> Self {
        Self {
            line: line.into(),
            message: message.into(),
        }
    }
}

impl From<io::Error> for Problem {
    fn from(error: io::Error) -> Self {
        Self::new(None, format!("it can't be read: {error}"))
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

pub(super) fn read(file: &Path) -> Result<FrontMatter, Problem> {
    let mut head = Vec::new();
    File::open(file)?.take(MAX_BYTES).read_to_end(&mut head)?;
    parse(head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&head))
}

fn parse(head: &[u8]) -> Result<FrontMatter, Problem> {
    let is_fence = |line: &[u8]| line.trim_ascii_end() == b"---";
    let mut lines = head.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().filter(|line| is_fence(line));
    let first = first.ok_or_else(|| {
        let message = "it does not begin with front matter, YAML between two lines of `---`";
        Problem::new(1, message)
    })?;
    let mut length = first.len();
    loop {
        match lines.next() {
            Some(line) if is_fence(line) => break,
            Some(line) => length += line.len(),
            None => {
                let message = format!(
                    "its front matter has no end, a second line of `---`, within {} KiB",
                    MAX_BYTES / 1024
                );
                return Err(Problem::new(1, message));
            }
        }
    }
    // The first `---` begins a document in YAML too; with it, the lines are counted as in the file.
    let yaml = head.get(..length).unwrap_or_default();
    let yaml = std::str::from_utf8(yaml).map_err(|error| {
        let before = yaml.get(..error.valid_up_to()).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
        Problem::new(line, "it is not UTF-8")
    })?;
    let fields: Option<Fields> = serde_saphyr::from_str(yaml).map_err(|error| {
        let line = error.location().map(|location| location.line());
        Problem::new(line, without_place(error.without_snippet()))
    })?;
    let fields = fields.unwrap_or(Fields {
        name: None,
        description: None,
    });
    let given = |field: Option<String>, name: &str| {
        let field = field.filter(|text| !text.trim().is_empty());
        field.ok_or_else(|| Problem::new(None, format!("its front matter has no `{name}`")))
    };
    Ok(FrontMatter {
        name: given(fields.name, "name")?,
        description: given(fields.description, "description")?,
    })
}

/// An error's first line, without what its writer adds: the place, which is said before it, and
/// advice to programmers.
fn without_place(error: &serde_saphyr::Error) -> String {
    let message = error.to_string();
    let mut line = message.lines().next().unwrap_or_default();
    for addition in [" at line ", ", set "] {
        line = line.split_once(addition).map_or(line, |(line, _)| line);
    }
    line.to_owned()
}
