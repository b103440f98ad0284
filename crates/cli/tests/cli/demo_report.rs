//! The demo's report, recomputed from the files by the definitions in `commands/demo/turns.rs`.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// A file, counted.
struct File {
    path: String,
    bytes: u64,
    /// `None` if it is not a text file.
    lines: Option<u64>,
    content: Vec<u8>,
}

/// A directory, counted.
pub(crate) struct Counted {
    files: Vec<File>,
    directories: u64,
}

/// A row of the table of extensions.
struct Extension {
    name: String,
    files: u64,
    bytes: u64,
    lines: u64,
}

impl Counted {
    /// Counts the files below `root` that the demo copies.
    pub(crate) fn of(root: &Path) -> Self {
        let mut counted = Self {
            files: Vec::new(),
            directories: 0,
        };
        counted.walk(root, &[]);
        counted
            .files
            .sort_by(|a, b| a.path.as_bytes().cmp(b.path.as_bytes()));
        counted
    }

    fn walk(&mut self, directory: &Path, above: &[u8]) {
        for entry in std::fs::read_dir(directory).unwrap() {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            let name = entry.file_name();
            let mut path = above.to_vec();
            path.extend(name.as_bytes());
            if kind.is_dir() {
                let left_out = [".git", "node_modules", "target"].map(OsStr::new);
                if !left_out.contains(&&*name) {
                    self.directories += 1;
                    path.push(b'/');
                    self.walk(&entry.path(), &path);
                }
            } else if kind.is_file() {
                let content = std::fs::read(entry.path()).unwrap();
                self.files.push(File {
                    path: shown(&path),
                    bytes: content.len() as u64,
                    lines: lines(&content),
                    content,
                });
            }
        }
    }

    pub(crate) fn files(&self) -> usize {
        self.files.len()
    }

    fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the rows of the table of extensions.
    fn extensions(&self) -> Vec<Extension> {
        let mut all: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
        for file in &self.files {
            let row = all.entry(extension(&file.path)).or_default();
            *row = (
                row.0 + 1,
                row.1 + file.bytes,
                row.2 + file.lines.unwrap_or(0),
            );
        }
        let mut rows: Vec<Extension> = all
            .into_iter()
            .map(|(name, (files, bytes, lines))| Extension {
                name,
                files,
                bytes,
                lines,
            })
            .collect();
        rows.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.name.cmp(&b.name)));
        if rows.len() > 12 {
            let rest = rows.split_off(11);
            rows.push(Extension {
                name: format!("({} others)", rest.len()),
                files: rest.iter().map(|row| row.files).sum(),
                bytes: rest.iter().map(|row| row.bytes).sum(),
                lines: rest.iter().map(|row| row.lines).sum(),
            });
        }
        rows
    }

    /// Returns groups of identical files, by surplus bytes.
    fn copies(&self) -> Vec<Vec<&File>> {
        let mut groups: BTreeMap<&[u8], Vec<&File>> = BTreeMap::new();
        for file in self.files.iter().filter(|file| file.bytes > 0) {
            groups.entry(&file.content).or_default().push(file);
        }
        let mut groups: Vec<Vec<&File>> = groups
            .into_values()
            .filter(|group| group.len() > 1)
            .collect();
        groups.sort_by(|a, b| surplus(b).cmp(&surplus(a)).then(a[0].path.cmp(&b[0].path)));
        groups
    }
}

fn surplus(group: &[&File]) -> u64 {
    (group.len() as u64 - 1) * group[0].bytes
}

fn shown(path: &[u8]) -> String {
    let is_utf8 = std::str::from_utf8(path).is_ok();
    let shown = path.iter().map(|byte| match byte {
        0..0x20 | 0x7f => b'?',
        0x80.. if !is_utf8 => b'?',
        byte => *byte,
    });
    String::from_utf8(shown.collect()).unwrap()
}

fn lines(content: &[u8]) -> Option<u64> {
    let before_last = &content[..content.len().saturating_sub(1)];
    if before_last.contains(&0) {
        return None;
    }
    let newlines = content.iter().filter(|byte| **byte == b'\n').count() as u64;
    Some(newlines + u64::from(content.last().is_some_and(|last| *last != b'\n')))
}

fn extension(path: &str) -> String {
    let name = path.rsplit('/').next().unwrap();
    let ascii = |c: char| c.is_ascii_alphanumeric() || "_+-".contains(c);
    match name.rsplit_once('.') {
        Some((stem, extension))
            if !stem.is_empty()
                && (1..=16).contains(&extension.len())
                && extension.chars().all(ascii) =>
        {
            extension.to_ascii_lowercase()
        }
        _ => "(none)".to_owned(),
    }
}

