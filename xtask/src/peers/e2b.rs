//! E2B's official SDKs, as clients of `cantle serve` and to be compared with our own client.

use std::os::unix::fs::symlink;

use anyhow::{Context, Result, bail};

use super::python::Python;
use super::{Installer, Ready};
use crate::lane::Lane;
use crate::shell;

const NEWEST: (&str, &str) = ("2.63.0", include_str!("../../peers/e2b-2.63.0.txt"));
/// The oldest that can be pointed elsewhere, and the last with the older API.
const OLDER: [(&str, &str); 2] = [
    ("2.10.0", include_str!("../../peers/e2b-2.10.0.txt")),
    ("2.45.0", include_str!("../../peers/e2b-2.45.0.txt")),
];
/// The repositories of the SDKs, whose own tests run if these variables name checkouts.
const CHECKOUTS: [&str; 2] = ["CANTLE_E2B_CHECKOUT", "CANTLE_E2B_INTERPRETER_CHECKOUT"];
/// The packages of an environment for the tests of the Python SDKs. The SDK that is tested is that of the checkout.
const SUITE: (&[&str], &str) = (
    &[
        "e2b",
        "pytest",
        "pytest-asyncio",
        "pytest-dotenv",
        "pytest-timeout",
        "pytest-xdist",
    ],
    include_str!("../../peers/e2b-suite.txt"),
);
/// The same for the JavaScript SDKs, from their manifests. The tests of the code interpreter use the released SDK.
const JAVASCRIPT_SUITE: &str = include_str!("../../peers/e2b-js-suite.txt");
const JAVASCRIPT: [&str; 2] = ["e2b@2.51.0", "@e2b/code-interpreter@2.8.0"];

/// Prepares the newest SDK of each language, in the full lane the older ones, too.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    if shell::probe("node", &["--version"]).is_none() {
        bail!("there is no Node.js");
    }
    let is_full = installer.lane == Lane::Full;
    let javascript = installer.npm("e2b-js", &JAVASCRIPT)?;
    let python = Python::find((3, 10))?;
    let mut environments = vec![("js".to_owned(), javascript)];
    let older = OLDER.into_iter().filter(|_| is_full);
    for (version, pins) in older.chain([NEWEST]) {
        let peer = format!("e2b-python-{version}");
        let packages: &[&str] = match version == NEWEST.0 {
            true => &["e2b", "e2b-code-interpreter"],
            false => &["e2b"],
        };
        let environment = python.environment(installer, &peer, packages, pins)?;
        environments.push((format!("python-{version}"), environment.file("venv")));
    }
    let has_checkout = CHECKOUTS.iter().any(|it| std::env::var_os(it).is_some());
    if is_full && has_checkout {
        let environment = python.environment(installer, "e2b-suite", SUITE.0, SUITE.1)?;
        environments.push(("python-suite".to_owned(), environment.file("venv")));
        let packages: Vec<&str> = JAVASCRIPT_SUITE.lines().collect();
        let directory = installer.npm("e2b-js-suite", &packages)?;
        environments.push(("js-suite".to_owned(), directory));
    }
    let directory = installer.cached("e2b", "links", |_| Ok(()))?;
    for (name, environment) in environments {
        let place = directory.join(name);
        let is_there = place.symlink_metadata().is_ok();
        if !is_there {
            symlink(environment, &place)
                .with_context(|| format!("failed to link {}", place.display()))?;
        }
    }
    let directory = directory.display().to_string();
    Ok(Ready::with([("CANTLE_TEST_E2B", directory)]))
}
