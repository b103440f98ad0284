//! Faults per attempt.

use std::time::{Duration, Instant};

use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, Turn, Usage};
use http_body_util::{BodyExt, Full};
use serde_json::json;
use tokio::time::timeout;

use crate::client::{DEADLINE, ask, connect, conversation, send, streaming};

#[tokio::test]
async fn each_run_has_attempts_of_its_own() {
    let turn = Turn::text("done").fault(Fault::Reply(Reply::error(503)));
    let server = ScriptedServer::start(Script::new().turn(turn).repeat_last())
        .await
        .unwrap();
    let mut other = conversation(0);
    other["messages"][1]["content"] = json!("another task");
    let mut later = conversation(1);
    later["messages"]
        .as_array_mut()
        .unwrap()
        .push(json!({"role": "user", "content": "hurry"}));

    let mut statuses = Vec::new();
    for request in [
        &conversation(0),
        &other,
        &conversation(0),
        &other,
        &conversation(1),
        &later,
    ] {
        statuses.push(ask(&server, request).await.status);
    }

    assert_eq!(statuses, [503, 503, 200, 200, 503, 200]);
}

#[tokio::test]
async fn replies_are_sent_as_scripted_attempt_by_attempt() {
    let busy = Reply::error(429)
        .header("retry-after", "2")
        .header("retry-after-ms", "1500");
    let turn = Turn::text("at last")
        .fault(Fault::Reply(busy))
        .fault(Fault::Reply(Reply::new(
            502,
            "text/html",
            "<h1>Bad gateway</h1>",
        )))
        .fault(Fault::Reply(Reply::new(
            200,
            "application/json",
            "{\"object\":",
        )))
        .fault_always(Fault::Reply(Reply::new(200, "application/json", "{}")));
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();

    let mut got = Vec::new();
    for _ in 0..5 {
        got.push(ask(&server, &streaming(conversation(0))).await);
    }

    assert_eq!(
        (
            got[0].header("retry-after"),
            got[0].header("retry-after-ms")
        ),
        ("2", "1500")
    );
    let seen: Vec<_> = got
        .iter()
        .map(|got| (got.status, got.header("content-type"), &*got.text))
        .collect();
    let error = json!({"error": {
        "message": "a scripted error with status 429",
        "type": "rate_limit_error", "param": null, "code": null,
    }});
    assert_eq!(
        seen,
        [
            (429, "application/json", &*error.to_string()),
            (502, "text/html", "<h1>Bad gateway</h1>"),
            (200, "application/json", "{\"object\":"),
            (200, "application/json", "{}"),
            (200, "application/json", "{}"),
        ]
    );
}

#[tokio::test]
async fn a_reply_that_is_not_http_says_so() {
    let reply = Reply::error(429).header("retry after", "2");
    let turn = Turn::text("").fault(Fault::Reply(reply));
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();

    let got = ask(&server, &conversation(0)).await;

    assert_eq!(
        (got.status, &*got.text),
        (500, "Invalid scripted reply: invalid HTTP header name.")
    );
}

#[tokio::test]
async fn a_connection_closes_without_an_answer() {
    let turn = Turn::text("a").fault(Fault::Close);
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let body = conversation(0).to_string();

    let closed = send(&server.url(), "POST", "/v1/chat/completions", &[], &body).await;

    assert!(closed.unwrap_err().is_incomplete_message());
    assert_eq!(ask(&server, &conversation(0)).await.status, 200);
    assert_eq!(server.requests().len(), 2);
}

#[tokio::test]
async fn streams_break_where_scripted() {
    let error = json!({"message": "out of memory", "code": 500});
    let turn = Turn::text("a b c")
        .fault(Fault::CutAfterEvents(0))
        .fault(Fault::CutAfterEvents(3))
        .fault(Fault::EndAfterEvents(3))
        .fault(Fault::ErrorEvent {
            after: 2,
            error: error.clone(),
        })
        .fault(Fault::CutAfterBytes(250));
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let request = streaming(conversation(0));

    let mut got = Vec::new();
    for _ in 0..6 {
        got.push(ask(&server, &request).await);
    }

    let whole = got.pop().unwrap();
    // The answers differ only in the attempt in their id.
    let expected = |attempt: usize, events: usize| {
        let text: String = whole.text.split_inclusive("\n\n").take(events).collect();
        text.replace("chatcmpl-0-5", &format!("chatcmpl-0-{attempt}"))
    };
    let broken = json!({"error": error});
    assert_eq!(
        got.iter()
            .map(|got| (got.complete, got.text.clone()))
            .collect::<Vec<_>>(),
        [
            (false, String::new()),
            (false, expected(1, 3)),
            (true, expected(2, 3)),
            (
                true,
                format!("{}data: {broken}\n\ndata: [DONE]\n\n", expected(3, 2))
            ),
            (false, expected(4, 9).chars().take(250).collect()),
        ]
    );
    assert!(whole.complete);
}

