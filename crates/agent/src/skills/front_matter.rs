//! The front matter of a `SKILL.md`: YAML between two lines of `---` at its start.

use std::fmt::Display;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

use serde::Deserialize;

/// Maximum size of the front matter in bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// The fields that are used.
#[derive(Debug, PartialEq)]
pub(super) struct FrontMatter {
    pub(super) name: String,
    pub(super) description: String,
}

#[derive(Default, Deserialize)]
struct Fields {
    name: Option<String>,
    description: Option<String>,
}

/// Reads a file's front matter, or says what is wrong with it.
pub(super) fn read(file: &Path) -> Result<FrontMatter, String> {
    let mut head = Vec::new();
    let read = File::open(file).and_then(|file| file.take(MAX_BYTES).read_to_end(&mut head));
    read.map_err(|error| format!("it can't be read: {error}"))?;
    parse(head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(&head))
}

fn parse(head: &[u8]) -> Result<FrontMatter, String> {
    let is_fence = |line: &[u8]| line.trim_ascii_end() == b"---";
    let mut lines = head.split_inclusive(|byte| *byte == b'\n');
    let first = lines.next().filter(|line| is_fence(line));
    let first = first.ok_or_else(|| {
        at_line(
            1,
            "it does not begin with front matter, YAML between two lines of `---`",
        )
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
                return Err(at_line(1, message));
            }
        }
    }
    // The first `---` also begins a YAML document; including it keeps line numbers right.
    let yaml = head.get(..length).unwrap_or_default();
    let yaml = std::str::from_utf8(yaml).map_err(|error| {
        let before = yaml.get(..error.valid_up_to()).unwrap_or_default();
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count() as u64;
        at_line(line, "it is not UTF-8")
    })?;
    let fields: Option<Fields> = serde_saphyr::from_str(yaml).map_err(|error| {
        let message = without_location(error.without_snippet());
        match error.location() {
            Some(location) => at_line(location.line(), message),
            None => message,
        }
    })?;
    let fields = fields.unwrap_or_default();
    let given = |field: Option<String>, name: &str| {
        let field = field.filter(|text| !text.trim().is_empty());
        field.ok_or_else(|| format!("its front matter has no `{name}`"))
    };
    Ok(FrontMatter {
        name: given(fields.name, "name")?,
        description: given(fields.description, "description")?,
    })
}

fn at_line(line: u64, message: impl Display) -> String {
    format!("line {line}: {message}")
}

/// Returns an error's first line without its location, which is printed before, and without advice
/// for programmers.
fn without_location(error: &serde_saphyr::Error) -> String {
    let message = error.to_string();
    let mut line = message.lines().next().unwrap_or_default();
    for addition in [" at line ", ", set "] {
        line = line.split_once(addition).map_or(line, |(line, _)| line);
    }
    line.to_owned()
}
