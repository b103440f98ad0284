//! Azurite: Microsoft's emulator of Azure Blob Storage. It checks signatures.

use std::process::Command;

use anyhow::{Context, Result};

use super::python::source;
use super::server::Server;
use super::{Installer, Ready};

const PACKAGE: &str = "azurite@3.37.0";
/// The container of the tests.
const CONTAINER: &str = "cantle";
/// The key of the emulator's account, which Microsoft has published.
const KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Installs and starts it, and creates a container.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let directory = installer.npm("azurite", &[PACKAGE])?;
    let mut command = Command::new("node");
    command
        .arg(directory.join("node_modules/azurite/dist/src/blob/main.js"))
        .args(["--blobHost", "127.0.0.1", "--blobPort", "0"])
        .args(["--inMemoryPersistence", "--skipApiVersionCheck"])
        .current_dir(&directory);
    let readiness = ("successfully listens on ", None);
    let (server, address) = Server::start(installer, "azurite", &mut command, readiness)?;
    let mut create = Command::new("node");
    create.arg(source("azurite.js"));
    create.args([&address, CONTAINER, KEY]);
    installer
        .step("azurite-container", &create)
        .context("the container can't be created")?;
    Ok(Ready::served(
        server,
        [
            (
                "CANTLE_TEST_AZURE_URL",
                format!("{address}/devstoreaccount1"),
            ),
            ("CANTLE_TEST_AZURE_KEY", KEY.to_owned()),
        ],
    ))
}
