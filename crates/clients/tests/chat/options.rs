//! A client's options, and the requests that they lead to.

use std::time::Duration;

use cantle_clients::chat::{ChatClient, ChatClientBuilder, Server, Timeouts};
use cantle_core::llm::{ChatRequest, LlmClient as _, LlmClientExt as _, LlmErrorKind, ToolSpecs};
use cantle_core::message::Message;
use cantle_core::tool::ToolSpec;
use cantle_testkit::openai::{Script, Turn};
use serde_json::{Map, Value, json};

use crate::support::{builder, complete, serve, serve_with};

fn extra(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_minimal_request_has_no_optional_fields() {
    let server = serve_with(Script::new().turn(Turn::text("Hi"))).await;
    for streams in [true, false] {
        complete(&builder(&server.url(), streams).build().unwrap())
            .await
            .unwrap();
    }
    let requests = server.requests();
    let bodies: Vec<_> = requests
        .iter()
        .map(|request| String::from_utf8_lossy(&request.raw).into_owned())
        .collect();
    insta::assert_snapshot!(bodies.join("\n"), @r#"
    {"model":"scripted","stream":true,"stream_options":{"include_usage":true},"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}
    {"model":"scripted","stream":false,"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}]}
    "#);
    assert!(requests[0].headers.get("authorization").is_none());
}

#[tokio::test]
async fn options_are_encoded() {
    let server = serve(Turn::text("Hi")).await;
    let client = builder(&server.url(), false)
        .api_key(" sk-1234\n")
        .context_window(128_000)
        .max_output_tokens(8_000)
        .reasoning_effort("high")
        .extra(extra(json!({"temperature": 0.2, "max_tokens": 8000})))
        .build()
        .unwrap();
    assert_eq!(client.model().context_window, Some(128_000));
    assert_eq!(client.model().max_output_tokens, Some(8_000));

    let look = ToolSpec::new(
        "look",
        "Lists files.",
        json!({"properties": {"at": {"type": "string"}}}),
    );
    let tools = ToolSpecs::new(vec![look]);
    let request = ChatRequest::new(vec![Message::system("Be brief.").into()], tools);
    client.complete(request).await.unwrap();

    let sent = &server.requests()[0];
    insta::assert_snapshot!(String::from_utf8_lossy(&sent.raw), @r#"{"max_completion_tokens":8000,"max_tokens":8000,"model":"scripted","reasoning_effort":"high","stream":false,"temperature":0.2,"tools":[{"type":"function","function":{"name":"look","description":"Lists files.","parameters":{"properties":{"at":{"type":"string"}},"type":"object"}}}],"tool_choice":"auto","messages":[{"role":"system","content":[{"type":"text","text":"Be brief."}]}]}"#);
    let header = |name| sent.headers.get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("authorization"), Some("Bearer sk-1234"));
    assert_eq!(header("content-type"), Some("application/json"));
    assert_eq!(
        header("user-agent"),
        Some(concat!("cantle/", env!("CARGO_PKG_VERSION")))
    );
}

#[tokio::test]
async fn azure_reads_the_key_from_its_own_header() {
    let server = serve(Turn::text("Hi")).await;
    let client = builder(&server.url(), false).api_key("sk-1");
    complete(&client.server(Server::Azure).build().unwrap())
        .await
        .unwrap();
    let headers = &server.requests()[0].headers;
    assert_eq!(headers.get("api-key").unwrap(), "sk-1");
    assert!(headers.get("authorization").is_none());
}

#[test]
fn the_output_limit_shrinks_if_it_counts_against_the_window() {
    let limit = |server, words: usize| {
        let client = ChatClient::builder("m")
            .server(server)
            .context_window(10_000)
            .max_output_tokens(4_000)
            .build()
            .unwrap();
        let message = Message::user("word ".repeat(words)).into();
        let request = ChatRequest::new(vec![message], ToolSpecs::default());
        let body = client.request_body(&request).unwrap();
        let body: Value = serde_json::from_slice(&body).unwrap();
        body["max_completion_tokens"].as_u64().unwrap()
    };
    assert_eq!(limit(Server::Vllm, 10), 4_000);
    // 25,000 bytes are taken for 8333 tokens, and a little is kept free.
    assert_eq!(limit(Server::Vllm, 5_000), 10_000 - 8_333 - 312);
    assert_eq!(limit(Server::Vllm, 50_000), 256);
    assert_eq!(limit(Server::OpenAi, 50_000), 4_000);
}

#[test]
fn invalid_options_are_rejected_with_a_reason() {
    type Change = fn(ChatClientBuilder) -> ChatClientBuilder;
    let changes: [(&str, Change); 13] = [
        ("m", |b| b.context_window(0)),
        ("m", |b| b.max_output_tokens(0)),
        ("m", |b| b.context_window(1_000).max_output_tokens(1_001)),
        (" ", |b| b),
        ("m", |b| b.base_url("localhost:8000")),
        ("m", |b| b.base_url("not a url")),
        ("m", |b| b.base_url("ftp://localhost/v1")),
        ("m", |b| b.base_url("http://me:pass@localhost/v1")),
        ("m", |b| b.base_url("http://localhost/v1/chat/completions/")),
        ("m", |b| b.api_key("sk-1\nsk-2")),
        ("m", |b| b.extra(extra(json!({"messages": []})))),
        ("m", |b| b.extra(extra(json!({"n": 2})))),
        ("m", |b| {
            b.server(Server::OpenRouter)
                .max_output_tokens(5)
                .extra(extra(json!({"max_tokens": 5})))
        }),
    ];
    let texts: Vec<_> = changes
        .into_iter()
        .map(|(model, change)| {
            let error = change(ChatClient::builder(model)).build().unwrap_err();
            assert_eq!(error.kind(), LlmErrorKind::InvalidRequest);
            match error.advice() {
                Some(advice) => format!("{error}. {advice}"),
                None => error.to_string(),
            }
        })
        .collect();
    insta::assert_snapshot!(texts.join("\n"));
}

#[tokio::test]
async fn base_urls_are_normalized() {
    let server = serve(Turn::text("Hi")).await;
    let url = server.url();
    for base_url in [
        url.clone(),
        format!("{url}/"),
        format!(" {url}\n"),
        format!("{url}?api-version=2026-01-01#top"),
    ] {
        let client = builder(&base_url, true).build().unwrap();
        complete(&client).await.unwrap();
    }
}

#[test]
fn debug_shows_the_endpoint_but_no_secret() {
    let builder = ChatClient::builder("m")
        .base_url("http://localhost:8000/v1?key=in-the-query")
        .api_key("sk-secret");
    assert_eq!(
        format!("{builder:?}"),
        "ChatClientBuilder { model: \"m\", .. }"
    );
    let client = builder.build().unwrap();
    insta::assert_snapshot!(format!("{client:?}"), @r#"ChatClient { model: ModelInfo { slug: "m", context_window: None, max_output_tokens: None, input_modalities: None, prices: None, highest_prices: None, reports_cost: None, parameters: {}, fallbacks: [] }, base_url: "http://localhost:8000/v1", retry_for: 300s, .. }"#);
}

#[test]
fn default_timeouts() {
    let timeouts = Timeouts::default();
    assert_eq!(timeouts.connect, Duration::from_secs(10));
    assert_eq!(timeouts.first_byte, Duration::from_secs(600));
    assert_eq!(timeouts.idle, Duration::from_secs(300));
}
