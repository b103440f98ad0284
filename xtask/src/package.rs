//! `cargo xtask package`: what would be published, and a stranger's crate built against it.
//!
//! `examples/backend` lies outside the workspace and asks for our crates by version. It is tested
//! with the unpacked packages in the registry's place: a file missing from a package, a dependency
//! without a version or a feature that only the workspace turned on shows here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::shell;
use crate::workspace::{self, Metadata};

/// What the example asks for, and what that asks for: Cargo warns about a patch of anything else.
const FOR_EXTENSIONS: [&str; 5] = [
    "cantle-backends-local",
    "cantle-core",
    "cantle-macros",
    "cantle-supervisor",
    "cantle-testkit",
];

pub fn run() -> Result<()> {
    let example = workspace::root().join("examples/backend/Cargo.toml");
    if !example.exists() {
        bail!("the extension crate is missing: {}", example.display());
    }
    let metadata = Metadata::read()?;
    shell::timed("package", || {
        let mut cargo = shell::cargo();
        cargo.args(["package", "--workspace", "--allow-dirty"]);
        for package in metadata
            .packages
            .iter()
            .filter(|package| !package.is_published())
        {
            cargo.args(["--exclude", &package.name]);
        }
        shell::run(&mut cargo)
    })?;
    shell::timed("extension crate", || test_extension(&example, &metadata))
}

fn test_extension(example: &Path, metadata: &Metadata) -> Result<()> {
    let unpacked = tempfile::tempdir()?;
    let mut patches = Vec::new();
    for package in &metadata.packages {
        if !FOR_EXTENSIONS.contains(&package.name.as_str()) {
            continue;
        }
        let name = format!("{}-{}", package.name, package.version);
        let archive = metadata
            .target
            .join("package")
            .join(format!("{name}.crate"));
        shell::run(
            Command::new("tar")
                .arg("-xzf")
                .arg(&archive)
                .arg("-C")
                .arg(unpacked.path()),
        )?;
        let path = unpacked.path().join(&name);
        let path = path
            .to_str()
            .context("the temporary directory's path is not UTF-8")?;
        // JSON strings are TOML strings.
        let path = serde_json::to_string(path)?;
        patches.push(format!("patch.crates-io.{}.path={path}", package.name));
    }
    let target = metadata.target.join("extension");
    let cargo = |command: &str| {
        let mut cargo = shell::cargo();
        cargo.arg(command).arg("--manifest-path").arg(example);
        cargo.arg("--target-dir").arg(&target);
        for patch in &patches {
            cargo.arg("--config").arg(patch);
        }
        cargo
    };
    shell::run(&mut cargo("test"))?;
    shell::run(cargo("build").args(["--example", "outside"]))?;
    test_moved(&target)
}

/// Runs a stranger's program where nothing of its build is left: a sandbox needs no file of it.
fn test_moved(target: &Path) -> Result<()> {
    let place = tempfile::tempdir()?;
    let program = place.path().join("program");
    std::fs::copy(target.join("debug/examples/outside"), &program)?;
    std::fs::remove_dir_all(target)?;
    let printed = shell::output(Command::new(&program).current_dir(place.path()))?;
    if printed != "inside\nrefused\n" {
        bail!("a program that was moved can't make sandboxes: it printed {printed:?}");
    }
    Ok(())
}
