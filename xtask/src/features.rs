//! Every published library builds without features and with each of its features alone.

use anyhow::Result;

use crate::metadata::{Metadata, Package};
use crate::shell;

pub fn check() -> Result<()> {
    let packages = Metadata::read()?.packages;
    let is_checked = |package: &&Package| package.is_library() && package.is_published();
    for package in packages.iter().filter(is_checked) {
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
