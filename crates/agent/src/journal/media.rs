//! The media of a journal, each stored once beside it.

use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

/// The suffix of the kind of every media block.
const KIND_SUFFIX: &str = "_content_block";

/// Length of a file name.
const DIGEST_CHARS: usize = 64;

/// The directory of a journal's media.
#[derive(Debug)]
pub(super) struct MediaFiles(PathBuf);

/// Whether a line may hold media, without parsing it. False positives cost time only.
pub(super) fn may_hold_media(line: &[u8]) -> bool {
    let needle = KIND_SUFFIX.as_bytes();
    line.windows(needle.len()).any(|window| window == needle)
}

impl MediaFiles {
    pub(super) fn new(run: &Path) -> Self {
        Self(run.join("media"))
    }

    /// Moves the data of media blocks into files, and leaves their digests. Other objects of that shape,
    /// such as a model's arguments, stay unchanged if their data is not valid.
    pub(super) fn extract(&self, value: &mut Value) -> io::Result<()> {
        each_block(value, "data", &mut |block, data| {
            let Ok(bytes) = BASE64.decode(data) else {
                return Ok(());
            };
            let digest = format!("{:x}", Sha256::digest(&bytes));
            self.store(&digest, &bytes)?;
            block.remove("data");
            block.insert("sha256".to_owned(), digest.into());
            Ok(())
        })
    }

    /// Replaces the digests of media blocks by their data.
    pub(super) fn restore(&self, value: &mut Value) -> io::Result<()> {
        each_block(value, "sha256", &mut |block, digest| {
            let is_digest = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
            if digest.len() != DIGEST_CHARS || !digest.bytes().all(is_digest) {
                return Ok(());
            }
            let path = self.0.join(digest);
            let bytes = match fs::read(&path) {
                Ok(bytes) => bytes,
                // If this is a media block, parsing the entry reports that its data is missing.
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(error) => return Err(error),
            };
            block.remove("sha256");
            block.insert("data".to_owned(), BASE64.encode(bytes).into());
            Ok(())
        })
    }

    /// Writes a file atomically, unless it exists.
    fn store(&self, digest: &str, bytes: &[u8]) -> io::Result<()> {
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
        // A file name is durable only once its directory is synced.
        fs::File::open(&self.0)?.sync_all()?;
        match self.0.parent() {
            Some(run) => fs::File::open(run)?.sync_all(),
            None => Ok(()),
        }
    }
}

/// A visitor of media blocks and the text of one field.
type Visit<'a> = dyn FnMut(&mut Map<String, Value>, &str) -> io::Result<()> + 'a;

/// Calls `visit` for every object with exactly the fields of a media block: `kind` and this one.
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

#[cfg(test)]
mod tests;
