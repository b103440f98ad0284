//! Recursive listings, and the files that changed between two of them.

use std::collections::{BTreeMap, VecDeque};

use futures_util::StreamExt as _;
use sha2::{Digest as _, Sha256};

use super::{
    ByteRange, Channel, FileInfo, FileKind, RefusedFile, Sandbox, SandboxError, SandboxErrorKind,
    SandboxPath, SpawnRequest,
};

/// Maximum length of a record that the listing command prints: a path of `PATH_MAX` and its numbers.
const MAX_RECORD_BYTES: usize = 8 * 1024;
/// Maximum length of the listing command's messages, which name what it could not read.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;
/// Maximum number of files that are refused by name; the last entry counts the rest.
const MAX_REFUSED: usize = 100;
/// Bytes at the start of a file that decide its media type.
const MAGIC_BYTES: usize = 8 * 1024;

/// A recursive listing of a directory.
///
/// Serialized, it has no refused directories, and names that are not UTF-8 are not kept as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct Walk {
    /// The entries below the directory by their path relative to it, links not followed.
    pub entries: BTreeMap<SandboxPath, WalkEntry>,
    /// The directories that could not be read.
    #[serde(skip)]
    pub refused: Vec<RefusedFile>,
    /// Whether the directory has more entries than were asked for.
    pub is_truncated: bool,
}

/// The metadata of one entry of a [`Walk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct WalkEntry {
    /// The type of the entry.
    pub kind: FileKind,
    /// The size; meaningful for regular files only.
    pub size_bytes: u64,
    /// Its times and number; `None` if the sandbox has no `find` that prints them.
    pub stamp: Option<FileStamp>,
}

/// The times and the number of a file, which tell whether it changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub struct FileStamp {
    /// Time of the last change of the content, in nanoseconds since 1970. Programs can set it.
    pub modified_ns: i64,
    /// Time of the last change of content or metadata (ctime), in nanoseconds since 1970, set by the kernel.
    pub changed_ns: i64,
    /// The inode number.
    pub inode: u64,
}

/// A file that was created or changed between two [walks](Walk).
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[non_exhaustive]
pub struct Artifact {
    /// Its path below the directory that was walked.
    pub path: SandboxPath,
    /// Its size.
    pub size_bytes: u64,
    /// Its media type by its first bytes, or else by its name; `None` if both are unknown.
    pub media_type: Option<String>,
    /// The SHA-256 of its content in hexadecimal.
    pub sha256: String,
}

/// The artifacts of a call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Artifacts {
    /// The files that were created or changed, sorted by path.
    pub files: Vec<Artifact>,
    /// Changed entries that are not reported: links, special files, files beyond a limit or unreadable.
    pub refused: Vec<RefusedFile>,
}

/// Limits of [`SandboxExt::artifacts`](super::SandboxExt::artifacts).
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArtifactLimits {
    /// Maximum number of files; 1000 by default.
    pub files: usize,
    /// Maximum size of all files together; 1 GiB by default. They are read to the end for their digest.
    pub total_bytes: u64,
}

impl Default for ArtifactLimits {
    fn default() -> Self {
        Self {
            files: 1000,
            total_bytes: 1 << 30,
        }
    }
}

impl ArtifactLimits {
    /// Sets the maximum number of files.
    pub fn with_files(mut self, files: usize) -> Self {
        self.files = files;
        self
    }

    /// Sets the maximum size of all files together.
    pub fn with_total_bytes(mut self, bytes: u64) -> Self {
        self.total_bytes = bytes;
        self
    }
}

impl Artifacts {
    fn refuse(&mut self, path: &SandboxPath, reason: impl Into<String>) {
        match self.refused.len() {
            0..MAX_REFUSED => {
                let refused = RefusedFile::new(path.to_string(), reason);
                self.refused.push(refused);
            }
            MAX_REFUSED => {
                let rest = RefusedFile::new("…", "further files are not listed");
                self.refused.push(rest);
            }
            _ => {}
        }
    }
}

