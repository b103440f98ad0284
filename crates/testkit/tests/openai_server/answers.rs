//! Content of answers, whole and streamed, and selection of turns.

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn, Usage};
use serde_json::{Value, json};

use crate::client::{ask, content, conversation, fold, streaming};

#[tokio::test]
async fn an_answer_is_one_json_object() {
    let server = ScriptedServer::start(Script::new().turn(full_turn()))
        .await
        .unwrap();

    let got = ask(&server, &conversation(0)).await;

    assert_eq!(
        (got.status, got.header("content-type")),
        (200, "application/json")
    );
    assert_eq!(got.header("content-length"), got.text.len().to_string());
    assert_eq!(
        got.json(),
        json!({
            "id": "chatcmpl-0-0",
            "object": "chat.completion",
            "created": 1_700_000_000,
            "model": "m",
            "choices": [{
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "Let me look.",
                    "refusal": null,
                    "reasoning_content": "Two files?",
                    "tool_calls": [
                        {"id": "call_0_0", "type": "function",
                         "function": {"name": "look", "arguments": "{\"at\":\".\"}"}},
                        {"id": "twice", "type": "function",
                         "function": {"name": "look", "arguments": "{\"at\": "}},
                        {"type": "function", "function": {"name": "wait", "arguments": ""}},
                    ],
                },
            }],
            "usage": {
                "prompt_tokens": 120,
                "completion_tokens": 30,
                "total_tokens": 150,
                "prompt_tokens_details": {"cached_tokens": 100},
                "completion_tokens_details": {"reasoning_tokens": 12},
            },
        })
    );
}

#[tokio::test]
async fn a_stream_is_events_in_order() {
    let server = ScriptedServer::start(Script::new().turn(full_turn()))
        .await
        .unwrap();

    let got = ask(&server, &streaming(conversation(0))).await;

    assert_eq!(
        (got.status, got.header("content-type")),
        (200, "text/event-stream")
    );
    let call = |value: Value| delta(&json!({"tool_calls": [value]}));
    let mut end = delta(&json!({}));
    end["choices"][0]["finish_reason"] = json!("tool_calls");
    let mut usage = delta(&json!({}));
    usage["choices"] = json!([]);
    usage["usage"] = json!({
        "prompt_tokens": 120,
        "completion_tokens": 30,
        "total_tokens": 150,
        "prompt_tokens_details": {"cached_tokens": 100},
        "completion_tokens_details": {"reasoning_tokens": 12},
    });
    assert_eq!(
        got.events(),
        [
            delta(&json!({"role": "assistant", "content": ""})),
            delta(&json!({"reasoning_content": "Two "})),
            delta(&json!({"reasoning_content": "files?"})),
            delta(&json!({"content": "Let "})),
            delta(&json!({"content": "me "})),
            delta(&json!({"content": "look."})),
            call(json!({"index": 0, "id": "call_0_0", "type": "function",
                "function": {"name": "look", "arguments": ""}})),
            call(json!({"index": 0, "function": {"arguments": "{\"at\":\"."}})),
            call(json!({"index": 0, "function": {"arguments": "\"}"}})),
            call(json!({"index": 1, "id": "twice", "type": "function",
                "function": {"name": "look", "arguments": ""}})),
            call(json!({"index": 1, "function": {"arguments": "{\"at\": "}})),
            call(json!({"index": 2, "type": "function",
                "function": {"name": "wait", "arguments": ""}})),
            end,
            usage,
            json!("[DONE]"),
        ]
    );
}

#[tokio::test]
async fn deltas_have_the_requested_size_and_end_between_characters() {
    let call = ToolCall::new("look", "täg");
    let turn = Turn::text("aüß").reasoning("öh").call(call).delta_chars(2);
    let server = ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap();

    let got = ask(&server, &streaming(conversation(0))).await;

    let deltas = got.events();
    let deltas = deltas
        .iter()
        .filter_map(|event| event.pointer("/choices/0/delta"));
    let texts: Vec<&str> = deltas
        .filter_map(|delta| {
            let arguments = delta.pointer("/tool_calls/0/function/arguments");
            arguments
                .or(delta.get("content"))
                .or(delta.get("reasoning_content"))?
                .as_str()
        })
        .collect();
    assert_eq!(texts, ["", "öh", "aü", "ß", "", "tä", "g"]);
}

