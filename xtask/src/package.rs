//! `cargo xtask package`: the packages as they would be published, and an extension crate built
//! against them.
//!
//! `examples/backend` is outside the workspace and depends on our crates by version. It is built with
//! the unpacked packages in place of the registry's, which shows a file missing from a package, a
//! dependency without a version, or a feature that only the workspace turned on. That is also why
//! `cargo package` does not build each package by itself. The build uses the workspace's
//! lock file, settings and target directory, so that other crates are compiled only once.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::metadata::Metadata;
use crate::{shell, workspace};

/// The dependencies of the example and theirs; Cargo warns about a patch that nothing uses.
const FOR_EXTENSIONS: [&str; 7] = [
    "cantle-backends-local",
    "cantle-command-driver",
    "cantle-core",
    "cantle-macros",
    "cantle-proxy",
    "cantle-supervisor",
    "cantle-testkit",
];

/// The profile of the workspace: dependencies of the same settings are shared.
const DEV_PROFILE: [&str; 2] = [
    "profile.dev.debug=\"line-tables-only\"",
    "profile.dev.package.\"*\".debug=false",
];

pub fn run() -> Result<()> {
    let example = workspace::root().join("examples/backend");
    if !example.join("Cargo.toml").exists() {
        bail!("the extension crate is missing: {}", example.display());
    }
    let metadata = Metadata::read()?;
    shell::timed("package", || {
        let mut cargo = shell::cargo();
        cargo.args(["package", "--workspace", "--allow-dirty", "--no-verify"]);
        let private = metadata
            .packages
            .iter()
            .filter(|package| !package.is_published());
        cargo.args(private.flat_map(|package| ["--exclude", &package.name]));
        shell::run(&mut cargo)
    })?;
    shell::timed("extension crate", || test_extension(&example, &metadata))
}

fn test_extension(example: &Path, metadata: &Metadata) -> Result<()> {
    // In the target directory, so that what is unchanged is not built again.
    let unpacked = metadata.target.join("package/unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)?;
    }
    fs::create_dir_all(&unpacked)?;
    let mut patches = Vec::new();
    for package in &metadata.packages {
        if !FOR_EXTENSIONS.contains(&package.name.as_str()) {
            continue;
        }
        let name = format!("{}-{}", package.name, package.version);
        let archive = metadata.target.join(format!("package/{name}.crate"));
        // Archives have no useful times, and Cargo compares them.
        let mut tar = Command::new("tar");
        shell::run(tar.arg("-xzmf").arg(&archive).arg("-C").arg(&unpacked))?;
        let path = unpacked.join(&name);
        let path = path
            .to_str()
            .context("the target directory's path is not UTF-8")?;
        // JSON strings are TOML strings.
        let path = serde_json::to_string(path)?;
        patches.push(format!("patch.crates-io.{}.path={path}", package.name));
    }
    let copy = unpacked.join("example");
    copy_directory(example, &copy)?;
    // The versions that are built already.
    let lock = "Cargo.lock";
    fs::copy(workspace::root().join(lock), copy.join(lock))?;
    let cargo = |command: &str| {
        let mut cargo = shell::cargo();
        cargo
            .arg(command)
            .arg("--manifest-path")
            .arg(copy.join("Cargo.toml"));
        cargo.arg("--target-dir").arg(&metadata.target);
        // Settings would win over the variable with which the tests were built.
        let is_set = std::env::var_os("CARGO_PROFILE_DEV_DEBUG").is_some();
        let profile = DEV_PROFILE.into_iter().filter(|_| !is_set);
        let settings = patches.iter().map(String::as_str).chain(profile);
        cargo.args(settings.flat_map(|setting| ["--config", setting]));
        cargo
    };
    shell::run(&mut cargo("test"))?;
    shell::run(cargo("build").args(["--example", "outside"]))?;
    test_moved(&metadata.target)
}

/// Copies the files of a directory and of those in it.
fn copy_directory(from: &Path, to: &Path) -> Result<()> {
    for file in workspace::files(from)? {
        let copied = to.join(file.strip_prefix(from)?);
        if let Some(directory) = copied.parent() {
            fs::create_dir_all(directory)?;
        }
        fs::copy(&file, copied)?;
    }
    Ok(())
}

/// Runs a program where its build directory is not visible: a sandbox needs no file of it.
fn test_moved(target: &Path) -> Result<()> {
    let place = tempfile::tempdir()?;
    let program = place.path().join("program");
    fs::copy(target.join("debug/examples/outside"), &program)?;
    let hidden = target.with_extension("hidden");
    fs::rename(target, &hidden)?;
    let printed = shell::output(Command::new(&program).current_dir(place.path()));
    fs::rename(&hidden, target)?;
    let printed = printed?;
    if printed != "inside\nrefused\n" {
        bail!("a moved program cannot open sandboxes: it printed {printed:?}");
    }
    Ok(())
}
