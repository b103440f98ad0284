//! The MCP project's test server, server-everything, and its conformance suite; in the full lane also Playwright's server.

use anyhow::{Context, Result, bail};

use super::aimock::{NODE, node_version};
use super::workshop::npm_install;
use super::{Ready, Workshop};
use crate::lane::Lane;
use crate::shell;

const EVERYTHING: &str = "@modelcontextprotocol/server-everything@2026.8.31";
const CONFORMANCE: &str = "@modelcontextprotocol/conformance@0.2.0-alpha.12";
const PLAYWRIGHT: &str = "@playwright/mcp@0.0.83";
/// The oldest Node.js that the suite supports.
const MINIMUM: (u32, u32) = (22, 0);

/// Installs them. Tests start them.
pub fn bring_up(workshop: &Workshop, lane: Lane) -> Result<Ready> {
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
    let mut ready = Ready::with([
        (
            "CANTLE_TEST_MCP_EVERYTHING",
            program("mcp-server-everything"),
        ),
        ("CANTLE_TEST_MCP_CONFORMANCE", program("conformance")),
        ("CANTLE_TEST_MCP_NODE", node),
    ]);
    if lane == Lane::Full {
        let playwright = workshop.cached("playwright", PLAYWRIGHT, |directory| {
            workshop.step("playwright", npm_install(directory).arg(PLAYWRIGHT))
        })?;
        let program = playwright.join("node_modules/.bin/playwright-mcp");
        let program = program.display().to_string();
        ready
            .variables
            .push(("CANTLE_TEST_MCP_PLAYWRIGHT", program));
    }
    Ok(ready)
}
