//! Where the API key must not be seen, and where it must not go.

use std::error::Error as StdError;

use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind};
use cantle_testkit::openai::{Fault, Reply, Turn};
use serde_json::json;

use crate::support::{MODES, builder, complete, quick, serve, told};

const KEY: &str = "sk-do-not-show-this-0123456789";

/// Everything that an error can show, its sources included.
fn shown(error: &LlmError) -> String {
    let mut text = format!("{error} {error:?} {:?}", error.advice());
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(" {cause} {cause:?}"));
        source = cause.source();
    }
    text
}

#[tokio::test]
async fn an_echoed_key_is_redacted() {
    let echo = json!({"error": {"message": format!("Incorrect API key: {KEY}")}}).to_string();
    let event = json!({"message": format!("Bearer {KEY}"), "code": 500});
    let faults = [
        Fault::Reply(Reply::new(401, "application/json", echo.clone())),
        Fault::Reply(Reply::new(500, "text/plain", format!("failed: {KEY}"))),
        Fault::Reply(Reply::new(200, "application/json", echo)),
        Fault::Reply(Reply::new(
            200,
            "application/json",
            format!("{{\"{KEY}\": "),
        )),
        Fault::Reply(Reply::new(
            200,
            "application/json",
            format!("{{\"choices\": \"{KEY}\"}}"),
        )),
        Fault::Reply(Reply::new(
            200,
            "text/html",
            format!("<title>{KEY}</title>"),
        )),
        Fault::Reply(Reply::new(
            200,
            "text/event-stream",
            format!("data: {KEY}\n\n"),
        )),
        Fault::Reply(Reply::new(
            200,
            "text/event-stream",
            format!("data: {{\"choices\": \"{KEY}\"}}\n\n"),
        )),
        Fault::Reply(
            Reply::new(302, "text/plain", "").header("location", &format!("http://x/{KEY}")),
        ),
        Fault::ErrorEvent {
            after: 0,
            error: event,
        },
        Fault::Close,
        Fault::CutAfterBytes(5),
    ];
    for fault in faults {
        let server = serve(Turn::text("Hi").fault_always(fault.clone())).await;
        for streams in MODES {
            let client = builder(&server.url(), streams)
                .api_key(KEY)
                .retry(quick())
                .build()
                .unwrap();
            assert!(!format!("{client:?}").contains(KEY));
            let (events, failed) = told(&client).await;
            let failed = failed.unwrap();
            assert!(
                !shown(&failed).contains(KEY),
                "{fault:?}: {}",
                shown(&failed)
            );
            assert!(
                !format!("{events:?}").contains(KEY),
                "{fault:?}: {events:?}"
            );
        }
    }
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let elsewhere = serve(Turn::text("stolen")).await;
    for status in [301, 302, 307, 308] {
        let away = Reply::new(status, "text/plain", "moved")
            .header("location", &format!("{}/chat/completions", elsewhere.url()));
        let server = serve(Turn::text("").fault_always(Fault::Reply(away))).await;
        let client = builder(&server.url(), true).api_key(KEY).build().unwrap();
        let error = complete(&client).await.unwrap_err();
        assert_eq!(
            (error.kind(), error.status()),
            (LlmErrorKind::NotFound, Some(status))
        );
        assert!(error.to_string().contains(&elsewhere.url()), "{error}");
        assert_eq!(server.requests().len(), 1);
    }
    assert_eq!(elsewhere.requests().len(), 0);
}

#[tokio::test]
async fn retry_events_do_not_contain_the_key() {
    let echo =
        Reply::new(503, "text/plain", format!("no room for {KEY}")).header("retry-after-ms", "1");
    let server = serve(Turn::text("Hi").fault(Fault::Reply(echo))).await;
    let client = builder(&server.url(), true).api_key(KEY).build().unwrap();
    let (events, _) = told(&client).await;
    let ChatEvent::AttemptFailed(failed) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!(
        failed.reason,
        "the provider failed: no room for [hidden] (HTTP 503)"
    );
}
