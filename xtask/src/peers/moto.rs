//! moto: an S3 server. It checks no signatures.

use std::process::Command;

use anyhow::Result;

use super::python::Python;
use super::server::Server;
use super::{Installer, Ready};
use crate::shell;

const PINS: &str = include_str!("../../peers/moto.txt");
/// The bucket of the tests.
const BUCKET: &str = "cantle";

/// Installs and starts it, and creates a bucket.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let python = Python::find((3, 11))?;
    let environment = python.environment(installer, "moto", &["moto[server,s3]"], PINS)?;
    let mut command = Command::new(environment.program("moto_server"));
    command
        .args(["-H", "127.0.0.1", "-p", "0"])
        .env_remove("PYTHONDONTWRITEBYTECODE");
    let readiness = ("Running on ", Some("/moto-api/data.json"));
    let (server, address) = Server::start(installer, "moto", &mut command, readiness)?;
    let mut create = Command::new("curl");
    create.args(["--silent", "--fail", "--noproxy", "*", "-X", "PUT"]);
    shell::output(create.arg(format!("{address}/{BUCKET}")))?;
    Ok(Ready::served(server, [("CANTLE_TEST_S3_URL", address)]))
}
