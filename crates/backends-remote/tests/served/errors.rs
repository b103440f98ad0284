//! Errors name the cause, give advice, and never contain the key.

use cantle_backends_remote::RemoteBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle,
};
use tokio::net::TcpSocket;

use crate::support::{KEY, TestServer};

fn context() -> SandboxContext {
    SandboxContext::new(RunId::new(), Policy::unconfined())
}

async fn refusal(backend: &RemoteBackend) -> SandboxError {
    let opened = backend.open(context()).await;
    opened.map(drop).expect_err("the sandbox was opened")
}

#[tokio::test]
async fn refused_key_is_reported_but_not_shown() {
    let server = TestServer::start_with(|builder| builder.key(&"another-key".into())).await;
    let builder = server.builder();
    let debug = format!("{builder:?}");
    let backend = builder.build().unwrap();
    let error = refusal(&backend).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.advice().unwrap().contains("E2B_API_KEY"), "{error:?}");
    for text in [
        debug,
        format!("{backend:?}"),
        format!("{error:?}"),
        error.to_string(),
    ] {
        assert!(!text.contains(KEY), "{text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn missing_key_is_refused_by_the_builder() {
    let error = RemoteBackend::builder().build().map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no API key is set for the remote backend"
    );
}

#[tokio::test]
async fn missing_template_is_reported() {
    let server = TestServer::start().await;
    let backend = server
        .builder()
        .template("no-such-template")
        .build()
        .unwrap();
    let error = refusal(&backend).await;
    assert!(
        error.to_string().contains("no-such-template") || error.advice().is_some(),
        "{error:?}"
    );
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    server.stop().await;
}

#[tokio::test]
async fn refused_connection_is_reported_with_its_url() {
    // Reserved while held, but not listening.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&url)
        .build()
        .unwrap();
    let error = refusal(&backend).await;
    let expected = format!("failed to create a sandbox: failed to reach {url}: connection refused");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn server_without_the_api_is_reported_with_advice() {
    let server = TestServer::start().await;
    let url = format!("{}/health", server.url);
    let backend = server.builder().api_url(url).build().unwrap();
    let error = refusal(&backend).await;
    assert!(error.advice().is_some(), "{error:?}");
    server.stop().await;
}

#[tokio::test]
async fn unknown_sandbox_is_gone() {
    let server = TestServer::start().await;
    let backend = server.builder().build().unwrap();
    let token = r#"{"sandbox":"inever","directory":"/home/user"}"#;
    let found = backend
        .reattach(&SandboxHandle::new("remote", token), context())
        .await;
    assert_eq!(found.map(drop).unwrap_err().kind(), SandboxErrorKind::Gone);
    server.stop().await;
}

#[tokio::test]
async fn unenforceable_policy_is_refused_before_a_sandbox_is_created() {
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        // Nothing listens there.
        .api_url("http://127.0.0.1:1")
        .build()
        .unwrap();
    let mut policy = Policy::workspace();
    policy.limits.disk_bytes = Some(1 << 20);
    let opened = backend
        .open(SandboxContext::new(RunId::new(), policy))
        .await;
    let error = opened.map(drop).unwrap_err();
    assert_eq!(error.unenforced(), [PolicyField::Disk]);
}