impl Walk {
    /// Returns the entries, other than directories, that are new or differ from `earlier`, sorted by path.
    pub fn changed_since<'w>(
        &'w self,
        earlier: &'w Self,
    ) -> impl Iterator<Item = (&'w SandboxPath, &'w WalkEntry)> {
        self.entries.iter().filter(|(path, entry)| {
            entry.kind != FileKind::Directory && earlier.entries.get(path) != Some(entry)
        })
    }

    /// Adds an entry; returns whether there is room for more.
    fn insert(&mut self, path: SandboxPath, entry: WalkEntry, max_entries: usize) -> bool {
        if self.entries.len() >= max_entries {
            self.is_truncated = true;
            return false;
        }
        self.entries.insert(path, entry);
        true
    }
}

/// Lists everything below `directory`: by one command, or where there is no suitable `find`, by one request per
/// directory.
pub(super) async fn walk<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    max_entries: usize,
) -> Result<Walk, SandboxError> {
    match walk_by_command(sandbox, directory, max_entries).await {
        Ok(Some(walk)) => Ok(walk),
        Err(error) if error.kind() == SandboxErrorKind::Gone => Err(error),
        Ok(None) | Err(_) => walk_by_listing(sandbox, directory, max_entries).await,
    }
}

/// Lists a directory with GNU `find`; `None` if that fails.
async fn walk_by_command<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    max_entries: usize,
) -> Result<Option<Walk>, SandboxError> {
    let mut start = if directory.is_absolute() { "/" } else { "./" }
        .as_bytes()
        .to_vec();
    start.extend_from_slice(directory.relative_bytes());
    let Some(start) = os_string(start) else {
        return Ok(None);
    };
    let mut argv: Vec<std::ffi::OsString> = vec!["find".into(), "-P".into(), start];
    argv.extend(["-mindepth", "1", "-printf", r"%y %s %T@ %C@ %i %P\0"].map(Into::into));
    let request = SpawnRequest::argv(argv).with_env("LC_ALL", "C");
    let mut process = sandbox.spawn(request).await?;
    let Some(mut output) = process.take_output() else {
        return Ok(None);
    };
    let (mut walk, mut record, mut messages) = (Walk::default(), Vec::new(), Vec::new());
    while let Some(chunk) = output.next().await {
        let chunk = chunk?;
        if chunk.channel == Channel::Stderr {
            let room = MAX_MESSAGE_BYTES.saturating_sub(messages.len());
            messages.extend(chunk.bytes.iter().take(room));
            continue;
        }
        let mut rest = chunk.bytes.as_ref();
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            let (head, tail) = rest.split_at(end);
            record.extend_from_slice(head);
            let Some((path, entry)) = parse_record(&record) else {
                return Ok(None);
            };
            if !walk.insert(path, entry, max_entries) {
                // Dropping the process kills it.
                return Ok(Some(walk));
            }
            record.clear();
            rest = tail.get(1..).unwrap_or_default();
        }
        record.extend_from_slice(rest);
        if record.len() > MAX_RECORD_BYTES {
            return Ok(None);
        }
    }
    let exit = process.wait().await?;
    walk.refused = refusals(&messages);
    let is_listed = exit.status.success() || !(walk.entries.is_empty() || walk.refused.is_empty());
    Ok((is_listed && record.is_empty()).then_some(walk))
}

#[cfg(unix)]
fn os_string(bytes: Vec<u8>) -> Option<std::ffi::OsString> {
    use std::os::unix::ffi::OsStringExt as _;
    Some(std::ffi::OsString::from_vec(bytes))
}

#[cfg(not(unix))]
fn os_string(bytes: Vec<u8>) -> Option<std::ffi::OsString> {
    String::from_utf8(bytes).ok().map(Into::into)
}

