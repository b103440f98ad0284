//! llama.cpp's own HTTP server with a random model: its wire format and its errors are the real ones.

use std::process::Command;

use anyhow::Result;

use super::python::{Python, source};
use super::server::Server;
use super::{Installer, Ready};

const KEY: &str = "sk-tiny";

pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let packages = ["xllamacpp", "gguf", "numpy"];
    let pins = include_str!("../../peers/llama.txt");
    let environment = Python::find((3, 11))?.environment(installer, "llama", &packages, pins)?;
    let (python, model) = (environment.program("python"), environment.file("tiny.gguf"));
    // Made each time: it takes 0.2 s, and is then never older than its script.
    let mut make = Command::new(&python);
    make.arg(source("llama_model.py")).arg(&model);
    installer.step("llama", &make)?;

    let mut command = Command::new(&python);
    command
        .arg(source("llama_server.py"))
        .arg(&model)
        .args(["0", KEY]);
    let readiness = ("listening on ", Some("/health"));
    let (server, address) = Server::start(installer, "llama", &mut command, readiness)?;
    let variables = [
        ("CANTLE_TEST_LLAMA_URL", format!("{address}/v1")),
        ("CANTLE_TEST_LLAMA_KEY", KEY.to_owned()),
    ];
    Ok(Ready::served(server, variables))
}
