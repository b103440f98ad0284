//! Creation of sandboxes when the service is busy or failing, or responses are lost.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use cantle_core::policy::{Network, PolicyField};
use cantle_core::sandbox::{Backend as _, SandboxErrorKind, SandboxExt as _, SpawnRequest};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::proxy::{Fault, Proxy, ReceivedRequest, call_api, respond};
use crate::support::TestServer;
use crate::{context, open_through, refused, through};

/// Injects faults into creation requests, by their number.
fn on_creation(
    fault: impl Fn(usize) -> Fault + Send + Sync + 'static,
) -> impl Fn(&ReceivedRequest) -> Fault + Send + Sync + 'static {
    let number = AtomicUsize::new(0);
    move |request| match request.is_creation() {
        true => fault(number.fetch_add(1, Ordering::Relaxed)),
        false => Fault::None,
    }
}

const BUSY: &str = r#"{"code":429,"message":"too many requests"}"#;

/// Returns the number of sandboxes on the server.
async fn count_sandboxes(server: &TestServer) -> usize {
    let (_, all) = call_api(&server.url, "GET", "/sandboxes", Value::Null).await;
    all.as_array().unwrap().len()
}

#[tokio::test]
async fn retry_after_delays_all_clones_of_a_backend() {
    let server = TestServer::start().await;
    // The pause is in the last attempt's response, so that it is in effect when the call has failed.
    let plan = on_creation(|number| match number {
        0..4 => respond(429, &[("retry-after", "0")], BUSY),
        4 => respond(429, &[("retry-after", "2")], BUSY),
        _ => Fault::None,
    });
    let proxy = Proxy::start(&server.url, plan).await;
    let backend = through(&proxy).build().unwrap();
    let error = refused(&backend).await;
    assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
    assert_eq!(
        error.to_string(),
        "failed to create a sandbox: the API answered 429: too many requests"
    );
    // Clones share the gate.
    let others = backend.clone();
    let (one, two, three) = tokio::join!(
        backend.open(context()),
        others.open(context()),
        others.open(context())
    );
    for opened in [one, two, three] {
        opened.unwrap().close().await.unwrap();
    }
    let tries = proxy.requests(ReceivedRequest::is_creation);
    assert_eq!(tries.len(), 8);
    for later in &tries[5..] {
        assert!(later.at - tries[4].at >= Duration::from_secs(2));
    }
    server.stop().await;
}

#[tokio::test]
async fn call_timeout_bounds_a_call() {
    let server = TestServer::start().await;
    let never = CancellationToken::new();
    let proxy = Proxy::start(&server.url, move |_| Fault::DelayUntil(never.clone())).await;
    let backend = through(&proxy).call_timeout(Duration::from_millis(50));
    let error = refused(&backend.build().unwrap()).await;
    assert!(error.to_string().contains("0.05 s"), "{error}");
    server.stop().await;
}

#[tokio::test]
async fn call_timeout_may_be_beyond_the_clock() {
    let server = TestServer::start().await;
    let proxy = Proxy::start(&server.url, |_| Fault::None).await;
    let backend = through(&proxy).call_timeout(Duration::MAX).build().unwrap();
    let sandbox = backend.open(context()).await.unwrap();
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn retry_after_date_is_respected() {
    let server = TestServer::start().await;
    let plan = on_creation(|number| match number {
        0 => {
            // Dates are rounded to seconds: at least two of three remain.
            let date = SystemTime::now() + Duration::from_secs(3);
            let date = httpdate::fmt_http_date(date);
            respond(429, &[("retry-after", &date)], BUSY)
        }
        _ => Fault::None,
    });
    let (proxy, sandbox) = open_through(&server, plan).await;
    sandbox.close().await.unwrap();
    let tries = proxy.requests(ReceivedRequest::is_creation);
    assert_eq!(tries.len(), 2);
    assert!(tries[1].at - tries[0].at >= Duration::from_millis(1900));
    server.stop().await;
}

#[tokio::test]
async fn permanent_refusal_is_not_retried() {
    let server = TestServer::start().await;
    let plan = on_creation(|_| {
        let body = r#"{"code":503,"message":"no room here"}"#;
        respond(503, &[("should-retry", "false")], body)
    });
    let proxy = Proxy::start(&server.url, plan).await;
    let error = refused(&through(&proxy).build().unwrap()).await;
    assert_eq!(
        error.to_string(),
        "failed to create a sandbox: the API answered 503: no room here"
    );
    assert_eq!(proxy.requests(ReceivedRequest::is_creation).len(), 1);
    server.stop().await;
}

#[tokio::test]
async fn excessive_retry_after_fails_immediately() {
    // The second value overflows `Instant`.
    for seconds in ["86400", "10000000000000000000"] {
        let server = TestServer::start().await;
        let plan = on_creation(move |_| respond(429, &[("retry-after", seconds)], BUSY));
        let proxy = Proxy::start(&server.url, plan).await;
        let backend = through(&proxy).build().unwrap();
        let error = refused(&backend).await;
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable);
        assert_eq!(proxy.requests(ReceivedRequest::is_creation).len(), 1);
        if seconds == "86400" {
            // The next call sends no request.
            let error = refused(&backend).await;
            let expected = "failed to create a sandbox: the service asks to wait for another 863";
            assert!(error.to_string().starts_with(expected), "{error}");
            assert!(error.advice().is_some());
            assert_eq!(proxy.requests(ReceivedRequest::is_creation).len(), 1);
        }
        server.stop().await;
    }
}

