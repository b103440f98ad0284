//! Recursive listings, and the files that changed between two of them.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use futures_util::StreamExt as _;

use super::{
    Channel, ExitStatus, FileKind, RefusedFile, Sandbox, SandboxError, SandboxErrorKind,
    SandboxPath, SpawnRequest,
};

/// Length that the path of an entry must not reach (`PATH_MAX`): no file operation would accept it.
const MAX_PATH_BYTES: usize = 4096;
/// Maximum length of all paths of a walk together.
const MAX_WALK_BYTES: usize = 64 << 20;
/// Maximum length of the listing command's output.
const MAX_OUTPUT_BYTES: usize = 2 * MAX_WALK_BYTES;
/// Length to which a record of the listing command is kept: a path of `PATH_MAX` and its numbers.
const MAX_RECORD_BYTES: usize = 8 * 1024;
/// The same for the lines of `stat` about as many files as one command line has.
const MAX_BATCH_BYTES: usize = 16 << 20;
/// Maximum length of the listing command's messages, which name what it could not read.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;
/// Time limit of a listing command, which other commands of its user can stop.
const LISTING_TIMEOUT: Duration = Duration::from_secs(300);
/// Maximum number of files that are refused by name; the last entry counts the rest.
pub(super) const MAX_REFUSED: usize = 100;

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
    /// Its times and number; `None` if the sandbox can't tell them.
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

impl WalkEntry {
    /// Creates the metadata of an entry.
    pub fn new(kind: FileKind, size_bytes: u64, stamp: Option<FileStamp>) -> Self {
        Self {
            kind,
            size_bytes,
            stamp,
        }
    }
}

impl FileStamp {
    /// Creates a stamp of times in nanoseconds since 1970 and an inode number.
    pub fn new(modified_ns: i64, changed_ns: i64, inode: u64) -> Self {
        Self {
            modified_ns,
            changed_ns,
            inode,
        }
    }
}

/// A [`Walk`] that is being made, within its limits: the tree is untrusted and may change meanwhile.
#[derive(Debug)]
pub struct WalkBuilder {
    /// Sorted at the end, which is faster than inserting into a map one by one.
    entries: Vec<(SandboxPath, WalkEntry)>,
    walk: Walk,
    /// Number of entries that may still be admitted.
    room: usize,
    path_bytes: usize,
}

impl WalkBuilder {
    /// Creates a walk of at most `max_entries` entries.
    pub fn new(max_entries: usize) -> Self {
        Self {
            entries: Vec::new(),
            walk: Walk::default(),
            room: max_entries,
            path_bytes: 0,
        }
    }

    /// Counts an entry before it is looked at; returns whether there is room for it. If not, the walk is over.
    ///
    /// Entries that have vanished or are found twice count, too, so that a walk ends even if the tree changes all the
    /// time.
    pub fn admit(&mut self) -> bool {
        self.walk.is_truncated |= self.room == 0;
        self.room = self.room.saturating_sub(1);
        !self.walk.is_truncated
    }

    /// Adds an entry; returns whether it was added. If its path is too long, the directory above is refused.
    pub fn insert(&mut self, path: SandboxPath, entry: WalkEntry) -> bool {
        let bytes = path.relative_bytes();
        if bytes.len() >= MAX_PATH_BYTES {
            let usable = bytes.get(..MAX_PATH_BYTES).unwrap_or(bytes);
            let end = usable.iter().rposition(|byte| *byte == b'/');
            let directory = String::from_utf8_lossy(usable.get(..end.unwrap_or(0)).unwrap_or(&[]));
            self.refuse(directory, "the paths below it are too long");
            return false;
        }
        self.path_bytes += bytes.len();
        if self.path_bytes > MAX_WALK_BYTES {
            self.walk.is_truncated = true;
            return false;
        }
        self.entries.push((path, entry));
        true
    }

    /// Names a directory that can't be read.
    pub fn refuse(&mut self, directory: impl Into<String>, reason: impl Into<String>) {
        let refused = RefusedFile::new(directory, reason);
        if self.walk.refused.len() < MAX_REFUSED && !self.walk.refused.contains(&refused) {
            self.walk.refused.push(refused);
        }
    }

    /// Returns the walk.
    pub fn finish(mut self) -> Walk {
        self.walk.entries = self.entries.into_iter().collect();
        self.walk
    }
}

impl Walk {
    /// Returns the entries, other than directories, that are new or differ from `earlier`, sorted by path.
    pub fn changed_since<'w>(
        &'w self,
        earlier: &'w Self,
    ) -> impl Iterator<Item = (&'w SandboxPath, &'w WalkEntry)> {
        let mut earlier = earlier.entries.iter().peekable();
        self.entries.iter().filter(move |(path, entry)| {
            while earlier.next_if(|(known, _)| known < path).is_some() {}
            let known = earlier.next_if(|(known, _)| known == path);
            entry.kind != FileKind::Directory && known.map(|(_, known)| known) != Some(entry)
        })
    }
}

