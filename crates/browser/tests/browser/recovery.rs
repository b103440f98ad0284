//! Browsers that end.

use std::time::Duration;

use cantle_core::sandbox::{SandboxExt as _, SpawnRequest};
use cantle_core::tool::ToolContext;
use serde_json::json;

use super::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_browser_costs_one_call() {
    let Some(fixture) = Fixture::open(|tools| tools).await else {
        return;
    };
    fixture.navigate("/").await;
    let kill = SpawnRequest::shell("pkill -KILL chromium");
    fixture.sandbox.run(kill).await.unwrap();
    let error = fixture
        .try_call("_snapshot", json!({}))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("The browser failed: its process ended"),
        "{error}"
    );
    assert!(fixture.navigate("/second").await.contains("Second page"));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_browser_is_explained() {
    let missing = |tools: cantle_browser::BrowserTools| tools.executable_path("/nowhere/chromium");
    let Some(fixture) = Fixture::open(missing).await else {
        return;
    };
    let refused = fixture.refused("_get_url", json!({})).await;
    assert!(
        refused.contains("There is no Chromium in the sandbox."),
        "{refused}"
    );
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_call_leaves_a_working_browser() {
    let Some(fixture) = Fixture::open(|tools| tools).await else {
        return;
    };
    fixture.navigate("/").await;
    let mut tools = fixture.set.tools().into_iter();
    let wait = tools.find(|tool| tool.name() == "browser_wait").unwrap();
    let cx = ToolContext::new(fixture.run, "call");
    let token = cx.cancellation.clone();
    let call = tokio::spawn(async move { wait.call(json!({"seconds": 30}), cx).await });
    token.cancel();
    let ended = tokio::time::timeout(Duration::from_secs(20), call).await;
    let error = ended.expect("the call ends").unwrap().unwrap_err();
    assert_eq!(error.to_string(), "The call was cancelled.");
    assert!(fixture.navigate("/second").await.contains("Second page"));
    fixture.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_browser_ends_with_its_tools_and_leaves_no_profile() {
    let Some(fixture) = Fixture::open(|tools| tools).await else {
        return;
    };
    fixture.navigate("/").await;
    let Fixture {
        set,
        sandbox,
        _server,
        ..
    } = fixture;
    let look = "pgrep -c chromium; ls /tmp | grep -c cantle-browser";
    let before = sandbox.run(SpawnRequest::shell(look)).await.unwrap();
    assert!(!before.stdout.text().starts_with('0'), "{before:?}");
    set.close().await.unwrap();
    let after = sandbox.run(SpawnRequest::shell(look)).await.unwrap();
    assert_eq!(after.stdout.text(), "0\n0\n");
    drop(_server);
    sandbox.close().await.unwrap();
}
