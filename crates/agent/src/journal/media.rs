//! Media of a journal: kept once each, beside it.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// What the kind of every media block ends with.
const KIND_SUFFIX: &str = "_content_block";

/// The length of a file's name.
const DIGEST_CHARS: usize = 64;

/// The directory with the bytes of a journal's media.
#[derive(Debug)]
pub(super) struct MediaFiles(PathBuf);

/// Whether a line may hold media, told without reading it. A text that speaks of them costs a closer
/// look, nothing else.
pub(super) fn may_hold_media(line: &[u8]) -> bool {
    let needle = KIND_SUFFIX.as_bytes();
    line.windows(needle.len()).any(|window| window == needle)
}

impl MediaFiles {
    pub(super) fn new(run: &Path) -> Self {
        Self(run.join("media"))
    }

    /// Moves the data of media blocks into files, and leaves their digests. What only looks like one
    /// (a model's arguments may) stays as it is.
    pub(super) fn take_out(&self, value: &mut Value) -> io::Result<()> {
        each_block(value, "data", &mut |block, data| {
            let Ok(bytes) = BASE64.decode(data) else {
                return Ok(());
            };
            let digest = hex(&Sha256::digest(&bytes));
            self.keep(&digest, &bytes)?;
            block.remove("data");
            block.insert("sha256".to_owned(), digest.into());
            Ok(())
        })
    }

    /// Puts the data back where the digests are.
    pub(super) fn put_back(&self, value: &mut Value) -> io::Result<()> {
        each_block(value, "sha256", &mut |block, digest| {
            let is_digest = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if digest.len() != DIGEST_CHARS || !digest.bytes().all(is_digest) {
                return Ok(());
            }
            let path = self.0.join(digest);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                // Where it was a block, whoever reads the record says that its data are missing.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            block.remove("sha256");
            block.insert("data".to_owned(), BASE64.encode(bytes).into());
            Ok(())
        })
    }

    /// Writes a file that is whole or not there, unless it is there.
    fn keep(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.0.join(digest);
        if path.exists() {
            return Ok(());
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.0)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.0)?;
        file.write_all(bytes)?;
        file.as_file().sync_data()?;
        file.persist(&path).map_err(|error| error.error)?;
        // Names are on the disk only when their directories are.
        fs::File::open(&self.0)?.sync_all()?;
        match self.0.parent() {
            Some(run) => fs::File::open(run)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// What is done with a media block and its text.
type Visit<'a> = dyn FnMut(&mut Map<String, Value>, &str) -> io::Result<()> + 'a;

/// Calls `visit` for every object that is a media block with this field, and nothing else, with that
/// field's text.
fn each_block(value: &mut Value, field: &str, visit: &mut Visit<'_>) -> io::Result<()> {
    match value {
        Value::Array(items) => items
            .iter_mut()
            .try_for_each(|item| each_block(item, field, visit)),
        Value::Object(fields) => {
            let kind = fields.get("kind").and_then(Value::as_str);
            if fields.len() == 2
                && kind.is_some_and(|kind| kind.ends_with(KIND_SUFFIX))
                && let Some(Value::String(text)) = fields.get(field)
            {
                let text = text.clone();
                return visit(fields, &text);
            }
            fields
                .values_mut()
                .try_for_each(|value| each_block(value, field, visit))
        }
        _ => Ok(()),
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // There is always room in memory.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
