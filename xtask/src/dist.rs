//! `cargo xtask dist`: the static binary, and the release archive with completions, manual pages, licences and a checksum.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::metadata::Metadata;
use crate::static_build::{self, Profile};
use crate::{shell, workspace};

/// Beginnings of the names of files with licences.
const LICENCE_FILES: [&str; 4] = ["LICENSE", "LICENCE", "COPYING", "NOTICE"];

/// Build the static binary and print its path; with the profile `dist`, the release archive, too
#[derive(clap::Args)]
pub struct DistArgs {
    /// `dist` is the smallest program, `dev` the fastest build
    #[arg(long, value_enum, default_value = "dist")]
    profile: Profile,
}

pub fn run(args: &DistArgs) -> Result<()> {
    shell::run(&mut static_build::build(args.profile)?)?;
    let program = static_build::program(args.profile)?;
    eprintln!("static, {} bytes", fs::metadata(&program)?.len());
    if matches!(args.profile, Profile::Dist) {
        eprintln!("{}", write(&program)?.display());
    }
    println!("{}", program.display());
    Ok(())
}

/// Writes `cantle-VERSION-x86_64-linux.tar.gz` and its `.sha256` beside the program, and returns its path.
///
/// Equal content gives an equal archive: entries are sorted, and have neither owner nor time.
fn write(program: &Path) -> Result<PathBuf> {
    let version = env!("CARGO_PKG_VERSION");
    let name = format!("cantle-{version}-{}-linux", std::env::consts::ARCH);
    let staging = tempfile::tempdir()?;
    let root = staging.path().join(&name);
    for directory in ["completions", "man/man1"] {
        fs::create_dir_all(root.join(directory))?;
    }
    fs::copy(program, root.join("cantle"))?;
    for file in ["README.md", "CHANGELOG.md", "LICENSE-APACHE", "LICENSE-MIT"] {
        fs::copy(workspace::root().join(file), root.join(file))?;
    }
    for (shell_name, file) in [
        ("bash", "cantle.bash"),
        ("zsh", "_cantle"),
        ("fish", "cantle.fish"),
    ] {
        let script = shell::output(Command::new(program).args(["completions", shell_name]))?;
        fs::write(root.join("completions").join(file), script)?;
    }
    shell::run(Command::new(program).arg("man").arg(root.join("man/man1")))?;
    fs::write(root.join("LICENSES-THIRD-PARTY.txt"), licences()?)?;

    let directory = program.parent().context("the program has no directory")?;
    let archive = directory.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--sort=name", "--mtime=@0"])
        .args(["--owner=0", "--group=0", "--numeric-owner", "--file"])
        .arg(&archive)
        .arg("--directory")
        .arg(staging.path())
        .arg(&name);
    shell::run(&mut tar)?;
    let file = format!("{name}.tar.gz");
    let sum = shell::output(Command::new("sha256sum").arg(&file).current_dir(directory))?;
    fs::write(directory.join(format!("{file}.sha256")), sum)?;
    Ok(archive)
}

/// Returns the licences of all crates that are linked into the program.
fn licences() -> Result<String> {
    let mut tree = shell::cargo();
    tree.args(["tree", "--package=cantle-cli", "--prefix=none"])
        .args(["--features", static_build::FEATURES])
        .args(["--edges=normal,no-proc-macro", "--format={p}"])
        .args(["--target", &static_build::host()?]);
    let tree = shell::output(&mut tree)?;
    // Each line is `NAME vVERSION`, with notes behind.
    let linked: BTreeSet<_> = tree.lines().filter_map(name_and_version).collect();
    let mut text = String::from("Crates that are linked into this program, and their licences.\n");
    let mut texts: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in &Metadata::with_dependencies()?.packages {
        let id = (package.name.as_str(), package.version.as_str());
        if package.source.is_none() || !linked.contains(&id) {
            continue;
        }
        let Some(licence) = &package.license else {
            bail!("{} names no licence", package.name);
        };
        let _ = writeln!(text, "{} {}: {licence}", package.name, package.version);
        for content in licence_files(&package.manifest_path)? {
            texts.entry(content).or_default().push(package.name.clone());
        }
    }
    for (licence, mut names) in texts {
        names.dedup();
        let line = "-".repeat(80);
        let _ = write!(text, "\n{line}\n{}\n{line}\n{licence}\n", names.join(", "));
    }
    Ok(text)
}

fn name_and_version(line: &str) -> Option<(&str, &str)> {
    let mut words = line.split(' ');
    Some((words.next()?, words.next()?.strip_prefix('v')?))
}

fn licence_files(manifest: &Path) -> Result<Vec<String>> {
    let directory = manifest.parent().context("a manifest has no directory")?;
    let mut texts = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        if LICENCE_FILES.iter().any(|start| name.starts_with(start)) && entry.path().is_file() {
            let text = fs::read(entry.path())?;
            texts.push(String::from_utf8_lossy(&text).trim().replace('\r', ""));
        }
    }
    Ok(texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archive_is_complete_and_reproducible() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("cantle");
        let script = "#!/bin/sh\ncase $1 in completions) echo for $2;; man) echo page > $2/cantle.1;; esac\n";
        fs::write(directory.path().join("script"), script).unwrap();
        // A file that this process has written can't be executed while another test forks.
        let mut install = Command::new("install");
        install
            .args(["-m", "755"])
            .arg(directory.path().join("script"));
        shell::run(install.arg(&program)).unwrap();
        let archive = write(&program).unwrap();
        let first = fs::read(&archive).unwrap();
        assert_eq!(fs::read(write(&program).unwrap()).unwrap(), first);
        let list = shell::output(Command::new("tar").arg("-tf").arg(&archive)).unwrap();
        for file in [
            "cantle",
            "man/man1/cantle.1",
            "completions/_cantle",
            "LICENSES-THIRD-PARTY.txt",
        ] {
            assert!(
                list.lines()
                    .any(|line| line.ends_with(&format!("-linux/{file}"))),
                "{list}"
            );
        }
        let sums = archive.with_extension("gz.sha256");
        let mut check = Command::new("sha256sum");
        check.arg("--check").arg(sums).current_dir(directory.path());
        shell::run(&mut check).unwrap();
    }

    #[test]
    fn lines_of_cargo_tree_are_parsed() {
        let line = "serde v1.0.229 (*)";
        assert_eq!(name_and_version(line), Some(("serde", "1.0.229")));
        assert_eq!(name_and_version(""), None);
    }

    #[test]
    fn every_linked_crate_has_a_licence() {
        let text = licences().unwrap();
        assert!(
            text.contains("\nserde ") && text.contains("\nopentelemetry_sdk "),
            "{text}"
        );
        assert!(text.contains("Permission is hereby granted"));
        assert!(!text.contains("\ninsta "), "a dependency of tests");
    }
}
