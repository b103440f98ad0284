//! s3s-fs: an S3 server over a directory. Unlike moto, it checks signatures.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use anyhow::Result;

use super::server::Server;
use super::{Installer, Ready};

/// The newest version that the Rust compiler of the workspace builds.
const VERSION: &str = "0.14.1";
/// The bucket of the tests, and the key that they sign with.
const BUCKET: &str = "cantle";
const KEY: &str = "cantle";
const SECRET: &str = "cantle-secret";

/// Builds and starts it in the full lane, with a bucket.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let directory = installer.cargo_install("s3s", "s3s-fs", VERSION, &["--features", "binary"])?;
    let objects = tempfile::tempdir()?;
    fs::create_dir(objects.path().join(BUCKET))?;
    // It does not print the port that it was given for port 0.
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = Command::new(directory.join("bin/s3s-fs"));
    command
        .args(["--host", "127.0.0.1", "--port", &port.to_string()])
        .args(["--access-key", KEY, "--secret-key", SECRET])
        .arg(objects.path());
    let server = Server::start_when(installer, "s3s", &command, || {
        TcpStream::connect(("127.0.0.1", port)).is_ok()
    })?;
    Ok(Ready::served(
        server,
        [("CANTLE_TEST_S3S_URL", format!("http://127.0.0.1:{port}"))],
    )
    .with_leftovers(objects))
}
