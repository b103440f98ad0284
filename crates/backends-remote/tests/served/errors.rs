//! What goes wrong says what it is and what to try, and never the key.

use cantle_backends_remote::RemoteBackend;
use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{
    Backend as _, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle,
};
use tokio::net::TcpSocket;

use crate::support::{KEY, Served};

fn context() -> SandboxContext {
    SandboxContext::new(RunId::new(), Policy::unconfined())
}

async fn refusal(backend: &RemoteBackend) -> SandboxError {
    let opened = backend.open(context()).await;
    opened.map(drop).expect_err("it opened")
}

#[tokio::test]
async fn a_key_that_is_refused_is_named_but_not_shown() {
    let served = Served::with(|builder| builder.key(&"another-key".into())).await;
    let builder = served.builder();
    let shown = format!("{builder:?}");
    let backend = builder.build().unwrap();
    let error = refusal(&backend).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert!(error.advice().unwrap().contains("E2B_API_KEY"), "{error:?}");
    for text in [
        shown,
        format!("{backend:?}"),
        format!("{error:?}"),
        error.to_string(),
    ] {
        assert!(!text.contains(KEY), "{text}");
    }
    served.stop().await;
}

#[tokio::test]
async fn a_missing_key_is_an_error_before_anything_is_sent() {
    let error = RemoteBackend::builder().build().map(drop).unwrap_err();
    assert_eq!(
        error.to_string(),
        "there is no API key for the remote sandboxes"
    );
}

#[tokio::test]
async fn a_template_that_is_not_there_is_named() {
    let served = Served::start().await;
    let backend = served
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
    served.stop().await;
}

#[tokio::test]
async fn an_address_where_nobody_listens_is_named() {
    // Ours as long as it is held, and nobody listens.
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let url = format!("http://{}", socket.local_addr().unwrap());
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        .api_url(&url)
        .build()
        .unwrap();
    let error = refusal(&backend).await;
    let expected = format!("failed to make a sandbox: failed to reach {url}: connection refused");
    assert_eq!(error.to_string(), expected);
}

#[tokio::test]
async fn what_answers_without_the_api_is_told_from_it() {
    let served = Served::start().await;
    let url = format!("{}/health", served.url);
    let backend = served.builder().api_url(url).build().unwrap();
    let error = refusal(&backend).await;
    assert!(error.advice().is_some(), "{error:?}");
    served.stop().await;
}

#[tokio::test]
async fn a_sandbox_that_never_was_is_gone() {
    let served = Served::start().await;
    let backend = served.builder().build().unwrap();
    let token = r#"{"sandbox":"inever","directory":"/home/user"}"#;
    let found = backend
        .reattach(&SandboxHandle::new("remote", token), context())
        .await;
    assert_eq!(found.map(drop).unwrap_err().kind(), SandboxErrorKind::Gone);
    served.stop().await;
}

#[tokio::test]
async fn what_nothing_enforces_is_refused_before_anything_is_made() {
    let backend = RemoteBackend::builder()
        .api_key(KEY)
        // Nobody listens there.
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
