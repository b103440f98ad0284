//! Streams that are not what they should be: whatever comes, a call ends, with an answer or an error.

use std::time::Duration;

use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, Turn};
use proptest::prelude::{Strategy, any};
use proptest::test_runner::{Config, TestRunner};
use serde_json::json;

use crate::support::{DIALECTS, ask, client};

const CHAT: &str = r#"data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":"Hel"}}]}

data: {"choices":[{"index":0,"delta":{"content":"lo","reasoning_details":[{"type":"x","text":"t"}]},"logprobs":{"content":[{"token":"lo"}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":" 1}"}}]},"finish_reason":"tool_calls"}]}

data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":7,"total_tokens":12}}

data: [DONE]

"#;

const MESSAGES: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","model":"c","usage":{"input_tokens":5,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hm"}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: content_block_start
data: {"type":"content_block_start","index":1,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}

event: content_block_delta
data: {"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{\"x\": 1}"}}

event: content_block_stop
data: {"type":"content_block_stop","index":1}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"tool_use"},"usage":{"output_tokens":9}}

event: message_stop
data: {"type":"message_stop"}

"#;

const RESPONSES: &str = r#"event: response.created
data: {"type":"response.created","response":{"id":"r","model":"m","status":"in_progress","output":[]}}

event: response.output_item.added
data: {"type":"response.output_item.added","output_index":0,"item":{"type":"message","id":"i","role":"assistant","content":[]}}

event: response.output_text.delta
data: {"type":"response.output_text.delta","item_id":"i","output_index":0,"content_index":0,"delta":"Hello"}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":0,"item":{"type":"message","id":"i","role":"assistant","content":[{"type":"output_text","text":"Hello"}]}}

event: response.output_item.done
data: {"type":"response.output_item.done","output_index":1,"item":{"type":"function_call","id":"j","call_id":"a","name":"f","arguments":"{}"}}

event: response.completed
data: {"type":"response.completed","response":{"id":"r","model":"m","status":"completed","output":[],"usage":{"input_tokens":5,"output_tokens":7,"total_tokens":12}}}

"#;

/// A call that is answered with these bytes as a stream.
async fn answered(dialect: &str, body: Vec<u8>) -> Result<(), LlmErrorKind> {
    let answer = replied(dialect, "text/event-stream", body).await;
    answer.map_err(|error| error.kind())
}

async fn replied(dialect: &str, content_type: &str, body: Vec<u8>) -> Result<(), LlmError> {
    let reply = Fault::Reply(Reply::new(200, content_type, body));
    let script = Script::new().turn(Turn::text("").fault_always(reply));
    let server = ScriptedServer::start(script).await.unwrap();
    let client = client(dialect, &server.url(), true).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(120), ask(&*client)).await;
    answer.unwrap().map(drop)
}

/// Bytes that take the place of others: where (in parts of the whole), how many, and which.
fn any_change() -> impl Strategy<Value = (f64, usize, Vec<u8>)> {
    let bytes = proptest::collection::vec(any::<u8>(), 0..6);
    (0.0..1.0, 0..40usize, bytes)
}

#[tokio::test]
async fn an_unmodified_stream_is_an_answer() {
    for (dialect, stream) in DIALECTS.into_iter().zip([CHAT, MESSAGES, RESPONSES]) {
        assert_eq!(answered(dialect, stream.into()).await, Ok(()), "{dialect}");
    }
}

#[tokio::test]
async fn a_failed_answer_has_its_usage() {
    let error = json!({"code": "server_error", "message": "broken"});
    let chat = json!({"choices": [{"error": error}], "usage": {"prompt_tokens": 5, "completion_tokens": 7}});
    let response = json!({
        "status": "failed", "output": [], "error": error, "usage": {"input_tokens": 5, "output_tokens": 7},
    });
    for (dialect, content_type, body) in [
        ("chat", "application/json", chat.to_string()),
        ("chat", "text/event-stream", format!("data: {chat}\n\n")),
        ("responses", "application/json", response.to_string()),
    ] {
        let failed = replied(dialect, content_type, body.into())
            .await
            .unwrap_err();
        let usage = failed.usage().unwrap();
        assert_eq!(
            (usage.input, usage.answer),
            (5, 7),
            "{dialect} {content_type}"
        );
    }
}

#[test]
fn a_modified_stream_ends_in_an_answer_or_an_error() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut runner = TestRunner::new(Config::with_cases(256));
    let changes = proptest::collection::vec(any_change(), 1..4);
    let checked = runner.run(&changes, |changes| {
        for (dialect, stream) in DIALECTS.into_iter().zip([CHAT, MESSAGES, RESPONSES]) {
            let mut body = stream.as_bytes().to_vec();
            for (at, count, bytes) in &changes {
                let start = (body.len() as f64 * at) as usize;
                let end = (start + count).min(body.len());
                body.splice(start..end, bytes.iter().copied());
            }
            let answer = runtime.block_on(answered(dialect, body));
            let kind = answer.err().unwrap_or(LlmErrorKind::Protocol);
            // The error names the broken answer as the cause, and nothing else.
            let expected = [
                LlmErrorKind::Protocol,
                LlmErrorKind::Interrupted,
                LlmErrorKind::Server,
                LlmErrorKind::InvalidRequest,
            ];
            assert!(expected.contains(&kind), "{dialect}: {kind:?}");
        }
        Ok(())
    });
    checked.unwrap();
}