/// Parses `TYPE SIZE MTIME CTIME INODE PATH`.
fn parse_record(record: &[u8]) -> Option<(SandboxPath, WalkEntry)> {
    let mut fields = record.splitn(6, |byte| *byte == b' ');
    let mut text = || std::str::from_utf8(fields.next()?).ok();
    let kind = match text()? {
        "f" => FileKind::File,
        "d" => FileKind::Directory,
        "l" => FileKind::Symlink,
        _ => FileKind::Other,
    };
    let size_bytes = text()?.parse().ok()?;
    let stamp = FileStamp {
        modified_ns: nanoseconds(text()?)?,
        changed_ns: nanoseconds(text()?)?,
        inode: text()?.parse().ok()?,
    };
    let path = SandboxPath::working_directory().join(fields.next()?).ok()?;
    let entry = WalkEntry {
        kind,
        size_bytes,
        stamp: Some(stamp),
    };
    Some((path, entry))
}

/// Parses seconds with a fraction, as in `1700000000.0123456780`.
fn nanoseconds(text: &str) -> Option<i64> {
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let fraction: String = fraction
        .chars()
        .chain("000000000".chars())
        .take(9)
        .collect();
    let seconds: i64 = seconds.parse().ok()?;
    seconds
        .checked_mul(1_000_000_000)?
        .checked_add(fraction.parse().ok()?)
}

/// Parses the messages of `find`: `find: 'PATH': REASON`.
fn refusals(messages: &[u8]) -> Vec<RefusedFile> {
    let messages = String::from_utf8_lossy(messages);
    let lines = messages.lines().take(MAX_REFUSED);
    lines
        .map(|line| {
            let line = line.strip_prefix("find: ").unwrap_or(line);
            let (path, reason) = line.rsplit_once(": ").unwrap_or(("", line));
            let path = path.trim_matches('\'');
            RefusedFile::new(path.strip_prefix("./").unwrap_or(path), reason)
        })
        .collect()
}

async fn walk_by_listing<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    max_entries: usize,
) -> Result<Walk, SandboxError> {
    let mut walk = Walk::default();
    let mut pending = VecDeque::from([SandboxPath::working_directory()]);
    while let Some(below) = pending.pop_front() {
        let listed = match sandbox.list(&directory.join(below.relative_bytes())?).await {
            Ok(listed) => listed,
            Err(error) if below.is_base() || error.kind() == SandboxErrorKind::Gone => {
                return Err(error);
            }
            // It was removed meanwhile.
            Err(error) if error.kind() == SandboxErrorKind::NotFound => continue,
            Err(error) => {
                if walk.refused.len() < MAX_REFUSED {
                    let refused = RefusedFile::new(below.to_string(), error.to_string());
                    walk.refused.push(refused);
                }
                continue;
            }
        };
        for FileInfo {
            path,
            kind,
            size_bytes,
            ..
        } in listed
        {
            let path = below.join(path.relative_bytes())?;
            if kind == FileKind::Directory {
                pending.push_back(path.clone());
            }
            let entry = WalkEntry {
                kind,
                size_bytes,
                stamp: None,
            };
            if !walk.insert(path, entry, max_entries) {
                return Ok(walk);
            }
        }
    }
    Ok(walk)
}

/// Describes the files that changed between two walks of `directory`.
pub(super) async fn artifacts<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    (before, after): (&Walk, &Walk),
    limits: ArtifactLimits,
) -> Result<Artifacts, SandboxError> {
    let mut artifacts = Artifacts::default();
    let mut room = limits.total_bytes;
    if before.is_truncated || after.is_truncated {
        let reason = "there are too many files to tell all that changed";
        artifacts.refuse(directory, reason);
    }
    for (path, entry) in after.changed_since(before) {
        // A file that an incomplete walk left out is no news.
        if before.is_truncated && !before.entries.contains_key(path) {
            continue;
        }
        match entry.kind {
            FileKind::File => {}
            FileKind::Symlink => {
                artifacts.refuse(path, "it is a link, which is not followed");
                continue;
            }
            FileKind::Directory | FileKind::Other => {
                artifacts.refuse(path, "it is not a regular file");
                continue;
            }
        }
        if artifacts.files.len() >= limits.files {
            artifacts.refuse(path, format!("more than {} files changed", limits.files));
            continue;
        }
        match artifact(sandbox, directory, path, room).await {
            Ok(file) => {
                room = room.saturating_sub(file.size_bytes);
                artifacts.files.push(file);
            }
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error),
            Err(error) => artifacts.refuse(path, error.to_string()),
        }
    }
    Ok(artifacts)
}

