//! `cargo xtask dist`: one static `cantle`.
//!
//! Static against glibc, as a position-independent program (`static-pie`), so that its addresses
//! stay random. The flags are given for the target alone and the target is named, so procedural
//! macros and build scripts are still built for a host with a loader.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::workspace::Metadata;
use crate::{elf, shell};

/// By default `getrandom` looks for the function of that name with `dlsym`, finds nothing in a static
/// program, and reads /dev/urandom, which an empty root directory does not have.
const FLAGS: &str = "-C target-feature=+crt-static --cfg getrandom_backend=\"linux_getrandom\"";

pub fn run() -> Result<()> {
    shell::run(&mut build(&host()?))?;
    let program = program()?;
    let size = std::fs::metadata(&program)?.len();
    println!("{}  {size} bytes, static", program.display());
    Ok(())
}

/// The build for a target triple; [`program`] is where it puts its result.
pub fn build(target: &str) -> Command {
    let flags = format!(
        "CARGO_TARGET_{}_RUSTFLAGS",
        target.to_uppercase().replace('-', "_")
    );
    let mut cargo = shell::cargo();
    cargo
        .args([
            "build",
            "--profile=dist",
            "--package=cantle-cli",
            "--target",
            target,
        ])
        .env(flags, FLAGS);
    cargo
}

/// The built program, once it has proved to be static.
pub fn program() -> Result<PathBuf> {
    let program = Metadata::read()?
        .target
        .join(host()?)
        .join("dist")
        .join("cantle");
    if !elf::is_static(&program)? {
        bail!("{} asks for a loader, it is not static", program.display());
    }
    Ok(program)
}

/// The triple of this machine.
pub fn host() -> Result<String> {
    let version = shell::output(Command::new("rustc").arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned)
        .context("rustc -vV does not name its host")
}
