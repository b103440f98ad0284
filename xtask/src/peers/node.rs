//! npm packages with a Node.js that is new enough for them.

use std::path::PathBuf;

use anyhow::{Context, Result};

use super::Installer;
use crate::shell;

/// Installed from npm if the machine's Node.js is older (Debian 12 has 18).
const NODE: &str = "node@22.23.3";

/// Installs npm packages, with a Node.js if the machine's is older than `minimum`. Returns their modules and the program.
pub fn install(
    installer: &Installer,
    peer: &str,
    packages: &[&str],
    minimum: (u32, u32),
) -> Result<(PathBuf, PathBuf)> {
    let answer = shell::probe("node", &["--version"]).context("there is no Node.js")?;
    let is_old = version(&answer).is_none_or(|version| version < minimum);
    let mut packages = packages.to_vec();
    packages.extend(is_old.then_some(NODE));
    let modules = installer.npm(peer, &packages)?.join("node_modules");
    let node = match is_old {
        true => modules.join("node/bin/node"),
        false => PathBuf::from("node"),
    };
    Ok((modules, node))
}

/// `v20.20.2` → (20, 20).
fn version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix('v')?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn node_versions_are_parsed() {
        assert_eq!(version("v20.15.1\n"), Some((20, 15)));
        assert_eq!(version("20"), None);
    }
}
