//! server-everything: the MCP project's own test server, over stdin and stdout.

use anyhow::{Result, bail};

use super::workshop::npm_install;
use super::{Ready, Workshop};
use crate::shell;

const PACKAGE: &str = "@modelcontextprotocol/server-everything@2026.8.31";

/// Installs it. Tests start it in sandboxes.
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    for program in ["node", "npm"] {
        if shell::probe(program, &["--version"]).is_none() {
            bail!("there is no {program}");
        }
    }
    let directory = workshop.cached("everything", PACKAGE, |directory| {
        let mut npm = npm_install(directory);
        workshop.step("everything", npm.arg(PACKAGE))
    })?;
    let program = directory.join("node_modules/.bin/mcp-server-everything");
    Ok(Ready::with([(
        "CANTLE_TEST_MCP_EVERYTHING",
        program.display().to_string(),
    )]))
}
