//! Lifetime of a sandbox.

use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::{Network, Policy, PolicyField, Strictness};
use cantle_core::sandbox::{
    Backend as _, EnforcedBy, Enforcement, SandboxContext, SandboxErrorKind, SandboxExt as _,
    SandboxHandle, SandboxPath, SpawnRequest,
};
use tokio::time::{Instant, sleep};

use crate::support::{DEADLINE, TestServer};

#[tokio::test]
async fn idle_sandbox_is_paused_and_resumed_by_the_next_use() {
    let server = TestServer::start().await;
    let backend = server
        .builder()
        .pause_when_idle(Duration::from_millis(200))
        .build()
        .unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    let file: SandboxPath = "file".parse().unwrap();
    sandbox.write_bytes(&file, "text".into()).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    while server.state(&sandbox.info().id).await.as_deref() != Some("paused") {
        assert!(Instant::now() < deadline, "it was not paused");
        sleep(Duration::from_millis(20)).await;
    }
    let output = sandbox.run(SpawnRequest::shell("cat file")).await.unwrap();
    assert_eq!(output.stdout.text(), "text");
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn stopped_server_ends_commands_of_its_sandboxes() {
    let server = TestServer::start().await;
    let backend = server.builder().build().unwrap();
    let cx = SandboxContext::new(RunId::new(), Policy::unconfined());
    let sandbox = backend.open(cx).await.unwrap();
    let mut process = sandbox
        .spawn(SpawnRequest::shell("sleep 1000"))
        .await
        .unwrap();
    server.stop().await;
    let ended = tokio::time::timeout(DEADLINE, process.wait()).await;
    let error = ended.expect("the end was not detected").unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
}

#[tokio::test]
async fn network_policy_that_was_not_applied_is_not_reported_as_enforced() {
    let server = TestServer::start().await;
    let backend = server.builder().build().unwrap();
    let context = |network, strictness| {
        let mut policy = Policy::unconfined();
        policy.network = network;
        policy.strictness = strictness;
        SandboxContext::new(RunId::new(), policy).durable()
    };
    let sandbox = backend
        .open(context(None, Strictness::Strict))
        .await
        .unwrap();
    let handle = sandbox.persist().await.unwrap();
    // As an older version wrote it.
    let directory = &sandbox.info().working_directory;
    let token = format!(
        r#"{{"sandbox":"{}","directory":"{directory}"}}"#,
        sandbox.info().id
    );
    let old = SandboxHandle::new("remote", token);
    for handle in [&handle, &old] {
        let strict = context(Some(Network::Off), Strictness::Strict);
        let error = backend.reattach(handle, strict).await.map(drop);
        assert_eq!(error.unwrap_err().unenforced(), [PolicyField::Network]);
        let best_effort = context(Some(Network::Off), Strictness::BestEffort);
        let again = backend.reattach(handle, best_effort).await.unwrap();
        let expected = Enforcement::new(PolicyField::Network, EnforcedBy::NotEnforced);
        let report = &again.info().enforcement;
        assert!(report.contains(&expected), "{report:?}");
        let unrestricted = context(None, Strictness::Strict);
        backend.reattach(handle, unrestricted).await.unwrap();
    }
    sandbox.close().await.unwrap();
    server.stop().await;
}