async fn artifact<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    path: &SandboxPath,
    room: u64,
) -> Result<Artifact, SandboxError> {
    let whole = directory.join(path.relative_bytes())?;
    let range = ByteRange::new(0, room.saturating_add(1));
    let mut data = sandbox.read(&whole, range).await?;
    let (mut digest, mut magic, mut size_bytes) = (Sha256::new(), Vec::new(), 0_u64);
    while let Some(piece) = data.next().await {
        let piece = piece?;
        digest.update(&piece);
        size_bytes += piece.len() as u64;
        magic.extend(piece.iter().take(MAGIC_BYTES.saturating_sub(magic.len())));
    }
    if size_bytes > room {
        let message =
            format!("`{path}` has more than the {room} bytes that are left for artifacts");
        return Err(SandboxError::invalid_input(message));
    }
    Ok(Artifact {
        path: path.clone(),
        size_bytes,
        media_type: media_type(path, &magic).map(str::to_owned),
        sha256: format!("{:x}", digest.finalize()),
    })
}

/// Returns the media type of a file by its first bytes, or else by its name; `None` if both are unknown.
pub fn media_type(path: &SandboxPath, first: &[u8]) -> Option<&'static str> {
    let by_bytes = infer::get(first).map(|found| found.mime_type());
    // Office documents are archives to their magic bytes.
    by_bytes
        .filter(|found| *found != "application/zip")
        .or_else(|| by_name(path))
        .or(by_bytes)
}

/// Returns the media type of files that have no magic bytes.
fn by_name(path: &SandboxPath) -> Option<&'static str> {
    let name = String::from_utf8_lossy(path.file_name()?).to_ascii_lowercase();
    let (_, extension) = name.rsplit_once('.')?;
    Some(match extension {
        "csv" => "text/csv",
        "css" => "text/css",
        "html" | "htm" => "text/html",
        "ipynb" => "application/x-ipynb+json",
        "js" | "mjs" => "text/javascript",
        "json" | "geojson" => "application/json",
        "jsonl" | "ndjson" => "application/x-ndjson",
        "md" => "text/markdown",
        "npy" | "npz" => "application/x-numpy",
        "parquet" => "application/vnd.apache.parquet",
        "py" => "text/x-python",
        "svg" => "image/svg+xml",
        "tex" => "application/x-tex",
        "toml" => "application/toml",
        "tsv" => "text/tab-separated-values",
        "txt" | "log" => "text/plain",
        "xml" => "text/xml",
        "yaml" | "yml" => "application/yaml",
        "docx" => "application/vnd.openxmlformats-officedocument.wordprocessingml.document",
        "pptx" => "application/vnd.openxmlformats-officedocument.presentationml.presentation",
        "xlsx" => "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_keep_nanoseconds_and_any_name() {
        let (path, entry) = parse_record(b"f 12 1700000000.1234567890 -1.5 42 a b\n/\xff").unwrap();
        assert_eq!(path.relative_bytes(), b"a b\n/\xff");
        let stamp = FileStamp {
            modified_ns: 1_700_000_000_123_456_789,
            changed_ns: -500_000_000,
            inode: 42,
        };
        assert_eq!((entry.kind, entry.size_bytes), (FileKind::File, 12));
        assert_eq!(entry.stamp, Some(stamp));
    }

    #[test]
    fn forged_records_are_refused() {
        for record in [
            "",
            "f",
            "f x 1 1 1 a",
            "f 1 1 1 1 ../a",
            "f 1 1 1 1 /a",
            "f 1 9e99 1 1 a",
        ] {
            assert_eq!(parse_record(record.as_bytes()), None, "{record}");
        }
    }

    #[test]
    fn messages_name_what_was_not_read() {
        let refused = refusals(b"find: './a: b': Permission denied\n");
        assert_eq!(refused, [RefusedFile::new("a: b", "Permission denied")]);
    }
}
