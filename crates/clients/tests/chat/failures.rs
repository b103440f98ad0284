//! Failures of requests and answers.

use std::error::Error as _;
use std::net::Ipv4Addr;
use std::time::Duration;

use cantle_clients::chat::Timeouts;
use cantle_clients::retry::RetryPolicy;
use cantle_core::llm::{ChatEvent, Completion, LlmError, LlmErrorKind};
use cantle_testkit::openai::{Fault, Reply, ToolCall, Turn};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::proxy::call;
use crate::support::{MODES, builder, complete, failure, quick, serve, taken, told};

fn said(fault: Fault) -> Turn {
    Turn::text("Hello there").fault_always(fault)
}

#[tokio::test]
async fn a_rate_limit_is_waited_out_as_requested() {
    let busy = Reply::error(429).header("retry-after-ms", "20");
    let turn = Turn::text("Hi")
        .fault(Fault::Reply(busy.clone()))
        .fault(Fault::Reply(busy));
    for streams in MODES {
        let server = serve(turn.clone()).await;
        let client = builder(&server.url(), streams).build().unwrap();
        let (events, failed) = told(&client).await;
        assert!(failed.is_none());
        for (event, attempt) in events.iter().zip(1..=2) {
            let ChatEvent::AttemptFailed(failed) = event else {
                panic!("{event:?}");
            };
            assert_eq!(
                (failed.attempt, failed.kind),
                (attempt, LlmErrorKind::RateLimited)
            );
            assert!(failed.delay >= Duration::from_millis(20));
            let reason = "the provider's rate limit was exceeded: a scripted error with status 429 (HTTP 429)";
            assert_eq!(failed.reason, reason);
        }
        let requests = server.requests();
        assert_eq!(requests.len(), 3);
        assert!(requests[1].at - requests[0].at >= Duration::from_millis(20));
        assert_eq!(requests[0].raw, requests[2].raw);
    }
}

#[tokio::test]
async fn transient_errors_are_retried_for_a_while() {
    for fault in [
        Fault::Reply(Reply::error(500)),
        Fault::Reply(Reply::error(529)),
        Fault::Reply(Reply::error(408)),
        Fault::Reply(Reply::error(409)),
        Fault::Reply(Reply::new(200, "application/json", "")),
        Fault::Close,
    ] {
        let server = serve(said(fault)).await;
        let client = builder(&server.url(), true).retry(quick()).build().unwrap();
        let error = complete(&client).await.unwrap_err();
        assert!(error.to_string().contains("given up after"), "{error}");
        assert!(server.requests().len() > 1);
    }
}

#[tokio::test]
async fn a_connection_closed_without_a_response_is_retried() {
    for streams in MODES {
        let server = serve(Turn::text("Hi").fault(Fault::Close)).await;
        let client = builder(&server.url(), streams).build().unwrap();
        let (events, failed) = told(&client).await;
        assert!(failed.is_none());
        assert!(matches!(&events[0], ChatEvent::AttemptFailed(failed) if failed.attempt == 1));
        assert_eq!(server.requests().len(), 2);
    }
}

#[tokio::test]
async fn permanent_errors_are_not_retried() {
    for status in [400, 401, 403, 404, 422] {
        let server = serve(said(Fault::Reply(Reply::error(status)))).await;
        let client = builder(&server.url(), true).build().unwrap();
        let (events, failed) = told(&client).await;
        assert_eq!(failed.unwrap().status(), Some(status));
        assert_eq!((events.len(), server.requests().len()), (0, 1));
    }
}

#[tokio::test]
async fn a_broken_stream_is_repeated_and_its_start_is_void() {
    for fault in [
        Fault::CutAfterEvents(1),
        Fault::CutAfterEvents(2),
        Fault::EndAfterEvents(2),
        Fault::ErrorEvent {
            after: 2,
            error: json!({"message": "overloaded", "code": 503}),
        },
    ] {
        let turn = Turn::text("Hello there").call(ToolCall::new("f", "{}"));
        let server = serve(turn.fault(fault.clone())).await;
        let client = builder(&server.url(), true).retry(quick()).build().unwrap();
        let turn = complete(&client).await.unwrap().message;
        assert_eq!(
            (&*turn.text(), turn.tool_calls().count()),
            ("Hello there", 1),
            "{fault:?}"
        );
        assert_eq!(server.requests().len(), 2, "{fault:?}");
    }
}

