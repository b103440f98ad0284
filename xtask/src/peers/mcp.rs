//! The MCP project's test server, server-everything, and its conformance suite.

use anyhow::{Context, Result, bail};

use super::aimock::{NODE, node_version};
use super::workshop::npm_install;
use super::{Ready, Workshop};
use crate::shell;

const EVERYTHING: &str = "@modelcontextprotocol/server-everything@2026.8.31";
const CONFORMANCE: &str = "@modelcontextprotocol/conformance@0.2.0-alpha.12";
/// The oldest Node.js that the suite supports.
const MINIMUM: (u32, u32) = (22, 0);

/// Installs both. Tests start them.
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    let answer = shell::probe("node", &["--version"]).context("there is no Node.js")?;
    if shell::probe("npm", &["--version"]).is_none() {
        bail!("there is no npm");
    }
    let is_old = node_version(&answer).is_none_or(|version| version < MINIMUM);
    let mut packages = vec![EVERYTHING, CONFORMANCE];
    packages.extend(is_old.then_some(NODE));
    let directory = workshop.cached("mcp", &packages.join(" "), |directory| {
        let mut npm = npm_install(directory);
        workshop.step("mcp", npm.args(&packages))
    })?;
    let modules = directory.join("node_modules");
    let node = match is_old {
        true => modules.join("node/bin/node").display().to_string(),
        false => "node".to_owned(),
    };
    let program = |name: &str| modules.join(".bin").join(name).display().to_string();
    Ok(Ready::with([
        (
            "CANTLE_TEST_MCP_EVERYTHING",
            program("mcp-server-everything"),
        ),
        ("CANTLE_TEST_MCP_CONFORMANCE", program("conformance")),
        ("CANTLE_TEST_MCP_NODE", node),
    ]))
}
