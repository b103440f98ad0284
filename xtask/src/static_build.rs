//! The static `cantle`: how it is built, and where it is.
//!
//! Static against glibc, as a position-independent program (`static-pie`), so that its addresses
//! stay random. The flags are given for the target alone and the target is named, so procedural
//! macros and build scripts are still built for a host with a loader.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::ValueEnum;

use crate::metadata::Metadata;
use crate::shell;

/// Without the cfg, `getrandom` looks for the libc function with `dlsym`, which finds nothing in a static
/// program, and falls back to /dev/urandom, which an empty root directory does not have.
const FLAGS: &str = "-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\"";

/// The features of the release.
pub const FEATURES: &str = "azure,otel,postgres,s3";

/// A Cargo profile.
#[derive(Clone, Copy, ValueEnum)]
pub enum Profile {
    Dist,
    Release,
    Dev,
}

impl Profile {
    fn name(self) -> &'static str {
        match self {
            Profile::Dist => "dist",
            Profile::Release => "release",
            Profile::Dev => "dev",
        }
    }
}

/// Returns the command that builds it; [`program`] finds the result.
pub fn build(profile: Profile) -> Result<Command> {
    let target = host()?;
    let flags = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    );
    let mut cargo = shell::cargo();
    cargo
        .args(["build", "--package=cantle-cli", "--target", &target])
        .args(["--profile", profile.name(), "--features", FEATURES])
        .env(flags, FLAGS);
    Ok(cargo)
}

/// Returns the built program after checking that it is static.
pub fn program(profile: Profile) -> Result<PathBuf> {
    let directory = match profile {
        Profile::Dev => "debug",
        _ => profile.name(),
    };
    let target = Metadata::read()?.target.join(host()?);
    let program = target.join(directory).join("cantle");
    if !is_static(&program)? {
        bail!("{} is not static: it needs a loader", program.display());
    }
    Ok(program)
}

/// Reports whether a program starts without a loader; a static-pie does.
pub fn is_static(program: &Path) -> Result<bool> {
    let mut readelf = Command::new("readelf");
    readelf.args(["--program-headers", "--wide"]).arg(program);
    Ok(!shell::output(&mut readelf)?.contains("INTERP"))
}

/// Returns the target triple of this machine.
pub fn host() -> Result<String> {
    let version = shell::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc -vV does not name its host")
}

#[cfg(test)]
mod tests {
    use super::is_static;

    #[test]
    fn a_program_of_this_build_needs_a_loader() {
        let this_test = std::env::current_exe().unwrap();
        assert!(!is_static(&this_test).unwrap());
    }

    #[test]
    fn other_files_are_errors() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        for content in ["#!/bin/sh\n", "\x7fELF\x02\x01"] {
            std::fs::write(&file, content).unwrap();
            assert!(is_static(&file).is_err(), "{content:?}");
        }
    }
}
