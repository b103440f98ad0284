//! Every library builds without features, and with each of its features alone.

use anyhow::Result;

use crate::shell;
use crate::workspace::Metadata;

pub fn check() -> Result<()> {
    for package in Metadata::read()?
        .packages
        .iter()
        .filter(|package| package.is_library())
    {
        let alone = package
            .features
            .keys()
            .map(String::as_str)
            .filter(|name| *name != "default");
        for features in std::iter::once("").chain(alone) {
            let mut clippy = shell::cargo();
            // Clippy, and not `check`: it can deny warnings without building dependencies anew.
            clippy.args(["clippy", "--quiet", "--lib", "--package", &package.name]);
            clippy.arg("--no-default-features");
            if !features.is_empty() {
                clippy.args(["--features", features]);
            }
            shell::run(clippy.args(["--", "-D", "warnings"]))?;
        }
    }
    Ok(())
}
