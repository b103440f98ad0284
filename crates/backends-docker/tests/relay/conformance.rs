//! What every sandbox must do.

use std::io;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{SandboxOptions, sandbox_with};
use tokio::sync::Mutex;

use crate::support::{RelayBackend, is_root, kill_relay};

/// Kills the relay itself: the end of its stream is all that its owner sees.
async fn kill(sandbox: Arc<dyn Sandbox>) -> io::Result<()> {
    kill_relay(&sandbox.info().id).await
}

/// Some cases look at the memory of this process: one suite at a time.
static ONE_SUITE: Mutex<()> = Mutex::const_new(());

async fn conforms(backend: &RelayBackend) {
    let _alone = ONE_SUITE.lock().await;
    let options = SandboxOptions::new().killed_by(kill);
    sandbox_with(backend, options).await.assert();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_that_is_its_commands_user_conforms() {
    conforms(&RelayBackend::own_user()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_whose_commands_are_another_user_conforms() {
    if is_root() {
        conforms(&RelayBackend::other_user()).await;
    }
}
