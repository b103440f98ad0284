//! The package indexes of this machine's pip and npm, from which commands in a sandbox install packages, and uv.

use std::process::Command;

use anyhow::{Context, Result};

use super::{Installer, Ready, python};
use crate::shell;

/// Prints the URL of the index and the host of its files, as pip knows them.
const PIP_SETTINGS: &str = "
import subprocess, sys
from urllib.parse import urlsplit
from pip._internal.models.index import PyPI
get = [sys.executable, '-m', 'pip', 'config', 'get', 'global.index-url']
own = subprocess.run(get, capture_output=True, text=True).stdout.strip()
print(own or PyPI.simple_url)
print(urlsplit(own).hostname if own else PyPI.file_storage_domain)
";

/// Finds the indexes, and downloads a package to see that they answer.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let settings = shell::probe("python3", &["-c", PIP_SETTINGS]).context("pip has no settings")?;
    let (index, files) = settings
        .trim()
        .split_once('\n')
        .context("pip names no index")?;
    let directory = tempfile::tempdir()?;
    let mut download = Command::new("python3");
    download
        .args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            ".",
        ])
        .args(["--index-url", index, "iniconfig==2.0.0"])
        .current_dir(directory.path());
    installer.step("index", &download)?;
    let registry =
        shell::probe("npm", &["config", "get", "registry"]).context("npm has no registry")?;
    Ok(Ready::with([
        ("CANTLE_TEST_INDEX", index.to_owned()),
        ("CANTLE_TEST_INDEX_FILES", files.to_owned()),
        ("CANTLE_TEST_REGISTRY", registry.trim().to_owned()),
        (
            "CANTLE_TEST_UV",
            python::uv(installer)?.display().to_string(),
        ),
    ]))
}
