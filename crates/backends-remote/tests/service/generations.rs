//! Services with only one version of the API.

use std::time::Duration;

use cantle_backends_remote::ApiGeneration;
use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use tokio::time::{Instant, sleep};

use crate::proxy::{Fault, Proxy, ReceivedRequest, respond};
use crate::support::{DEADLINE, TestServer};
use crate::{context, refused, through};

fn is_api_call(request: &ReceivedRequest) -> bool {
    request.path.contains("sandboxes") && request.method == "POST"
}

/// Responds like a service without the second version.
fn without_v2(status: u16, body: &'static str) -> impl Fn(&ReceivedRequest) -> Fault + Send + Sync {
    move |request| match request.path.starts_with("/v2/") {
        true => respond(status, &[], body),
        false => Fault::None,
    }
}

#[tokio::test]
async fn falls_back_to_v1() {
    let cases = [
        (404, "404 page not found"),
        (404, r#"{"code":404,"message":"not found"}"#),
        (405, "Method Not Allowed"),
    ];
    for (status, body) in cases {
        let server = TestServer::start().await;
        let proxy = Proxy::start(&server.url, without_v2(status, body)).await;
        let backend = through(&proxy).build().unwrap();
        let sandbox = backend.open(context()).await.unwrap();
        let output = sandbox.run(SpawnRequest::shell("echo here")).await.unwrap();
        assert_eq!(output.stdout.text(), "here\n");
        sandbox.close().await.unwrap();
        // The version is remembered.
        let sandbox = backend.open(context()).await.unwrap();
        sandbox.close().await.unwrap();
        let paths: Vec<String> = proxy
            .requests(is_api_call)
            .into_iter()
            .map(|request| request.path)
            .collect();
        assert_eq!(paths, ["/v2/sandboxes", "/sandboxes", "/sandboxes"]);
        server.stop().await;
    }
}

#[tokio::test]
async fn paused_sandbox_is_resumed_by_v1() {
    let server = TestServer::start().await;
    let plan = without_v2(404, "404 page not found");
    let proxy = Proxy::start(&server.url, plan).await;
    let backend = through(&proxy)
        .pause_when_idle(Duration::from_millis(200))
        .build()
        .unwrap();
    let sandbox = backend.open(context()).await.unwrap();
    let deadline = Instant::now() + DEADLINE;
    while server.state(&sandbox.info().id).await.as_deref() != Some("paused") {
        assert!(Instant::now() < deadline, "it was not paused");
        sleep(Duration::from_millis(20)).await;
    }
    let output = sandbox
        .run(SpawnRequest::shell("echo awake"))
        .await
        .unwrap();
    assert_eq!(output.stdout.text(), "awake\n");
    let connects = proxy.requests(|request| request.path.ends_with("/connect"));
    assert!(connects.iter().all(|it| it.path.starts_with("/sandboxes/")));
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn configured_version_has_no_fallback() {
    let server = TestServer::start().await;
    let plan = without_v2(404, "404 page not found");
    let proxy = Proxy::start(&server.url, plan).await;
    let builder = through(&proxy).api_generation(ApiGeneration::V2);
    let error = refused(&builder.build().unwrap()).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert_eq!(proxy.requests(is_api_call).len(), 1);

    let builder = through(&proxy).api_generation(ApiGeneration::V1);
    let sandbox = builder.build().unwrap().open(context()).await.unwrap();
    sandbox.close().await.unwrap();
    assert_eq!(proxy.requests(is_api_call).len(), 2);
    server.stop().await;
}

#[tokio::test]
async fn error_of_v1_is_reported_after_fallback() {
    let server = TestServer::start().await;
    let plan = |request: &ReceivedRequest| match request.path.as_str() {
        "/v2/sandboxes" => respond(404, &[], "404 page not found"),
        "/sandboxes" => respond(500, &[], "Internal Server Error"),
        _ => Fault::None,
    };
    let proxy = Proxy::start(&server.url, plan).await;
    let error = refused(&through(&proxy).build().unwrap()).await;
    assert_eq!(
        error.to_string(),
        "failed to create a sandbox: the API answered 500"
    );
    server.stop().await;
}