/// The arguments of a call are complete before its stream breaks.
#[tokio::test]
async fn a_call_of_a_broken_stream_is_void() {
    let turn = Turn::text("").call(ToolCall::new("f", "{}"));
    let server = serve(turn.fault_always(Fault::CutAfterEvents(3))).await;
    let client = builder(&server.url(), true).retry(quick()).build().unwrap();
    let error = complete(&client).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Interrupted);
    assert!(server.requests().len() > 1);
}

#[tokio::test]
async fn an_incomplete_body_is_retried() {
    let server = serve(Turn::text("Hi").fault(Fault::CutAfterBytes(20))).await;
    let client = builder(&server.url(), false).build().unwrap();
    assert_eq!(complete(&client).await.unwrap().message.text(), "Hi");
    assert_eq!(server.requests().len(), 2);
}

/// The outcome of a call whose answer is cut after so many bytes of the body.
async fn cut_after(bytes: usize, streams: bool) -> Result<Completion, LlmError> {
    let turn = Turn::text("Grüße").call(ToolCall::new("f", "{}"));
    let server = serve(turn.fault(Fault::CutAfterBytes(bytes))).await;
    let client = builder(&server.url(), streams)
        .retry(RetryPolicy::never())
        .build();
    complete(&client.unwrap()).await
}

#[tokio::test]
async fn a_response_cut_at_any_byte_is_interrupted() {
    for streams in MODES {
        for bytes in (0..).step_by(7) {
            match cut_after(bytes, streams).await {
                Err(error) => assert_eq!(error.kind(), LlmErrorKind::Interrupted, "{bytes}"),
                // The stream's last event has come, and only the end of the response is missing.
                Ok(completion) => {
                    assert!(streams && bytes > 500, "{bytes}");
                    assert_eq!(completion.message.text(), "Grüße");
                    assert!(completion.usage.is_some());
                    break;
                }
            }
            assert!(bytes < 10_000, "the stream never ends");
            // The whole body has some 350 bytes. Cut behind them, its end is missing still.
            if !streams && bytes > 500 {
                break;
            }
        }
    }
}

