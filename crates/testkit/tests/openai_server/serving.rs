//! Paths, keys, models, the record, and starting and stopping.

use std::time::Instant;

use cantle_testkit::openai::{
    Fault, Reply, Script, ScriptedServer, ServerOptions, Turn, Usage, serve_until,
};
use http_body_util::Full;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::time::timeout;

use crate::client::{
    DEADLINE, Got, address, ask, connect, content, conversation, exchange, fold, send, streaming,
};

#[tokio::test]
async fn models_have_their_own_scripts_on_one_server() {
    let mut options = ServerOptions::new(Script::new().turn(Turn::text("any")));
    for index in 0..50 {
        let script = Script::new().turn(Turn::text(format!("I am {index}")));
        options = options.model(format!("m{index:02}"), script);
    }
    let server = ScriptedServer::start(options).await.unwrap();

    let answers = (0..50).map(|index| {
        let mut request = conversation(0);
        request["model"] = json!(format!("m{index:02}"));
        let server = &server;
        async move { content(&ask(server, &request).await.json()) }
    });
    let texts = futures_util::future::join_all(answers).await;

    let expected: Vec<_> = (0..50).map(|index| format!("I am {index}")).collect();
    assert_eq!(texts, expected);
    assert_eq!(content(&ask(&server, &conversation(0)).await.json()), "any");
    let models = send(&server.url(), "GET", "/v1/models", &[], "")
        .await
        .unwrap()
        .json();
    assert_eq!(models["data"].as_array().unwrap().len(), 50);
    assert_eq!(
        models["data"][7],
        json!({"id": "m07", "object": "model", "created": 0, "owned_by": "script"})
    );
}

#[tokio::test]
async fn requests_are_recorded_unchanged() {
    let server = ScriptedServer::start(Script::new().turn(Turn::text("a")))
        .await
        .unwrap();
    let body = conversation(0);
    let before = Instant::now();

    send(
        &server.url(),
        "POST",
        "/chat/completions",
        &[("x-test", "1")],
        &format!(" {body}\n"),
    )
    .await
    .unwrap();

    let [seen] = &server.requests()[..] else {
        panic!("one request")
    };
    assert_eq!(seen.headers["x-test"], "1");
    assert_eq!(seen.raw, format!(" {body}\n"));
    assert_eq!(seen.body(), body);
    assert_eq!((seen.turn, seen.attempt), (0, 0));
    assert!(before <= seen.at && seen.at <= Instant::now());
}

#[tokio::test]
async fn without_record_attempts_and_usage_still_count() {
    let turn = Turn::text("a").fault(Fault::Reply(Reply::error(500)));
    let options = ServerOptions::new(Script::new().turn(turn)).without_record();
    let server = ScriptedServer::start(options).await.unwrap();

    let statuses = [
        ask(&server, &conversation(0)).await.status,
        ask(&server, &conversation(0)).await.status,
    ];

    assert_eq!(statuses, [500, 200]);
    assert_eq!(server.usage_sent(), Usage::new(10, 5));
    assert_eq!(server.requests().len(), 0);
    timeout(DEADLINE, server.received(2)).await.unwrap();
}

#[tokio::test]
async fn a_configured_key_is_required() {
    let options = ServerOptions::new(Script::new().turn(Turn::text("a"))).api_key("sk-right");
    let server = ScriptedServer::start(options).await.unwrap();
    let body = conversation(0).to_string();
    let refused = json!({"error": {
        "message": "Incorrect API key provided.",
        "type": "invalid_request_error", "param": null, "code": "invalid_api_key",
    }});

    let headers: [&[(&str, &str)]; 3] = [
        &[],
        &[("authorization", "Bearer sk-wrong")],
        &[("authorization", "Bearer sk-right")],
    ];
    let mut got = Vec::new();
    for headers in headers {
        let answer = send(
            &server.url(),
            "POST",
            "/v1/chat/completions",
            headers,
            &body,
        )
        .await;
        got.push(answer.unwrap());
    }

    let statuses: Vec<_> = got.iter().map(|got| got.status).collect();
    assert_eq!(statuses, [401, 401, 200]);
    assert_eq!((got[0].json(), got[1].json()), (refused.clone(), refused));
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn unknown_paths_return_a_json_error() {
    let server = ScriptedServer::start(Script::new().turn(Turn::text("a")))
        .await
        .unwrap();
    let url = server.url();

    let path = send(&url, "POST", "/v1/embeddings", &[], "{}")
        .await
        .unwrap();
    let method = send(&url, "GET", "/v1/chat/completions", &[], "")
        .await
        .unwrap();
    let broken = send(&url, "POST", "/v1/chat/completions", &[], "{")
        .await
        .unwrap();
    let empty = send(
        &url,
        "POST",
        "/v1/chat/completions",
        &[],
        r#"{"model":"m"}"#,
    )
    .await
    .unwrap();

    let message = |got: &Got| got.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(
        (path.status, method.status, broken.status, empty.status),
        (404, 404, 400, 400)
    );
    assert_eq!(message(&path), "There is no POST /v1/embeddings here.");
    assert_eq!(
        message(&method),
        "There is no GET /v1/chat/completions here."
    );
    assert_eq!(
        message(&broken),
        "Invalid body: EOF while parsing an object at line 1 column 1."
    );
    assert_eq!(
        message(&empty),
        "Invalid body: missing field `messages` at line 1 column 13."
    );
    assert_eq!(server.requests().len(), 0);
}

#[tokio::test]
async fn a_connection_serves_several_requests() {
    let script = Script::new().turn(Turn::text("a")).turn(Turn::text("b"));
    let server = ScriptedServer::start(script).await.unwrap();
    let mut connection = connect(&server.url()).await;

    let mut got = Vec::new();
    for (request, streamed) in [(streaming(conversation(0)), true), (conversation(1), false)] {
        let request = http::Request::post("/v1/chat/completions")
            .body(Full::from(request.to_string()))
            .unwrap();
        let answer = timeout(DEADLINE, exchange(&mut connection, request))
            .await
            .unwrap()
            .unwrap();
        got.push(if streamed {
            fold(&answer.events()).0
        } else {
            answer.json()
        });
    }

    assert_eq!((&got[0]["content"], &*content(&got[1])), (&json!("a"), "b"));
}

#[tokio::test]
async fn serve_until_stops_on_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let (stop, stopped) = oneshot::channel::<()>();
    let script = Script::new().turn(Turn::text("a"));
    let serving = tokio::spawn(serve_until(listener, script, async {
        let _ = stopped.await;
    }));

    let body = conversation(0).to_string();
    let got = send(&url, "POST", "/v1/chat/completions", &[], &body)
        .await
        .unwrap();
    stop.send(()).unwrap();

    assert_eq!(content(&got.json()), "a");
    timeout(DEADLINE, serving).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(address(&url)).await.is_err());
}
