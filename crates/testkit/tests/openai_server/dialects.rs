//! The same turns over Responses and over Anthropic's Messages.

use cantle_testkit::openai::{Fault, Script, ScriptedServer, ServerOptions, ToolCall, Turn, Usage};
use serde_json::{Value, json};

use crate::client::{Got, send};

async fn server(turn: Turn) -> ScriptedServer {
    ScriptedServer::start(Script::new().turn(turn))
        .await
        .unwrap()
}

async fn post(server: &ScriptedServer, path: &str, request: &Value) -> Got {
    let body = request.to_string();
    send(&server.url(), "POST", path, &[], &body).await.unwrap()
}

fn turn() -> Turn {
    let usage = Usage::new(100, 50).cached(40).reasoning(20);
    Turn::text("One, two.")
        .reasoning("Hm.")
        .call(ToolCall::new("look", r#"{"at": "größe",  "n": 1.50}"#))
        .usage(usage)
}

fn messages(stream: bool) -> Value {
    let messages = json!([{"role": "user", "content": "task"}]);
    json!({"model": "m", "max_tokens": 10, "stream": stream, "messages": messages})
}

fn responses(stream: bool) -> Value {
    let input = json!([{"type": "message", "role": "user", "content": "task"}]);
    json!({"model": "m", "stream": stream, "input": input})
}

#[tokio::test]
async fn a_message_is_one_json_object() {
    let got = post(&server(turn()).await, "/v1/messages", &messages(false)).await;
    // Byte for byte as in the script.
    assert!(
        got.text.contains(r#""input":{"at": "größe",  "n": 1.50}"#),
        "{}",
        got.text
    );
    assert_eq!(
        got.json(),
        json!({
            "id": "msg_0_0", "type": "message", "role": "assistant", "model": "m",
            "stop_reason": "tool_use", "stop_sequence": null,
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "c2lnbmVk"},
                {"type": "text", "text": "One, two."},
                {"type": "tool_use", "id": "call_0_0", "name": "look",
                 "input": {"at": "größe", "n": 1.5}},
            ],
            "usage": {"input_tokens": 60, "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 40, "output_tokens": 50,
                "output_tokens_details": {"thinking_tokens": 20}},
        })
    );
}

#[tokio::test]
async fn a_response_is_one_json_object() {
    let got = post(&server(turn()).await, "/v1/responses", &responses(false)).await;
    assert_eq!(
        got.json(),
        json!({
            "id": "resp-0-0", "object": "response", "created_at": 1_700_000_000, "model": "m",
            "status": "completed", "error": null, "incomplete_details": null,
            "output": [
                {"type": "reasoning", "id": "rs_0_0", "encrypted_content": "ZW5jcnlwdGVk",
                 "summary": [{"type": "summary_text", "text": "Hm."}]},
                {"type": "message", "id": "msg_0_0", "role": "assistant",
                 "content": [{"type": "output_text", "text": "One, two.", "annotations": []}]},
                {"type": "function_call", "id": "fc_0_0", "call_id": "call_0_0", "name": "look",
                 "arguments": "{\"at\": \"größe\",  \"n\": 1.50}"},
            ],
            "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 40},
                "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 20},
                "total_tokens": 150},
        })
    );
}

/// Returns the event names without repetitions; each must match its data.
fn kinds(got: &Got) -> Vec<String> {
    let names = got
        .text
        .lines()
        .filter_map(|line| line.strip_prefix("event: "));
    let types: Vec<_> = got
        .events()
        .iter()
        .map(|event| event["type"].clone())
        .collect();
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    assert_eq!(json!(names), json!(types));
    names.dedup();
    names
}

#[tokio::test]
async fn streams_have_the_events_of_their_dialect() {
    let got = post(&server(turn()).await, "/v1/messages", &messages(true)).await;
    let block = [
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
    ];
    let mut expected = vec!["message_start"];
    expected.extend(block.repeat(3));
    expected.extend(["message_delta", "message_stop"]);
    assert_eq!(kinds(&got), expected);

    let got = post(&server(turn()).await, "/v1/responses", &responses(true)).await;
    let mut expected = vec!["response.created"];
    for delta in [
        "response.reasoning_summary_text.delta",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
    ] {
        expected.extend([
            "response.output_item.added",
            delta,
            "response.output_item.done",
        ]);
    }
    expected.push("response.completed");
    assert_eq!(kinds(&got), expected);
}

#[tokio::test]
async fn turns_are_counted_in_items_and_continued_responses() {
    let script = Script::new()
        .turn(turn())
        .turn(Turn::text("Second."))
        .turn(Turn::text("Third."));
    let server = ScriptedServer::start(script).await.unwrap();
    let text_of = async |request: Value| {
        let got = post(&server, "/v1/responses", &request).await.json();
        let output = got["output"].as_array().unwrap().clone();
        output[0]["content"][0]["text"].as_str().unwrap().to_owned()
    };
    let result = json!({"type": "function_call_output", "call_id": "call_0_0", "output": "x"});
    let first = post(&server, "/v1/responses", &responses(false))
        .await
        .json();
    let mut input = vec![responses(false)["input"][0].clone()];
    input.extend(first["output"].as_array().unwrap().clone());
    input.push(result.clone());
    // The three items of the first turn are one turn.
    assert_eq!(
        text_of(json!({"model": "m", "input": input})).await,
        "Second."
    );
    let continued = json!({"model": "m", "previous_response_id": "resp-1-0", "input": [result]});
    assert_eq!(text_of(continued).await, "Third.");
    let unknown = json!({"model": "m", "previous_response_id": "resp_x", "input": []});
    let refused = post(&server, "/v1/responses", &unknown).await;
    assert_eq!(refused.status, 400);
    assert_eq!(
        refused.json()["error"]["code"],
        "previous_response_not_found"
    );
}

#[tokio::test]
async fn an_error_within_a_stream_is_an_event_of_the_dialect() {
    let error = json!({"type": "overloaded_error", "message": "Overloaded"});
    let turn = turn().fault_always(Fault::ErrorEvent { after: 1, error });
    let got = post(&server(turn.clone()).await, "/v1/messages", &messages(true)).await;
    let event = &got.events()[1];
    assert_eq!(
        (&event["type"], &event["error"]["message"]),
        (&json!("error"), &json!("Overloaded"))
    );
    let got = post(&server(turn).await, "/v1/responses", &responses(true)).await;
    let event = &got.events()[1];
    assert_eq!(
        (&event["type"], &event["message"]),
        (&json!("error"), &json!("Overloaded"))
    );
}

#[tokio::test]
async fn a_key_may_come_as_anthropic_sends_it() {
    let options = ServerOptions::new(Script::new().turn(Turn::text("Hi"))).api_key("sk-1");
    let server = ScriptedServer::start(options).await.unwrap();
    let body = messages(false).to_string();
    for (key, status) in [("sk-1", 200), ("sk-2", 401)] {
        let key = [("x-api-key", key)];
        let got = send(&server.url(), "POST", "/v1/messages", &key, &body).await;
        assert_eq!(got.unwrap().status, status);
    }
}
