//! The part of `cargo xtask check` for systems other than Linux.
//!
//! The local backend's implementation for other systems is built and tested on Linux, under the cfg that its
//! build script sets there. If the standard library of another system is installed, the whole program is
//! type-checked for it.

use anyhow::Result;

use crate::shell;

/// Another Unix system.
const OTHER: &str = "x86_64-apple-darwin";

pub fn check() -> Result<()> {
    let package = ["--package", "cantle-backends-local"];
    let portable = || {
        let mut cargo = shell::cargo();
        cargo.env("CANTLE_PORTABLE", "1");
        cargo
    };
    let tests = ["--lib", "--test", "portable"];
    let mut clippy = portable();
    clippy.arg("clippy").args(package).args(tests);
    shell::run(clippy.args(shell::DENY_WARNINGS))?;
    shell::run(portable().arg("test").args(package).args(tests))?;

    let installed = shell::probe("rustc", &["--print", "target-libdir", "--target", OTHER])
        .is_some_and(|directory| std::path::Path::new(directory.trim()).exists());
    if !installed {
        eprintln!("SKIPPED {OTHER}: `rustup target add {OTHER}` installs its standard library");
        return Ok(());
    }
    // Nothing is linked, so C code need not be compiled.
    let no_tool = |tool: &str| format!("{tool}_{}", OTHER.replace('-', "_"));
    let mut cargo = shell::cargo();
    cargo
        .args(["check", "--package", "cantle-cli", "--target", OTHER])
        .envs([(no_tool("CC"), "true"), (no_tool("AR"), "true")])
        .env("RUSTFLAGS", "-D warnings");
    shell::run(&mut cargo)
}
