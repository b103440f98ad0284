//! E2B's official SDKs, as clients of `cantle serve` and to be compared with our own client.

use std::os::unix::fs::symlink;
use std::process::Command;

use anyhow::{Context, Result, bail};

use super::python::Python;
use super::{Ready, Workshop};
use crate::shell;

/// The oldest that can be pointed elsewhere, the last with the older API, and the newest.
const PYTHON: [(&str, &str); 3] = [
    ("2.10.0", include_str!("../../peers/e2b-2.10.0.txt")),
    ("2.45.0", include_str!("../../peers/e2b-2.45.0.txt")),
    ("2.63.0", include_str!("../../peers/e2b-2.63.0.txt")),
];
const JAVASCRIPT: &str = "e2b@2.51.0";

pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    for program in ["node", "npm"] {
        if shell::probe(program, &["--version"]).is_none() {
            bail!("there is no {program}");
        }
    }
    let python = Python::find((3, 10))?;
    let mut environments = Vec::new();
    for (version, pins) in PYTHON {
        let peer = format!("e2b-python-{version}");
        let environment = python.environment(workshop, &peer, &["e2b"], pins)?;
        environments.push((version, environment));
    }
    let directory = workshop.cached("e2b", JAVASCRIPT, |directory| {
        let js = directory.join("js");
        std::fs::create_dir(&js)?;
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--no-save"])
            .args(["--fetch-retries=1", "--prefix"])
            .arg(&js)
            .arg(JAVASCRIPT)
            .current_dir(&js);
        workshop.step("e2b", &npm)
    })?;
    for (version, environment) in environments {
        let place = directory.join(format!("python-{version}"));
        let is_there = place.symlink_metadata().is_ok();
        if !is_there {
            symlink(environment.file("venv"), &place)
                .with_context(|| format!("failed to link {}", place.display()))?;
        }
    }
    Ok(Ready {
        variables: vec![("CANTLE_TEST_E2B", directory.display().to_string())],
        server: None,
    })
}