#[tokio::test]
async fn invalid_bodies_are_protocol_errors() {
    let replies = [
        (
            "no choices",
            Reply::new(200, "application/json", r#"{"id": "x", "choices": []}"#),
        ),
        ("missing choices", Reply::new(200, "application/json", "{}")),
        ("null", Reply::new(200, "application/json", "null")),
        (
            "not JSON",
            Reply::new(200, "application/json", "It's all fine"),
        ),
        (
            "half JSON",
            Reply::new(200, "application/json", r#"{"choices": [{"mess"#),
        ),
        (
            "wrong type",
            Reply::new(200, "application/json", r#"{"choices": {"a": 1}}"#),
        ),
        (
            "web page",
            Reply::new(
                200,
                "text/html; charset=utf-8",
                "<!DOCTYPE html><title>Open WebUI</title>",
            ),
        ),
    ];
    let mut texts = Vec::new();
    for (name, reply) in replies {
        let server = serve(said(Fault::Reply(reply))).await;
        for streams in MODES {
            let error = failure(&server, streams).await;
            assert_eq!(error.kind(), LlmErrorKind::Protocol, "{name}: {error}");
            if streams {
                texts.push(format!("{name}: {error}"));
            }
        }
    }
    insta::assert_snapshot!(texts.join("\n"));
}

#[tokio::test]
async fn errors_with_a_successful_status_are_classified() {
    let body = r#"{"error": {"message": "Rate limit exceeded", "code": 429}}"#;
    let server = serve(said(Fault::Reply(Reply::new(
        200,
        "application/json",
        body,
    ))))
    .await;
    for streams in MODES {
        let error = failure(&server, streams).await;
        assert_eq!(error.kind(), LlmErrorKind::RateLimited);
    }
    let error = json!({"message": "The model crashed", "type": "InternalServerError"});
    let server = serve(said(Fault::ErrorEvent { after: 0, error })).await;
    for streams in MODES {
        let error = failure(&server, streams).await;
        assert_eq!(error.kind(), LlmErrorKind::Server);
        assert_eq!(error.to_string(), "the provider failed: The model crashed");
    }
}

#[tokio::test]
async fn a_server_that_never_answers_times_out() {
    let server = serve(said(Fault::Hang)).await;
    let mut impatient = Timeouts::default();
    impatient.first_byte = Duration::from_millis(50);
    for streams in MODES {
        let client = builder(&server.url(), streams)
            .timeouts(impatient.clone())
            .retry(RetryPolicy::never())
            .build()
            .unwrap();
        let error = complete(&client).await.unwrap_err();
        assert_eq!(error.kind(), LlmErrorKind::Timeout);
        assert_eq!(
            error.to_string(),
            format!("no response from {} within 0.05 s", server.url())
        );
    }
}

#[tokio::test]
async fn a_stalled_response_is_interrupted() {
    let server = serve(said(Fault::StallAfterEvents(2))).await;
    // Longer than the server may take from one event to the next.
    let mut impatient = Timeouts::default();
    impatient.idle = Duration::from_secs(4);
    let client = builder(&server.url(), true)
        .timeouts(impatient)
        .retry(RetryPolicy::never())
        .build()
        .unwrap();
    let (events, failed) = told(&client).await;
    assert_eq!(events, [ChatEvent::TextDelta("Hello ".to_owned())]);
    let failed = failed.unwrap();
    assert_eq!(failed.kind(), LlmErrorKind::Interrupted);
    assert_eq!(failed.to_string(), "the response stalled: no data for 4 s");
}

#[tokio::test]
async fn a_refused_connection_has_advice() {
    let taken = taken();
    let url = format!("http://{}/v1", taken.local_addr().unwrap());
    let client = builder(&url, true)
        .retry(RetryPolicy::never())
        .build()
        .unwrap();
    let error = complete(&client).await.unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::Unreachable);
    assert_eq!(
        error.to_string(),
        format!("failed to reach {url}: connection refused")
    );
    let causes = std::iter::successors(error.source(), |&cause| cause.source());
    assert!(causes.last().unwrap().to_string().contains("os error"));
    assert_eq!(
        error.advice(),
        Some("Check that the server is running, and the port in the base URL.")
    );
}

#[test]
fn an_unresolvable_host_is_named() {
    let url = "http://no-such-host.invalid/v1";
    let expected = format!(
        "failed to reach {url}: its host name cannot be resolved. Check the host name in the base URL, and the \
         network."
    );
    call(url, &expected, &[]);
}

#[tokio::test]
async fn a_server_without_http_is_a_connection_error() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let greet = async {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").await.unwrap();
        let mut sink = Vec::new();
        // Whatever is sent: the client gives up on its own.
        let _ = stream.read_to_end(&mut sink).await;
    };
    let client = builder(&url, true)
        .retry(RetryPolicy::never())
        .build()
        .unwrap();
    let (error, ()) = tokio::join!(async { complete(&client).await.unwrap_err() }, greet);
    assert_eq!(error.kind(), LlmErrorKind::Connection);
    assert!(
        error
            .to_string()
            .starts_with(&format!("the connection to {url} broke")),
        "{error}"
    );
}

/// Answers every request of every connection, and counts the connections.
#[tokio::test]
async fn connections_are_reused() {
    for streams in MODES {
        let body = if streams {
            "data: {\"choices\":[{\"delta\":{\"content\":\"Hi\"},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n"
        } else {
            "{\"choices\":[{\"message\":{\"content\":\"Hi\"}}]}"
        };
        let kind = if streams {
            "text/event-stream"
        } else {
            "application/json"
        };
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
            body.len()
        );
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let url = format!("http://{}/v1", listener.local_addr().unwrap());
        let client = builder(&url, streams)
            .retry(RetryPolicy::never())
            .build()
            .unwrap();
        let serve_one_connection = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut seen = Vec::new();
            loop {
                if stream.read_buf(&mut seen).await.unwrap() == 0 {
                    break;
                }
                // Its end, and nothing before it is the same.
                if seen.ends_with(b"}]}]}") {
                    seen.clear();
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        };
        let calls = async {
            for _ in 0..3 {
                assert_eq!(complete(&client).await.unwrap().message.text(), "Hi");
            }
        };
        // A second connection would not be accepted, and the call would not end.
        tokio::select! {
            () = calls => {}
            () = serve_one_connection => panic!("the connection was closed between calls"),
        }
    }
}
