//! Pages of documentation, as other extractors read them: Python's trafilatura and Mozilla's Readability.
#![expect(
    clippy::unwrap_used,
    reason = "clippy knows tests by their attribute, and not the functions they call"
)]

use std::collections::{BTreeMap, HashMap};
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use cantle_testkit::lane;
use cantle_web::html_to_markdown;
use dom_query::Document;

/// Directories of the pages, and what their names begin and end with.
const PAGES: [(&str, &str, &str); 5] = [
    ("usr/share/doc/debian-policy/policy.html", "ch-", ".html"),
    ("usr/share/developers-reference", "", "s.html"),
    ("usr/share/doc/debian/FAQ", "", ".en.html"),
    ("usr/share/doc/git-doc/howto", "", ".html"),
    ("usr/share/doc/sqlite3", "lang_", "e.html"),
];
const MIN_RECALL: f64 = 0.95;
const MIN_F1: f64 = 0.8;

#[test]
fn documentation_is_read_as_others_read_it() {
    if !lane::is_full() {
        return lane::skip("it belongs to the full lane");
    }
    let variables = ["PAGES", "TRAFILATURA", "READABILITY"];
    let [Ok(pages), Ok(trafilatura), Ok(readability)] =
        variables.map(|it| env::var(format!("CANTLE_TEST_{it}")))
    else {
        return lane::skip("the peer extractors is not available");
    };
    let files = files(Path::new(&pages));
    assert!(files.len() >= 20, "{files:?}");
    // As in the tool, extraction has a thread with a large stack.
    let read = {
        let files = files.clone();
        std::thread::Builder::new()
            .stack_size(16 << 20)
            .spawn(move || files.iter().map(|file| ours(file)).collect::<Vec<_>>())
    };
    let ours = read.unwrap().join().unwrap();
    for extractor in [trafilatura, readability] {
        let theirs = theirs(&extractor, &files);
        let mut scores = Vec::new();
        for (file, (text, _)) in files.iter().zip(&ours) {
            let Some(reference) = theirs.get(file.to_str().unwrap()) else {
                continue;
            };
            let (recall, f1) = overlap(&words(text), &words(reference));
            println!("{recall:.3} {f1:.3} {}", file.display());
            scores.push((recall, f1));
        }
        let count = scores.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| scores.iter().map(of).sum::<f64>() / count;
        let (recall, f1) = (mean(|it| it.0), mean(|it| it.1));
        println!("{extractor}: {count} pages, recall {recall:.3}, F1 {f1:.3}");
        assert!(count >= 20.0 && recall >= MIN_RECALL && f1 >= MIN_F1);
    }
    let lost: Vec<_> = ours.iter().flat_map(|(_, lost)| lost).collect();
    assert_eq!(lost, [""; 0], "code blocks");
}

fn files(pages: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (directory, start, end) in PAGES {
        for entry in pages.join(directory).read_dir().unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            if name.starts_with(start) && name.ends_with(end) {
                files.push(pages.join(directory).join(name));
            }
        }
    }
    files.sort();
    files
}

/// Returns a page's text, and the code blocks that are not in it.
fn ours(file: &Path) -> (String, Vec<String>) {
    let html = std::fs::read(file).unwrap();
    let text = html_to_markdown(&html, None, "https://docs.example.com/guide.html");
    let shape = |text: &str| -> String {
        let lines = text.lines().map(|line| line.trim().to_owned() + "\n");
        lines.collect()
    };
    let shown = shape(&text);
    let document = Document::from(String::from_utf8_lossy(&html).as_ref());
    let blocks = document.select("pre");
    let blocks = blocks.iter().map(|block| shape(block.text().trim()));
    let lost = blocks.filter(|block| !shown.contains(block.as_str()));
    let lost = lost.map(|block| format!("{}: {block}", file.display()));
    (without_targets(&text), lost.collect())
}

/// Returns what another extractor, a program and its script, makes of the pages.
fn theirs(command: &str, files: &[PathBuf]) -> BTreeMap<String, String> {
    let (program, script) = command.split_once(' ').unwrap();
    let output = Command::new(program).arg(script).args(files).output();
    let output = output.unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Removes the targets of links, which the others leave out.
fn without_targets(text: &str) -> String {
    let mut parts = text.split("](");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push(' ');
        kept.push_str(part.split_once(')').map_or("", |(_, rest)| rest));
    }
    kept
}

fn words(text: &str) -> HashMap<String, usize> {
    let mut words = HashMap::new();
    for word in text.split(|c: char| !c.is_alphanumeric()) {
        if !word.is_empty() {
            *words.entry(word.to_lowercase()).or_default() += 1;
        }
    }
    words
}

/// Returns recall and F1 of words.
fn overlap(ours: &HashMap<String, usize>, theirs: &HashMap<String, usize>) -> (f64, f64) {
    let common: usize = theirs
        .iter()
        .map(|(word, count)| *count.min(ours.get(word).unwrap_or(&0)))
        .sum();
    let of = |words: &HashMap<String, usize>| common as f64 / words.values().sum::<usize>() as f64;
    let (precision, recall) = (of(ours), of(theirs));
    (recall, 2.0 * precision * recall / (precision + recall))
}
