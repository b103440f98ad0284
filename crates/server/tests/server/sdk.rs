//! Tests with E2B's official SDKs as clients.
//!
//! `cargo xtask test` installs them in the directory `CANTLE_TEST_E2B`: a Python environment
//! `python-VERSION` for each version, and `js` with the npm package.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use cantle_testkit::lane;
use tokio::process::Command;
use tokio::time::timeout;

use crate::interpreter::serve_code;
use crate::support::{TestServer, serve};

/// The version that the quick lane has.
const NEWEST: &str = "2.63.0";

/// Some SDK versions validate the format.
pub(crate) const KEY: &str = "e2b_0000000000000000000000000000000000000000";

/// Time limit of one script; a generous multiple of its duration.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(900);

pub(crate) fn peer() -> Option<PathBuf> {
    let place = std::env::var_os("CANTLE_TEST_E2B").map(PathBuf::from);
    if place.is_none() {
        lane::skip("CANTLE_TEST_E2B does not name E2B's SDKs; `cargo xtask test` installs them");
    }
    place
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/sdk")
        .join(name)
}

async fn run(server: &TestServer, mut command: Command) {
    let address = format!("http://{}", server.address);
    command
        .env("E2B_API_KEY", KEY)
        .env("E2B_API_URL", &address)
        .env("E2B_SANDBOX_URL", &address)
        .env_remove("E2B_DOMAIN")
        .env_remove("E2B_DEBUG")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let output = timeout(SCRIPT_DEADLINE, command.output());
    let output = output.await.expect("the script ends in time").unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
}

async fn python(version: &str, style: &str) {
    let Some(peer) = peer() else { return };
    if version != NEWEST && !lane::is_full() {
        lane::skip("the full lane has the older versions of the SDK");
        return;
    }
    let server = serve().await;
    let program = peer.join(format!("python-{version}/bin/python"));
    let mut command = Command::new(program);
    command.arg(script("sdk.py")).arg(style);
    run(&server, command).await;
    let directory = server.stop().await;
    assert_eq!(crate::support::sandbox_directories(&directory), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn python_2_10_0_is_served() {
    python("2.10.0", "sync").await;
    python("2.10.0", "async").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_2_45_0_is_served() {
    python("2.45.0", "sync").await;
    python("2.45.0", "async").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_2_63_0_is_served() {
    python("2.63.0", "sync").await;
    python("2.63.0", "async").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_code_interpreter_2_11_5_is_served() {
    let Some(peer) = peer() else { return };
    let server = serve_code().await;
    let program = peer.join(format!("python-{NEWEST}/bin/python"));
    let mut command = Command::new(program);
    command.arg(script("interpreter.py"));
    run(&server, command).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_code_interpreter_2_8_0_is_served() {
    let Some(peer) = peer() else { return };
    let server = serve_code().await;
    let mut command = Command::new("node");
    command.arg(script("interpreter.mjs")).env(
        "E2B_PACKAGE",
        peer.join("js/node_modules/@e2b/code-interpreter/dist/index.mjs"),
    );
    run(&server, command).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript_2_51_0_is_served() {
    let Some(peer) = peer() else { return };
    let server = serve().await;
    let mut command = Command::new("node");
    // Node resolves packages relative to the script, which is elsewhere.
    command.arg(script("sdk.mjs")).env(
        "E2B_PACKAGE",
        peer.join("js/node_modules/e2b/dist/index.mjs"),
    );
    run(&server, command).await;
    let directory = server.stop().await;
    assert_eq!(crate::support::sandbox_directories(&directory), 0);
}