/// Walks a directory as commands see it: by one command if the sandbox has `find`, and otherwise by one request
/// per directory. This is [`Sandbox::walk`] of backends without a faster way.
///
/// # Errors
/// As [`Sandbox::list`], for the directory itself.
pub async fn walk_by_command<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    max_entries: usize,
) -> Result<Walk, SandboxError> {
    for format in [RecordFormat::Find, RecordFormat::Batches(VecDeque::new())] {
        match walk_by_find(sandbox, directory, max_entries, format).await {
            Ok(Some(walk)) => return Ok(walk),
            Err(error) if error.kind() == SandboxErrorKind::Gone => return Err(error),
            Ok(None) | Err(_) => {}
        }
    }
    walk_by_listing(sandbox, directory, max_entries).await
}

/// Prints the lines of `stat` about some files as one record, and then their names. A file that has vanished has the line
/// `-`. BusyBox has no other way to print names with line ends, nor fractions of seconds.
const STAT_BATCH: &str = r#"f='%f %s %Y %Z %i %y %z'
s=$(stat -c "$f" -- "$@" 2>/dev/null) || s=$(for n; do stat -c "$f" -- "$n" 2>/dev/null || echo -; done)
printf '%s\0' "$s" "$@""#;

/// The form of a listing command's records, which end with NUL.
enum RecordFormat {
    /// Each is an entry, by the `-printf` of GNU `find`.
    Find,
    /// By `find` and `stat` of BusyBox, [some at a time](STAT_BATCH). These are the entries whose names follow.
    Batches(VecDeque<Option<WalkEntry>>),
}

impl RecordFormat {
    fn action(&self) -> &'static [&'static str] {
        match self {
            Self::Find => &["-printf", r"%y %s %T@ %C@ %i %P\0"],
            Self::Batches(_) => &["-exec", "sh", "-c", STAT_BATCH, "sh", "{}", "+"],
        }
    }

    fn max_record_bytes(&self) -> usize {
        match self {
            Self::Batches(batch) if batch.is_empty() => MAX_BATCH_BYTES,
            _ => MAX_RECORD_BYTES,
        }
    }

    /// Parses a record of a walk that began at `start`. Not every record is an entry.
    fn parse(&mut self, record: &[u8], start: &[u8]) -> Option<Option<(SandboxPath, WalkEntry)>> {
        let Self::Batches(batch) = self else {
            return parse_record(record).map(Some);
        };
        let Some(entry) = batch.pop_front() else {
            let lines = std::str::from_utf8(record).ok()?.lines();
            let entries = lines.map(|line| match line {
                "-" => Some(None),
                line => parse_stat_line(line).map(Some),
            });
            *batch = entries.collect::<Option<_>>()?;
            return Some(None);
        };
        let name = record.strip_prefix(start)?;
        let path = SandboxPath::working_directory().join(name).ok()?;
        Some(entry.map(|entry| (path, entry)))
    }
}

/// Lists a directory with `find`; `None` if that fails.
async fn walk_by_find<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    max_entries: usize,
    mut format: RecordFormat,
) -> Result<Option<Walk>, SandboxError> {
    let mut start = if directory.is_absolute() { "/" } else { "./" }
        .as_bytes()
        .to_vec();
    start.extend_from_slice(directory.relative_bytes());
    if !directory.is_base() {
        // It must be a directory, or a link to one.
        start.push(b'/');
    }
    let Some(start_argument) = os_string(start.clone()) else {
        return Ok(None);
    };
    let mut argv: Vec<std::ffi::OsString> = vec!["find".into(), "-P".into(), start_argument];
    argv.extend(
        ["-mindepth", "1"]
            .iter()
            .chain(format.action())
            .map(Into::into),
    );
    let request = SpawnRequest::argv(argv)
        .with_timeout(LISTING_TIMEOUT)
        .with_grace(Duration::ZERO)
        .with_env("LC_ALL", "C");
    let mut process = sandbox.spawn(request).await?;
    let Some(mut output) = process.take_output() else {
        return Ok(None);
    };
    let mut walk = WalkBuilder::new(max_entries);
    let (mut record, mut messages) = (Vec::new(), Vec::new());
    let mut room = MAX_OUTPUT_BYTES;
    while let Some(chunk) = output.next().await {
        let chunk = chunk?;
        room = room.saturating_sub(chunk.bytes.len());
        if room == 0 {
            // Dropping the process kills it.
            walk.walk.is_truncated = true;
            return Ok(Some(walk.finish()));
        }
        if chunk.channel == Channel::Stderr {
            append(&mut messages, &chunk.bytes, MAX_MESSAGE_BYTES);
            continue;
        }
        let mut rest = chunk.bytes.as_ref();
        while let Some(end) = rest.iter().position(|byte| *byte == 0) {
            let (head, tail) = rest.split_at(end);
            append(&mut record, head, format.max_record_bytes());
            let Some(found) = format.parse(&record, &start) else {
                return Ok(None);
            };
            record.clear();
            if let Some((path, entry)) = found {
                if !walk.admit() {
                    return Ok(Some(walk.finish()));
                }
                walk.insert(path, entry);
            }
            rest = tail.get(1..).unwrap_or_default();
        }
        append(&mut record, rest, format.max_record_bytes());
    }
    let exit = process.wait().await?;
    let found = !walk.entries.is_empty();
    let refused = refusals(&messages, &String::from_utf8_lossy(&start));
    let is_listed = match exit.status {
        ExitStatus::Code(0) => true,
        ExitStatus::Code(_) => found && !refused.is_empty(),
        // It was ended before it had listed everything.
        _ => false,
    };
    for RefusedFile { source, reason } in refused {
        walk.refuse(source, reason);
    }
    Ok((is_listed && record.is_empty()).then(|| walk.finish()))
}