fn commas(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn code(path: &str) -> String {
    let path = path.replace('|', "\\|");
    let mut fence = "`".to_owned();
    while path.contains(&fence) {
        fence.push('`');
    }
    match &*fence {
        "`" => format!("`{path}`"),
        fence => format!("{fence} {path} {fence}"),
    }
}

/// Returns the expected `report.md`.
pub(crate) fn report_of(counted: &Counted) -> String {
    let files = &counted.files;
    let total = counted.bytes();
    let texts = files.iter().filter_map(|file| file.lines);
    let mut text = "# File survey\n\n| | |\n|---|---:|\n".to_owned();
    let mut row =
        |name: &str, value: u64| writeln!(text, "| {name} | {} |", commas(value)).unwrap();
    row("Files", files.len() as u64);
    row("Directories", counted.directories);
    row("Bytes", total);
    row("Text files", texts.clone().count() as u64);
    row("Lines of text", texts.sum());
    row(
        "Empty files",
        files.iter().filter(|file| file.bytes == 0).count() as u64,
    );
    let depth = |file: &File| file.path.matches('/').count();
    if let Some(most) = files.iter().map(depth).max() {
        let deepest = files.iter().find(|file| depth(file) == most).unwrap();
        writeln!(text, "| Deepest path | {} |", code(&deepest.path)).unwrap();
    }

    let extensions = counted.extensions();
    if !extensions.is_empty() {
        text += "\n## By extension\n\n| Extension | Files | Bytes | Share | Lines |\n|---|---:|---:|---:|---:|\n";
    }
    for row in &extensions {
        let share = match total {
            0 => "-".to_owned(),
            total => format!("{:.1} %", 100.0 * row.bytes as f64 / total as f64),
        };
        let (files, bytes, lines) = (commas(row.files), commas(row.bytes), commas(row.lines));
        writeln!(
            text,
            "| {} | {files} | {bytes} | {share} | {lines} |",
            row.name
        )
        .unwrap();
    }

    let mut largest: Vec<&File> = files.iter().collect();
    largest.sort_by_key(|file| std::cmp::Reverse(file.bytes));
    if !largest.is_empty() {
        text += "\n## Largest files\n\n| File | Bytes | Lines |\n|---|---:|---:|\n";
    }
    for file in largest.iter().take(10) {
        let lines = file.lines.map_or("binary".to_owned(), commas);
        writeln!(
            text,
            "| {} | {} | {lines} |",
            code(&file.path),
            commas(file.bytes)
        )
        .unwrap();
    }

    let copies = counted.copies();
    if !copies.is_empty() {
        text += "\n## Identical files\n\n| Copies | Bytes each | Files |\n|---:|---:|---|\n";
    }
    for group in copies.iter().take(10) {
        let mut paths: Vec<String> = group.iter().take(5).map(|file| code(&file.path)).collect();
        if group.len() > 5 {
            paths.push(format!("and {} more", commas(group.len() as u64 - 5)));
        }
        let (copies, each) = (commas(group.len() as u64), commas(group[0].bytes));
        writeln!(text, "| {copies} | {each} | {} |", paths.join("<br>")).unwrap();
    }
    if !copies.is_empty() {
        let surplus: u64 = copies.iter().map(|group| surplus(group)).sum();
        let groups = commas(copies.len() as u64);
        writeln!(
            text,
            "\nGroups: {groups}. Bytes in surplus copies: {}.",
            commas(surplus)
        )
        .unwrap();
    }
    text += "\n![Bytes by extension](chart.svg)\n\nLines are those of text files, that is files without a NUL byte inside.\n";
    text
}

/// Returns the expected texts of the chart, with the width of each bar after its extension.
pub(crate) fn chart_of(counted: &Counted) -> Vec<String> {
    let of_files = |n: u64| format!("{n} {}", if n == 1 { "file" } else { "files" });
    let all = format!(
        "{}, {}",
        of_files(counted.files() as u64),
        human(counted.bytes())
    );
    let mut found = vec!["Bytes by extension".to_owned(), all];
    let rows = counted.extensions();
    let most = rows.iter().map(|row| row.bytes).max().unwrap_or(0);
    if rows.is_empty() {
        found.push("Nothing to draw.".to_owned());
    }
    for row in rows {
        let width = match most {
            0 => 0.0,
            most => 340.0 * row.bytes as f64 / most as f64,
        };
        found.extend([
            row.name,
            format!("{width:.1}"),
            human(row.bytes),
            of_files(row.files),
        ]);
    }
    found
}

fn human(bytes: u64) -> String {
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64;
    let mut unit = 0;
    while size >= 999.95 && unit < 4 {
        size /= 1000.0;
        unit += 1;
    }
    format!("{size:.1} {}", ["B", "kB", "MB", "GB", "TB"][unit])
}
