//! Other extractors of web pages, Python's trafilatura and Mozilla's Readability, and pages: Debian's documentation.

use anyhow::{Result, bail};

use super::python::{Python, source};
use super::workshop::npm_install;
use super::{Ready, Workshop, system};
use crate::shell;

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
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    if shell::probe("npm", &["--version"]).is_none() {
        bail!("there is no npm");
    }
    let packages = ["trafilatura", "lxml_html_clean"];
    let pins = include_str!("../../peers/trafilatura.txt");
    let environment =
        Python::find((3, 11))?.environment(workshop, "trafilatura", &packages, pins)?;
    let recipe = format!("{}\n{SCRIPT}", READABILITY.join(" "));
    let readability = workshop.cached("readability", &recipe, |directory| {
        // Beside its modules, where Node.js looks for them.
        std::fs::write(directory.join("pages.js"), SCRIPT)?;
        let mut npm = npm_install(directory);
        workshop.step("readability", npm.args(READABILITY))
    })?;
    let pages = system::unpacked(workshop, "pages", &PAGES)?;
    let python = environment.program("python").display().to_string();
    let script = source("trafilatura_pages.py").display().to_string();
    let readability = readability.join("pages.js").display().to_string();
    Ok(Ready::with([
        ("CANTLE_TEST_PAGES", pages.display().to_string()),
        ("CANTLE_TEST_TRAFILATURA", format!("{python} {script}")),
        ("CANTLE_TEST_READABILITY", format!("node {readability}")),
    ]))
}
