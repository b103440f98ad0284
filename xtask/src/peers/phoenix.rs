//! Phoenix, a collector of OpenTelemetry that knows the spans of models and tools.

use std::process::Command;

use anyhow::Result;

use super::python::Python;
use super::server::Server;
use super::{Installer, Ready};

const PINS: &str = include_str!("../../peers/phoenix.txt");

/// Installs and starts it, in the full lane.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let python = Python::find((3, 11))?;
    let environment = python.environment(installer, "phoenix", &["arize-phoenix"], PINS)?;
    let state = tempfile::tempdir()?;
    let mut command = Command::new(environment.program("phoenix"));
    command
        .arg("serve")
        .env("PHOENIX_HOST", "127.0.0.1")
        .env("PHOENIX_PORT", "0")
        .env("PHOENIX_GRPC_PORT", "0")
        .env("PHOENIX_TELEMETRY_ENABLED", "false")
        .env("PHOENIX_WORKING_DIR", state.path());
    let readiness = ("Uvicorn running on ", Some("/healthz"));
    let (server, address) = Server::start(installer, "phoenix", &mut command, readiness)?;
    let ready = Ready::served(server, [("CANTLE_TEST_PHOENIX_URL", address)]);
    Ok(ready.with_leftovers(state))
}
