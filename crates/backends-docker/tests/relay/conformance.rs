//! The conformance suite.

use std::io;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with};
use tokio::sync::Mutex;

use crate::support::{RelayBackend, is_root, kill_relay};

/// Kills the relay, so that its stream ends.
async fn kill(sandbox: Arc<dyn Sandbox>) -> io::Result<()> {
    kill_relay(&sandbox.info().id).await
}

/// Serializes the suites: some cases measure the memory of this process.
static ONE_SUITE: Mutex<()> = Mutex::const_new(());

async fn conforms(backend: &RelayBackend) {
    let _alone = ONE_SUITE.lock().await;
    let options = SandboxOptions::new().in_lane().killed_by(kill);
    sandbox_with(backend, options).await.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_with_the_user_of_its_commands_conforms() {
    conforms(&RelayBackend::own_user()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn relay_with_another_user_than_its_commands_conforms() {
    if is_root() {
        conforms(&RelayBackend::other_user()).await;
    }
}
