//! E2B's official SDKs as clients.
//!
//! `cargo xtask test` installs them and says where in `CANTLE_TEST_E2B`: below it a Python environment
//! `python-VERSION` for each version, and `js` with the npm package.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;
use tokio::time::timeout;

use crate::support::{Serving, serve};

/// Some versions look at its form before they send it.
const KEY: &str = "e2b_0000000000000000000000000000000000000000";

/// For everything that one script does, many times what it takes.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(900);

fn peer() -> Option<PathBuf> {
    let place = std::env::var_os("CANTLE_TEST_E2B").map(PathBuf::from);
    if place.is_none() {
        // Also where output is captured.
        let line =
            "SKIPPED: CANTLE_TEST_E2B says nothing of E2B's SDKs; `cargo xtask test` has them\n";
        std::io::stderr().write_all(line.as_bytes()).unwrap();
    }
    place
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/sdk")
        .join(name)
}

async fn run(server: &Serving, mut command: Command) {
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
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

async fn python(version: &str, style: &str) {
    let Some(peer) = peer() else { return };
    let server = serve().await;
    let program = peer.join(format!("python-{version}/bin/python"));
    let mut command = Command::new(program);
    command.arg(script("sdk.py")).arg(style);
    run(&server, command).await;
    let directory = server.stop().await;
    assert_eq!(crate::support::left(&directory), 0);
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
async fn javascript_2_51_0_is_served() {
    let Some(peer) = peer() else { return };
    let server = serve().await;
    let mut command = Command::new("node");
    // Packages are looked for beside the script, which is not where they are.
    command.arg(script("sdk.mjs")).env(
        "E2B_PACKAGE",
        peer.join("js/node_modules/e2b/dist/index.mjs"),
    );
    run(&server, command).await;
    let directory = server.stop().await;
    assert_eq!(crate::support::left(&directory), 0);
}