#[tokio::test]
async fn lost_response_does_not_create_a_second_sandbox() {
    let fates: [fn() -> Fault; 2] = [|| Fault::DropResponse, || Fault::TruncateResponse];
    for fault in fates {
        let server = TestServer::start().await;
        let plan = on_creation(move |number| match number {
            0 => fault(),
            _ => Fault::None,
        });
        let (proxy, sandbox) = open_through(&server, plan).await;
        assert_eq!(count_sandboxes(&server).await, 1);
        let tries = proxy.requests(ReceivedRequest::is_creation);
        let keys: Vec<&str> = tries
            .iter()
            .map(|it| it.header("idempotency-key"))
            .collect();
        assert_eq!(keys.len(), 2);
        assert!(!keys[0].is_empty() && keys[0] == keys[1], "{keys:?}");
        sandbox.close().await.unwrap();
        assert_eq!(count_sandboxes(&server).await, 0);
        server.stop().await;
    }
}

#[tokio::test]
async fn kill_is_retried_after_a_lost_response() {
    let server = TestServer::start().await;
    let number = AtomicUsize::new(0);
    let plan = move |request: &ReceivedRequest| match request.method.as_str() {
        "DELETE" if number.fetch_add(1, Ordering::Relaxed) == 0 => {
            respond(503, &[("retry-after", "0")], "")
        }
        "DELETE" if number.load(Ordering::Relaxed) == 2 => Fault::DropResponse,
        _ => Fault::None,
    };
    let (proxy, sandbox) = open_through(&server, plan).await;
    sandbox.close().await.unwrap();
    assert_eq!(count_sandboxes(&server).await, 0);
    assert_eq!(
        proxy.requests(|request| request.method == "DELETE").len(),
        3
    );
    server.stop().await;
}

#[tokio::test]
async fn creation_in_progress_is_awaited() {
    let server = TestServer::start().await;
    let plan = on_creation(|number| match number {
        0 => {
            let body = r#"{"code":409,"message":"not yet","error_code":"idempotency_in_progress"}"#;
            respond(409, &[], body)
        }
        _ => Fault::None,
    });
    let (_proxy, sandbox) = open_through(&server, plan).await;
    let output = sandbox
        .run(SpawnRequest::shell("echo created"))
        .await
        .unwrap();
    assert_eq!(output.stdout.text(), "created\n");
    sandbox.close().await.unwrap();
    server.stop().await;
}

#[tokio::test]
async fn unsupported_network_policy_is_distinguished_from_other_errors() {
    let server = TestServer::start().await;
    let cases = [
        ("", true),
        ("unknown field allow_internet_access", true),
        ("network.denyOut: not supported", true),
        ("the timeout can't be greater than 3600 seconds", false),
    ];
    for (message, concerns_network) in cases {
        let plan = on_creation(move |_| {
            let body = serde_json::json!({ "code": 400, "message": message }).to_string();
            respond(400, &[], &body)
        });
        let proxy = Proxy::start(&server.url, plan).await;
        let backend = through(&proxy).build().unwrap();
        let mut cx = context();
        cx.policy.network = Some(Network::Off);
        let error = backend.open(cx).await.map(drop).unwrap_err();
        if concerns_network {
            assert_eq!(error.unenforced(), [PolicyField::Network], "{message}");
        } else {
            assert_eq!(error.kind(), SandboxErrorKind::InvalidInput);
            assert!(error.to_string().contains(message), "{error}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn invalid_responses_are_reported() {
    let server = TestServer::start().await;
    let not_e2b = "does not implement E2B's API";
    let invalid_id =
        r#"{"sandboxID":"../../x","clientID":"c","templateID":"base","envdVersion":"0.6.13"}"#;
    let cases = [
        (201, r#"{"sandboxID":"#, not_e2b),
        (201, "", not_e2b),
        (200, "<html>Welcome</html>", not_e2b),
        (201, r#"{"templateID":"base"}"#, not_e2b),
        // The id would become part of URLs.
        (201, invalid_id, not_e2b),
        (500, "", "the API answered 500"),
        (500, "Internal Server Error", "the API answered 500"),
        (
            500,
            r#"{"code":500,"message":"out of machines"}"#,
            "500: out of machines",
        ),
        (302, "", "the API answered 302"),
    ];
    for (status, body, expected) in cases {
        let plan = on_creation(move |_| respond(status, &[], body));
        let proxy = Proxy::start(&server.url, plan).await;
        let error = refused(&through(&proxy).build().unwrap()).await;
        assert_eq!(error.kind(), SandboxErrorKind::Unavailable, "{error:?}");
        let text = error.to_string();
        assert!(text.contains(expected), "{status} {body}: {text}");
        assert!(status == 302 || error.advice().is_some(), "{error:?}");
        assert_eq!(
            proxy.requests(ReceivedRequest::is_creation).len(),
            1,
            "{status} {body}"
        );
    }
    assert_eq!(count_sandboxes(&server).await, 0);
    server.stop().await;
}
