//! Every library builds without features and with each of its features alone.

use anyhow::Result;

use crate::metadata::Metadata;
use crate::shell;

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
            // Clippy can deny warnings without rebuilding dependencies; `check` cannot.
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
