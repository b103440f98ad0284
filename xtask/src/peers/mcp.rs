//! The MCP project's test server, server-everything, and its conformance suite; in the full lane also its clients, the
//! inspector and the Python SDK, and Playwright's server.

use anyhow::Result;

use super::python::Python;
use super::{Installer, Ready, node};
use crate::lane::Lane;

const PACKAGES: [&str; 2] = [
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/conformance@0.2.0-alpha.12",
];
/// Programs of the full lane: the package, the program and its variable.
const FULL: [(&str, &str, &str); 2] = [
    (
        "@playwright/mcp@0.0.83",
        "playwright-mcp",
        "CANTLE_TEST_MCP_PLAYWRIGHT",
    ),
    (
        "@modelcontextprotocol/inspector@2.12.0",
        "mcp-inspector",
        "CANTLE_TEST_MCP_INSPECTOR",
    ),
];
const PINS: &str = include_str!("../../peers/mcp.txt");
/// The oldest Node.js that the suite supports.
const MINIMUM: (u32, u32) = (22, 0);

/// Installs them. Tests start them.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let (modules, node) = node::install(installer, "mcp", &PACKAGES, MINIMUM)?;
    let program = |name: &str| modules.join(".bin").join(name).display().to_string();
    let mut ready = Ready::with([
        (
            "CANTLE_TEST_MCP_EVERYTHING",
            program("mcp-server-everything"),
        ),
        ("CANTLE_TEST_MCP_CONFORMANCE", program("conformance")),
        ("CANTLE_TEST_MCP_NODE", node.display().to_string()),
    ]);
    if installer.lane == Lane::Full {
        for (package, program, variable) in FULL {
            let installed = installer.npm(program, &[package])?;
            let program = installed.join("node_modules/.bin").join(program);
            let program = program.display().to_string();
            ready.variables.push((variable, program));
        }
        let sdk = Python::find((3, 10))?.environment(installer, "mcp-python", &["mcp"], PINS)?;
        let python = sdk.program("python").display().to_string();
        ready.variables.push(("CANTLE_TEST_MCP_PYTHON", python));
    }
    Ok(ready)
}
