//! aimock: an independent mock model server that plays the turns in `crates/cli/tests/peers/aimock`.

use std::process::Command;

use anyhow::Result;

use super::server::Server;
use super::{Installer, Ready, node};
use crate::workspace;

// Its optional companions are not needed, and resolving them takes over ten minutes without a network.
const PACKAGES: [&str; 2] = ["--legacy-peer-deps", "@copilotkit/aimock@1.43.0"];
/// The oldest Node.js that it supports.
const MINIMUM: (u32, u32) = (20, 15);

/// Starts it; also returns its address, `http://127.0.0.1:PORT`.
pub fn bring_up(installer: &Installer) -> Result<(Ready, String)> {
    let (modules, node) = node::install(installer, "aimock", &PACKAGES, MINIMUM)?;
    let mut command = Command::new(node);
    command
        .arg(modules.join(".bin/llmock"))
        .args(["--host", "127.0.0.1", "--port", "0"])
        .args(["--strict", "--fixtures"])
        .arg(workspace::root().join("crates/cli/tests/peers/aimock"))
        // A turn out of order is an error, not the nearest answer.
        .env("AIMOCK_STRICT_TURN_INDEX", "1");
    let readiness = ("listening on ", Some("/health"));
    let (server, address) = Server::start(installer, "aimock", &mut command, readiness)?;
    let ready = Ready::served(
        server,
        [("CANTLE_TEST_AIMOCK_URL", format!("{address}/v1"))],
    );
    Ok((ready, address))
}
