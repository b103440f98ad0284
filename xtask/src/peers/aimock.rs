//! aimock: an independent mock model server that plays the turns in `crates/cli/tests/peers/aimock`.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::server::{ReadySigns, Server};
use super::workshop::npm_install;
use super::{Ready, Workshop};
use crate::{shell, workspace};

const PACKAGE: &str = "@copilotkit/aimock@1.43.0";
/// The oldest Node.js that it supports.
const MINIMUM: (u32, u32) = (20, 15);
/// Installed from npm if the machine's Node.js is older (Debian 12 has 18).
pub const NODE: &str = "node@22.23.3";

/// Starts it; also returns its address, `http://127.0.0.1:PORT`.
pub fn bring_up(workshop: &Workshop) -> Result<(Ready, String)> {
    let answer = shell::probe("node", &["--version"]).context("there is no Node.js")?;
    let installed =
        node_version(&answer).with_context(|| format!("failed to parse the version {answer:?}"))?;
    if shell::probe("npm", &["--version"]).is_none() {
        bail!("there is no npm");
    }
    let mut packages = vec![PACKAGE];
    if installed < MINIMUM {
        packages.push(NODE);
    }
    let directory = workshop.cached("aimock", &packages.join(" "), |directory| {
        // Its optional companions are not needed, and resolving them takes over ten minutes without a
        // network.
        let mut npm = npm_install(directory);
        workshop.step("aimock", npm.arg("--legacy-peer-deps").args(&packages))
    })?;

    let modules = directory.join("node_modules");
    let mut command = if installed < MINIMUM {
        Command::new(modules.join("node/bin/node"))
    } else {
        Command::new("node")
    };
    command
        .arg(modules.join(".bin/llmock"))
        .args(["--host", "127.0.0.1", "--port", "0"])
        .args(["--strict", "--fixtures"])
        .arg(workspace::root().join("crates/cli/tests/peers/aimock"))
        // A turn out of order is an error, not the nearest answer.
        .env("AIMOCK_STRICT_TURN_INDEX", "1");
    let signs = ReadySigns {
        before_address: "listening on ",
        ready: "/health",
    };
    let (server, address) = Server::start(workshop, "aimock", &mut command, &signs)?;
    let ready = Ready::served(
        server,
        [("CANTLE_TEST_AIMOCK_URL", format!("{address}/v1"))],
    );
    Ok((ready, address))
}

/// `v20.20.2` → (20, 20).
pub fn node_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.trim().strip_prefix('v')?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::node_version;

    #[test]
    fn node_versions_are_parsed() {
        assert_eq!(node_version("v20.15.1\n"), Some((20, 15)));
        assert_eq!(node_version("20"), None);
    }
}