/// Appends as many bytes as there is room for.
fn append(buffer: &mut Vec<u8>, bytes: &[u8], max_bytes: usize) {
    let room = max_bytes.saturating_sub(buffer.len());
    buffer.extend_from_slice(bytes.get(..room).unwrap_or(bytes));
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
    let (modified_ns, changed_ns) = (nanoseconds(text()?)?, nanoseconds(text()?)?);
    let stamp = FileStamp::new(modified_ns, changed_ns, text()?.parse().ok()?);
    let path = SandboxPath::working_directory().join(fields.next()?).ok()?;
    Some((path, WalkEntry::new(kind, size_bytes, Some(stamp))))
}

/// Parses `MODE SIZE MTIME CTIME INODE`, the times in whole seconds, and both times once more, as in
/// `2026-01-31 12:00:00.012345678 +0000`, for their fractions.
fn parse_stat_line(line: &str) -> Option<WalkEntry> {
    let words: Vec<_> = line.split(' ').collect();
    let [
        mode,
        size,
        modified,
        changed,
        inode,
        _,
        modified_time,
        _,
        _,
        changed_time,
        _,
    ] = words[..]
    else {
        return None;
    };
    let time = |seconds: &str, time: &str| {
        let (_, fraction) = time.split_once('.').unwrap_or_default();
        nanoseconds(&format!("{seconds}.{fraction}"))
    };
    let kind = FileKind::from_mode(u32::from_str_radix(mode, 16).ok()?);
    let stamp = FileStamp::new(
        time(modified, modified_time)?,
        time(changed, changed_time)?,
        inode.parse().ok()?,
    );
    Some(WalkEntry::new(kind, size.parse().ok()?, Some(stamp)))
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
    let fraction = fraction.parse().ok()?;
    Some(
        seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(fraction),
    )
}

/// Parses the messages of `find`: `find: 'PATH': REASON`, with `start` before each path.
fn refusals(messages: &[u8], start: &str) -> Vec<RefusedFile> {
    let messages = String::from_utf8_lossy(messages);
    let lines = messages.lines().take(MAX_REFUSED);
    lines
        .map(|line| {
            let line = line.strip_prefix("find: ").unwrap_or(line);
            let (path, reason) = line.rsplit_once(": ").unwrap_or(("", line));
            let path = path.trim_matches('\'');
            RefusedFile::new(path.strip_prefix(start).unwrap_or(path), reason)
        })
        .collect()
}

