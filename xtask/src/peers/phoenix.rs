//! Phoenix, a collector of OpenTelemetry that knows the spans of models and tools.

use std::process::Command;

use anyhow::Result;

use super::python::Python;
use super::server::Server;
use super::{Ready, Workshop};

const PINS: &str = include_str!("../../peers/phoenix.txt");

/// Installs and starts it, in the full lane.
pub fn bring_up(workshop: &Workshop) -> Result<Ready> {
    let python = Python::find((3, 11))?;
    let environment = python.environment(workshop, "phoenix", &["arize-phoenix"], PINS)?;
    let state = tempfile::tempdir()?;
    let mut command = Command::new(environment.program("phoenix"));
    command
        .arg("serve")
        .env("PHOENIX_HOST", "127.0.0.1")
        .env("PHOENIX_PORT", "0")
        .env("PHOENIX_GRPC_PORT", "0")
        .env("PHOENIX_TELEMETRY_ENABLED", "false")
        .env("PHOENIX_WORKING_DIR", state.path());
    let signs = ("Uvicorn running on ", Some("/healthz"));
    let (server, address) = Server::start(workshop, "phoenix", &mut command, signs)?;
    let ready = Ready::served(server, [("CANTLE_TEST_PHOENIX_URL", address)]);
    Ok(ready.with_leftovers(state))
}
