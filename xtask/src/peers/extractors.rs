//! Other extractors of web pages, Python's trafilatura and Mozilla's Readability, and pages: Debian's documentation.

use anyhow::Result;

use super::python::{Python, source};
use super::{Installer, Ready, system};

/// Packages with pages under the GPL, version 2 or later (of Git: 2 only), and in the public domain (SQLite's).
const PAGES: [&str; 5] = [
    "debian-policy",
    "developers-reference",
    "debian-faq",
    "git-doc",
    "sqlite3-doc",
];
const SCRIPT: &str = include_str!("../../peers/readability_pages.js");
const READABILITY: [&str; 2] = ["@mozilla/readability@0.6.0", "linkedom@0.18.15"];

/// Prepares them for the full lane.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let packages = ["trafilatura", "lxml_html_clean"];
    let pins = include_str!("../../peers/trafilatura.txt");
    let environment =
        Python::find((3, 11))?.environment(installer, "trafilatura", &packages, pins)?;
    // Beside its modules, where Node.js looks for them.
    let readability = installer.npm("readability", &READABILITY)?.join("pages.js");
    std::fs::write(&readability, SCRIPT)?;
    let pages = system::unpacked(installer, "pages", &PAGES)?;
    let python = environment.program("python").display().to_string();
    let script = source("trafilatura_pages.py").display().to_string();
    Ok(Ready::with([
        ("CANTLE_TEST_PAGES", pages.display().to_string()),
        ("CANTLE_TEST_TRAFILATURA", format!("{python} {script}")),
        (
            "CANTLE_TEST_READABILITY",
            format!("node {}", readability.display()),
        ),
    ]))
}
