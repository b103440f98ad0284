//! Lifetime of a sandbox when the service fails.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use hyper::StatusCode;
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::proxy::{Fault, Proxy, ReceivedRequest, call_api, respond};
use crate::support::{DEADLINE, TestServer};
use crate::{context, open_through, through};

fn extends_lifetime(request: &ReceivedRequest) -> bool {
    request.path.ends_with("/timeout")
}

#[tokio::test]
async fn failed_extension_is_retried_before_the_lifetime_ends() {
    let server = TestServer::start().await;
    let number = AtomicUsize::new(0);
    let plan = move |request: &ReceivedRequest| match extends_lifetime(request) {
        true if number.fetch_add(1, Ordering::Relaxed) < 3 => respond(500, &[], ""),
        _ => Fault::None,
    };
    let proxy = Proxy::start(&server.url, plan).await;
    // The minimum lifetime applies.
    let builder = through(&proxy).lifetime(Duration::ZERO);
    let sandbox = builder.build().unwrap().open(context()).await.unwrap();
    let path = format!("/sandboxes/{}", sandbox.info().id);
    let end = async || {
        let (status, detail) = call_api(&server.url, "GET", &path, Value::Null).await;
        assert_eq!(status, StatusCode::OK);
        // Timestamps of one format compare as strings.
        detail["endAt"].as_str().unwrap().to_owned()
    };
    let before = end().await;
    proxy
        .wait_for(1, |it| extends_lifetime(it) && it.is_answered)
        .await;
    assert_eq!(proxy.requests(extends_lifetime).len(), 4);
    assert!(end().await > before);
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn sandbox_is_gone_after_its_lifetime() {
    let server = TestServer::start().await;
    let (_proxy, sandbox) = open_through(&server, |_| Fault::None).await;
    let request = SpawnRequest::shell("sleep 1000");
    let mut process = sandbox.spawn(request).await.unwrap();
    let path = format!("/sandboxes/{}/timeout", sandbox.info().id);
    let (status, _) = call_api(&server.url, "POST", &path, json!({ "timeout": 1 })).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let ended = timeout(DEADLINE, process.wait())
        .await
        .expect("the end was not detected");
    assert_eq!(ended.unwrap_err().kind(), SandboxErrorKind::Gone);
    let error = sandbox
        .read_bytes(&"file".parse().unwrap(), 1)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), SandboxErrorKind::Gone);
    // Closing a sandbox that is gone succeeds.
    sandbox.close().await.unwrap();
    server.stop().await;
}
