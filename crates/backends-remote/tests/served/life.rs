//! How long a sandbox is there.

use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Backend as _, SandboxContext, SandboxErrorKind, SandboxExt as _, SandboxPath, SpawnRequest,
};
use tokio::time::{Instant, sleep};

use crate::support::{DEADLINE, Served};

#[tokio::test]
async fn an_idle_sandbox_is_paused_and_woken_by_the_next_use() {
    let served = Served::start().await;
    let backend = served
        .builder()
        .pause_when_idle(Duration::from_millis(200))
        .build()
        .unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    let file: SandboxPath = "file".parse().unwrap();
    sandbox.write_bytes(&file, "text".into()).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    while served.state(&sandbox.info().id).await.as_deref() != Some("paused") {
        assert!(Instant::now() < deadline, "it was not paused");
        sleep(Duration::from_millis(20)).await;
    }
    let output = sandbox.run(SpawnRequest::shell("cat file")).await.unwrap();
    assert_eq!(output.stdout.text(), "text");
    sandbox.close().await.unwrap();
    served.stop().await;
}

#[tokio::test]
async fn a_server_that_stops_ends_its_sandboxes_commands_within_seconds() {
    let served = Served::start().await;
    let backend = served.builder().build().unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    let mut process = sandbox
        .spawn(SpawnRequest::shell("sleep 1000"))
        .await
        .unwrap();
    served.stop().await;
    let ended = tokio::time::timeout(DEADLINE, process.wait()).await;
    let error = ended.expect("it is noticed").unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
}
