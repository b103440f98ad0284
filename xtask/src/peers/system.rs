//! Debian packages that peers and tests need. Installed only by root and only where missing.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use super::Installer;
use super::python::Python;
use crate::shell;

/// Installs missing packages. A failure is printed; peers that need the package fail with their own errors.
pub fn install_missing() {
    let there = |program: &str| shell::probe(program, &["--version"]).is_some();
    // The client is needed even if an engine answers.
    let programs = [
        ("bash", "bash"),
        ("node", "nodejs"),
        ("npm", "npm"),
        ("docker", "docker.io"),
        ("dockerd", "docker.io"),
    ];
    let missing = programs.into_iter().filter(|(program, _)| !there(program));
    let mut packages: Vec<&str> = missing.map(|(_, package)| package).collect();
    packages.dedup();
    if Python::find((3, 11)).is_err() {
        packages.push("python3-venv");
    }
    if !super::postgres::is_installed() {
        packages.push("postgresql");
    }
    if !super::chromium::is_installed() {
        packages.push("chromium");
    }
    if packages.is_empty() && has_package_lists() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        if !packages.is_empty() {
            eprintln!(
                "missing: {}; run as root to install them with apt-get",
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

/// Returns a directory with the files of packages, which are not installed.
pub fn unpacked(installer: &Installer, peer: &str, packages: &[&str]) -> Result<PathBuf> {
    installer.cached(peer, &packages.join(" "), |directory| {
        let mut download = Command::new("apt-get");
        download
            .args(["download", "--quiet"])
            .args(packages)
            .current_dir(directory);
        installer.step(peer, &download)?;
        let files = fs::read_dir(directory)?.flatten().map(|entry| entry.path());
        let is_package = |path: &PathBuf| path.extension().is_some_and(|it| it == "deb");
        let downloaded: Vec<_> = files.filter(is_package).collect();
        ensure!(
            downloaded.len() == packages.len(),
            "apt-get downloaded {downloaded:?}"
        );
        for package in downloaded {
            let mut unpack = Command::new("dpkg-deb");
            unpack.arg("--extract").arg(package).arg(directory);
            installer.step(peer, &unpack)?;
        }
        Ok(())
    })
}

/// Reports whether apt has package lists: images have none, and `apt-get download` needs them.
fn has_package_lists() -> bool {
    fs::read_dir("/var/lib/apt/lists").is_ok_and(|lists| {
        let mut names = lists.flatten().map(|list| list.file_name());
        names.any(|name| name.to_string_lossy().contains("_Packages"))
    })
}
