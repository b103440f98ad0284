//! LiteLLM: a proxy between many dialects, in front of aimock and of a test's own scripted server.

use std::fs;
use std::net::TcpListener;
use std::process::Command;

use anyhow::{Context, Result};

use super::python::{Environment, Python, source};
use super::server::Server;
use super::{Installer, Ready};

const KEY: &str = "sk-cantle-test";

/// Installs it. Without `prisma` a request with a wrong key is answered by an internal error.
pub fn prepare(installer: &Installer) -> Result<Environment> {
    let packages = ["litellm[proxy]", "prisma"];
    let pins = include_str!("../../peers/litellm.txt");
    Python::find((3, 11))?.environment(installer, "litellm", &packages, pins)
}

/// Starts it in front of aimock.
pub fn start(environment: &Environment, installer: &Installer, aimock: &str) -> Result<Ready> {
    let scripted = reserved_port()?;
    let mut command = Command::new(environment.program("litellm"));
    command
        .arg("--config")
        .arg(source("litellm.yaml"))
        .args(["--host", "127.0.0.1", "--port", "0", "--num_workers", "1"])
        .args(["--telemetry", "False"])
        .env("AIMOCK_BASE", aimock)
        .env("AIMOCK_OPENAI_BASE", format!("{aimock}/v1"))
        .env(
            "SCRIPTED_OPENAI_BASE",
            format!("http://127.0.0.1:{scripted}/v1"),
        )
        .env("LITELLM_MASTER_KEY", KEY)
        // Prices come with it; the newest list would come from the network.
        .env("LITELLM_LOCAL_MODEL_COST_MAP", "True")
        .env("LITELLM_MODE", "PRODUCTION")
        .env("DISABLE_ADMIN_UI", "True")
        // Compiling what it imports takes two thirds of its start: once is enough.
        .env_remove("PYTHONDONTWRITEBYTECODE");
    let readiness = ("running on ", Some("/health/liveliness"));
    let (server, address) = Server::start(installer, "litellm", &mut command, readiness)?;
    let variables = [
        ("CANTLE_TEST_LITELLM_URL", format!("{address}/v1")),
        ("CANTLE_TEST_LITELLM_KEY", KEY.to_owned()),
        ("CANTLE_TEST_SCRIPTED_PORT", scripted.to_string()),
    ];
    Ok(Ready::served(server, variables))
}

/// Returns a free port that stays free: below the range from which the kernel assigns ports to programs
/// that bind port 0, as every other test does.
fn reserved_port() -> Result<u16> {
    let range = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")?;
    let lowest = range
        .split_whitespace()
        .next()
        .and_then(|lowest| lowest.parse().ok());
    let lowest: u16 = lowest.context("failed to read the range of ephemeral ports")?;
    (1024..lowest)
        .rev()
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .context("no port below the ephemeral ones is free")
}
