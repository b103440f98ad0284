//! Every library builds without features and with each of its features alone.
//!
//! Each build has other features of foreign crates, which are then checked again. So one without features of its own,
//! which the lints have covered but for what it takes from its neighbours, is built alone in the full lane only.

use anyhow::Result;

use crate::lane::Lane;
use crate::metadata::Metadata;
use crate::shell;

pub fn check(lane: Lane) -> Result<()> {
    let packages = Metadata::read()?.packages;
    let libraries = packages.iter().filter(|package| package.is_library());
    for package in libraries.filter(|it| lane == Lane::Full || !it.features.is_empty()) {
        let names = package.features.keys().map(String::as_str);
        let alone = names.filter(|name| *name != "default");
        for features in std::iter::once("").chain(alone) {
            let mut clippy = shell::cargo();
            // Clippy can deny warnings without rebuilding dependencies; `check` cannot.
            clippy.args(["clippy", "--quiet", "--lib", "--package", &package.name]);
            clippy.arg("--no-default-features");
            if !features.is_empty() {
                clippy.args(["--features", features]);
            }
            shell::run(clippy.args(shell::DENY_WARNINGS))?;
        }
    }
    Ok(())
}
