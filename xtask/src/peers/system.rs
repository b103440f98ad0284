//! Debian packages that peers and tests need. Installed only by root and only where missing.

use std::fs;
use std::process::Command;

use super::python::Python;
use crate::shell;

/// Installs what is missing. A failure is only told: what needs the package then says what it lacks.
pub fn install_missing() {
    let there = |program| shell::probe(program, &["--version"]).is_some();
    let mut packages = Vec::new();
    if !there("bash") {
        packages.push("bash");
    }
    if !there("node") {
        packages.push("nodejs");
    }
    if !there("npm") {
        packages.push("npm");
    }
    // Also where an engine answers: the program that asks it is in the same package.
    if !there("docker") || !there("dockerd") {
        packages.push("docker.io");
    }
    if Python::find((3, 11)).is_err() {
        packages.push("python3-venv");
    }
    if packages.is_empty() && has_package_lists() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        if !packages.is_empty() {
            eprintln!(
                "missing here: {}; as root I would apt-get them",
                packages.join(" ")
            );
        }
        return;
    }
    let mut update = Command::new("apt-get");
    update.args(["update", "--quiet"]);
    let mut install = Command::new("apt-get");
    install
        .args(["install", "--quiet", "--yes", "--no-install-recommends"])
        .args(&packages)
        .env("DEBIAN_FRONTEND", "noninteractive");
    let done = shell::run(&mut update).and_then(|()| {
        if packages.is_empty() {
            Ok(())
        } else {
            shell::run(&mut install)
        }
    });
    if let Err(error) = done {
        eprintln!("xtask: {error:#}");
    }
}

/// Whether apt knows any package: images come without lists, and `apt-get download` needs them.
fn has_package_lists() -> bool {
    let Ok(lists) = fs::read_dir("/var/lib/apt/lists") else {
        return false;
    };
    lists
        .flatten()
        .any(|list| list.file_name().to_string_lossy().contains("_Packages"))
}