async fn walk_by_listing<S: Sandbox + ?Sized>(
    sandbox: &S,
    directory: &SandboxPath,
    max_entries: usize,
) -> Result<Walk, SandboxError> {
    let mut walk = WalkBuilder::new(max_entries);
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
                walk.refuse(below.to_string(), error.to_string());
                continue;
            }
        };
        for info in listed {
            if !walk.admit() {
                return Ok(walk.finish());
            }
            let path = below.join(info.path.relative_bytes())?;
            let entry = WalkEntry::new(info.kind, info.size_bytes, None);
            if walk.insert(path.clone(), entry) && info.kind == FileKind::Directory {
                pending.push_back(path);
            }
        }
    }
    Ok(walk.finish())
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
    fn a_walk_is_bounded() {
        let path = |bytes: Vec<u8>| SandboxPath::new(bytes).unwrap();
        let entry = WalkEntry::new(FileKind::File, 0, None);

        // The same name again and again, and names that have vanished, must not be read forever.
        let mut walk = WalkBuilder::new(3);
        assert!(walk.admit());
        for _ in 0..2 {
            assert!(walk.admit());
            assert!(walk.insert(path(b"same".to_vec()), entry));
        }
        assert!(!walk.admit() && !walk.admit());
        let walk = walk.finish();
        assert_eq!((walk.entries.len(), walk.is_truncated), (1, true));

        let mut walk = WalkBuilder::new(usize::MAX);
        let deep = b"d/".repeat(MAX_PATH_BYTES / 2);
        assert!(walk.insert(path(deep[..MAX_PATH_BYTES - 1].to_vec()), entry));
        for below in ["a", "b", "c/d/e"] {
            let longer = [deep.as_slice(), below.as_bytes()].concat();
            assert!(!walk.insert(path(longer), entry));
        }
        let longest = path(deep);
        let most = MAX_WALK_BYTES / longest.relative_bytes().len();
        let count = (0..)
            .take_while(|_| walk.admit() && walk.insert(longest.clone(), entry))
            .count();
        assert_eq!(count, most - 1);
        assert!(!walk.admit());
        let walk = walk.finish();
        assert_eq!((walk.entries.len(), walk.is_truncated), (1, true));
        let reason = "the paths below it are too long";
        assert_eq!(
            walk.refused,
            [RefusedFile::new(longest.to_string(), reason)]
        );
    }

    #[test]
    fn changes_are_those_that_differ() {
        let walk = |names: &[(&str, FileKind, u64)]| {
            let mut walk = WalkBuilder::new(100);
            for (name, kind, size_bytes) in names {
                let entry = WalkEntry::new(*kind, *size_bytes, None);
                walk.insert(name.parse().unwrap(), entry);
            }
            walk.finish()
        };
        let changes = |after: &Walk, before: &Walk| -> Vec<String> {
            let changed = after.changed_since(before);
            changed.map(|(path, _)| path.to_string()).collect()
        };
        use FileKind::{Directory, File, Symlink};
        let before = [
            ("a", File, 1),
            ("b", Directory, 1),
            ("b/x", File, 1),
            ("gone", File, 1),
            ("k", File, 1),
            ("z", File, 1),
        ];
        let after = [
            ("0", File, 1),
            ("a", File, 2),
            ("b", Directory, 2),
            ("b/x", File, 1),
            ("c", Directory, 1),
            ("k", Symlink, 1),
            ("z", File, 1),
            ("zz", File, 1),
        ];
        let (before, after) = (walk(&before), walk(&after));
        assert_eq!(changes(&after, &before), ["0", "a", "k", "zz"]);
        assert_eq!(changes(&before, &after), ["a", "gone", "k"]);
        assert_eq!(changes(&after, &after), [""; 0]);
        assert_eq!(changes(&before, &Walk::default()).len(), 5);
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
    fn forged_batches_are_refused() {
        let line = "81a4 5 1700000000 -2 7 2023-11-14 22:13:20.000000009 +0000 1969-12-31 23:59:58.5 +0000";
        let stamp = FileStamp::new(1_700_000_000_000_000_009, -1_500_000_000, 7);
        let entry = WalkEntry::new(FileKind::File, 5, Some(stamp));
        let mut format = RecordFormat::Batches(VecDeque::new());
        let lines = format!("{line}\n-\n{line}");
        assert_eq!(format.parse(lines.as_bytes(), b"./d/"), Some(None));
        let path = SandboxPath::new("a\nb").unwrap();
        assert_eq!(
            format.parse(b"./d/a\nb", b"./d/"),
            Some(Some((path, entry)))
        );
        assert_eq!(format.parse(b"./d/gone", b"./d/"), Some(None));
        assert_eq!(format.parse(b"./e/a", b"./d/"), None);
        for lines in [
            "x",
            "81a4 5 1 1 7",
            &line.replace(' ', "  "),
            &line.replace("81a4", "x"),
        ] {
            let mut format = RecordFormat::Batches(VecDeque::new());
            assert_eq!(format.parse(lines.as_bytes(), b"./"), None, "{lines}");
        }
        let mut escaping = RecordFormat::Batches(VecDeque::from([Some(entry)]));
        assert_eq!(escaping.parse(b"./../a", b"./"), None);
    }

    #[test]
    fn messages_name_what_was_not_read() {
        let refused = refusals(b"find: './c/a: b': Permission denied\n", "./c/");
        assert_eq!(refused, [RefusedFile::new("a: b", "Permission denied")]);
    }
}