#[tokio::test]
async fn streams_equal_whole_answers() {
    let turns = [
        full_turn(),
        full_turn().delta_chars(1),
        Turn::text("Straße, 東京, \n\n done").finish_reason("length"),
        Turn::tool(ToolCall::new("look", json!({"at": "ü"})).id("")),
        Turn::text(""),
    ];
    let script = turns.into_iter().fold(Script::new(), Script::turn);
    let server = ScriptedServer::start(script).await.unwrap();

    for turn in 0..5 {
        let whole = ask(&server, &conversation(turn)).await.json();
        let events = ask(&server, &streaming(conversation(turn))).await.events();
        let choice = &whole["choices"][0];
        assert_eq!(
            fold(&events),
            (choice["message"].clone(), choice["finish_reason"].clone())
        );
        assert_eq!(events[events.len() - 2]["usage"], whole["usage"]);
    }
}

#[tokio::test]
async fn usage_is_omitted_if_missing_or_not_requested() {
    let script = Script::new()
        .turn(Turn::text("a").without_usage())
        .turn(Turn::text("b"));
    let server = ScriptedServer::start(script).await.unwrap();
    let mut without_usage = streaming(conversation(1));
    without_usage
        .as_object_mut()
        .unwrap()
        .remove("stream_options");

    let whole = ask(&server, &conversation(0)).await.json();
    let with_usage = ask(&server, &streaming(conversation(0))).await.events();
    let without_usage = ask(&server, &without_usage).await.events();

    assert_eq!(whole.get("usage"), None);
    assert!(
        with_usage.iter().all(|event| event["usage"].is_null()),
        "{with_usage:?}"
    );
    assert!(
        without_usage
            .iter()
            .all(|event| event.get("usage").is_none()),
        "{without_usage:?}"
    );
    assert_eq!(server.usage_sent(), Usage::default());
}

#[tokio::test]
async fn a_provider_may_put_usage_beside_a_choice_and_send_comments() {
    let script = Script::new()
        .turn(Turn::text("a b"))
        .usage_in_choice()
        .comments();
    let server = ScriptedServer::start(script).await.unwrap();

    let got = ask(&server, &streaming(conversation(0))).await;

    let events = got.events();
    assert_eq!(events[4]["choices"], json!([{"index": 0, "delta": {}}]));
    assert_eq!(events[4]["usage"]["total_tokens"], 15);
    let comments = got
        .text
        .lines()
        .filter(|line| *line == ": keep-alive")
        .count();
    assert_eq!((comments, events.len()), (6, 6));
}

#[tokio::test]
async fn assistant_messages_choose_the_turn_and_the_end_is_an_error() {
    let script = Script::new()
        .turns(2, Turn::text("again"))
        .turn(Turn::text("done"));
    let server = ScriptedServer::start(script).await.unwrap();

    let mut texts = Vec::new();
    for turn in [0, 1, 2, 2, 0] {
        texts.push(content(&ask(&server, &conversation(turn)).await.json()));
    }
    let past = ask(&server, &conversation(3)).await;

    assert_eq!(texts, ["again", "again", "done", "done", "again"]);
    assert_eq!(past.status, 400);
    assert_eq!(
        past.json(),
        json!({"error": {
            "message": "The script has 3 turns; turn 3, counted from 0, was asked for.",
            "type": "invalid_request_error", "param": null, "code": null,
        }})
    );
    let seen: Vec<_> = server
        .requests()
        .iter()
        .map(|seen| (seen.turn, seen.attempt))
        .collect();
    assert_eq!(seen, [(0, 0), (1, 0), (2, 0), (2, 1), (0, 1), (3, 0)]);
}

#[tokio::test]
async fn the_last_turn_repeats_or_a_function_answers() {
    let repeating = Script::new()
        .turn(Turn::text("a"))
        .turn(Turn::text("b"))
        .repeat_last();
    let asking = Script::new().turn(Turn::text("a")).then_with(|request| {
        Turn::text(format!(
            "{} {}",
            request.turn,
            request.body()["messages"][1]["content"]
        ))
    });
    let options = ServerOptions::new(repeating).model("asking", asking);
    let server = ScriptedServer::start(options).await.unwrap();
    let mut to_function = conversation(7);
    to_function["model"] = json!("asking");

    assert_eq!(content(&ask(&server, &conversation(9)).await.json()), "b");
    assert_eq!(
        content(&ask(&server, &to_function).await.json()),
        "7 \"task\""
    );
}

fn full_turn() -> Turn {
    Turn::text("Let me look.")
        .reasoning("Two files?")
        .call(ToolCall::new("look", json!({"at": "."})))
        .call(ToolCall::new("look", "{\"at\": ").id("twice"))
        .call(ToolCall::new("wait", "").without_id())
        .usage(Usage::new(120, 30).cached(100).reasoning(12))
}

/// Returns a chunk of turn 0's first answer to a request with usage.
fn delta(delta: &Value) -> Value {
    json!({
        "id": "chatcmpl-0-0",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": null}],
        "usage": null,
    })
}