#[tokio::test]
async fn whole_answers_break_where_scripted() {
    let turn = Turn::text("a b c")
        .fault(Fault::CutAfterEvents(0))
        .fault(Fault::CutAfterBytes(20))
        .fault(Fault::EndAfterEvents(0))
        .fault(Fault::ErrorEvent {
            after: 2,
            error: json!({"code": 500}),
        });
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();

    let mut got = Vec::new();
    for _ in 0..4 {
        let answer = ask(&server, &conversation(0)).await;
        got.push((answer.status, answer.complete, answer.text));
    }

    assert_eq!(
        got,
        [
            (200, false, String::new()),
            (200, false, "{\"choices\":[{\"finish".to_owned()),
            (200, true, String::new()),
            (200, true, "{\"error\":{\"code\":500}}".to_owned()),
        ]
    );
}

#[tokio::test]
async fn slow_bytes_come_in_small_pieces_with_pauses() {
    let every = Duration::from_millis(2);
    let turn = Turn::text("süß").fault(Fault::Slow { bytes: 7, every });
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let request = streaming(conversation(0));

    let began = Instant::now();
    let slow = ask(&server, &request).await;
    let took = began.elapsed();
    let quick = ask(&server, &request).await;

    assert_eq!(
        slow.text,
        quick.text.replace("chatcmpl-0-1", "chatcmpl-0-0")
    );
    assert!(
        slow.pieces.iter().all(|&size| size <= 7),
        "{:?}",
        slow.pieces
    );
    let pauses = u32::try_from(slow.text.len() / 7).unwrap();
    assert!(took >= every * pauses, "{took:?}");
}

#[tokio::test]
async fn latency_comes_before_the_response() {
    let latency = Duration::from_millis(40);
    let script = Script::new().turn(Turn::text("a").latency(latency));
    let server = ScriptedServer::start(script).await.unwrap();

    let began = Instant::now();
    ask(&server, &conversation(0)).await;

    assert!(began.elapsed() >= latency);
}

#[tokio::test]
async fn a_stalled_stream_stays_open_until_the_server_stops() {
    let turn = Turn::text("a b c").fault(Fault::StallAfterEvents(2));
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let mut connection = connect(&server.url()).await;
    let request = http::Request::post("/v1/chat/completions")
        .body(Full::from(streaming(conversation(0)).to_string()))
        .unwrap();

    let response = timeout(DEADLINE, connection.send_request(request))
        .await
        .unwrap()
        .unwrap();
    let mut body = response.into_body();
    let mut text = Vec::new();
    while text.windows(2).filter(|pair| pair == b"\n\n").count() < 2 {
        let frame = timeout(DEADLINE, body.frame())
            .await
            .unwrap()
            .unwrap()
            .unwrap();
        text.extend(frame.into_data().unwrap());
    }
    assert!(futures_util::FutureExt::now_or_never(body.frame()).is_none());
    drop(server);

    let end = timeout(DEADLINE, body.frame()).await.unwrap().unwrap();
    assert!(end.is_err(), "{end:?}");
}

#[tokio::test]
async fn a_hanging_request_ends_when_the_server_is_dropped() {
    let turn = Turn::text("a").fault(Fault::Hang);
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();
    let url = server.url();
    let request = tokio::spawn(async move {
        send(
            &url,
            "POST",
            "/v1/chat/completions",
            &[],
            &conversation(0).to_string(),
        )
        .await
    });

    timeout(DEADLINE, server.received(1)).await.unwrap();
    assert!(!request.is_finished());
    drop(server);

    let ended = timeout(DEADLINE, request).await.unwrap().unwrap();
    assert!(ended.is_err());
}

#[tokio::test]
async fn usage_counts_after_it_was_sent() {
    let usage = Usage::new(100, 20).cached(64);
    let first = Turn::text("a b")
        .usage(usage)
        .fault(Fault::CutAfterEvents(4))
        .fault(Fault::Reply(Reply::error(500)));
    let second = Turn::text("c").usage(Usage::new(7, 3).reasoning(2));
    // The fifth event is the usage; only `[DONE]` is lost.
    let third = Turn::text("d e")
        .usage(Usage::new(1, 1))
        .fault(Fault::CutAfterEvents(5));
    let script = Script::new().turn(first).turn(second).turn(third);
    let server = ScriptedServer::start(script).await.unwrap();

    let mut sent = Vec::new();
    for turn in [0, 0, 0, 1, 2] {
        ask(&server, &streaming(conversation(turn))).await;
        sent.push(server.usage_sent());
    }

    let two = Usage::new(107, 23).cached(64).reasoning(2);
    let all = Usage::new(108, 24).cached(64).reasoning(2);
    assert_eq!(sent, [Usage::default(), Usage::default(), usage, two, all]);
}
