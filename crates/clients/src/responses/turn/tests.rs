use cantle_core::llm::{ChatEvent, Completion, LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use serde_json::{Value, json};

use super::ResponsesAssembler;
use crate::http::testing::{self, folded, reasoning};

/// Reasoning, a message between it and a call, a second call, and an item that is not known here.
fn output() -> Value {
    json!([
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Where?"}],
            "encrypted_content": "ZW5j", "status": null},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "phase": "commentary",
            "content": [{"type": "output_text", "text": "Grüße.", "annotations": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look",
            "arguments": "{\"at\": \"größe\"}", "status": "completed"},
        {"type": "function_call", "id": "fc_2", "call_id": "call_2", "name": "list", "arguments": "{}"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
    ])
}

fn response(status: &str, output: &Value) -> Value {
    json!({
        "id": "resp_1", "object": "response", "model": "gpt-x-2026", "status": status, "error": null,
        "incomplete_details": null, "output": output,
        "usage": {"input_tokens": 100, "input_tokens_details": {"cached_tokens": 60},
            "output_tokens": 50, "output_tokens_details": {"reasoning_tokens": 20}, "total_tokens": 150},
    })
}

/// The stream of a response, as OpenAI has it.
fn streamed(output: &Value, end: &Value) -> String {
    let mut events =
        vec![json!({"type": "response.created", "response": response("in_progress", &json!([]))})];
    for (index, item) in output.as_array().unwrap().iter().enumerate() {
        let id = &item["id"];
        let mut begun = item.clone();
        if item["type"] == "function_call" {
            begun["arguments"] = "".into();
        }
        events.push(
            json!({"type": "response.output_item.added", "output_index": index, "item": begun}),
        );
        let pieces = match item["type"].as_str().unwrap() {
            "reasoning" => (
                "response.reasoning_summary_text.delta",
                item["summary"][0]["text"].as_str(),
            ),
            "message" => (
                "response.output_text.delta",
                item["content"][0]["text"].as_str(),
            ),
            "function_call" => (
                "response.function_call_arguments.delta",
                item["arguments"].as_str(),
            ),
            _ => ("", None),
        };
        if let (kind, Some(text)) = pieces {
            let middle = text.len() / 2;
            let middle = (middle..).find(|&at| text.is_char_boundary(at)).unwrap();
            for delta in <[&str; 2]>::from(text.split_at(middle)) {
                events.push(
                    json!({"type": kind, "item_id": id, "output_index": index, "delta": delta}),
                );
            }
        }
        events.push(
            json!({"type": "response.output_item.done", "output_index": index, "item": item}),
        );
    }
    let status = end["status"].as_str().unwrap();
    events.push(json!({"type": format!("response.{status}"), "response": end}));
    let lines = events.iter().map(|event| {
        let name = event["type"].as_str().unwrap();
        format!("event: {name}\ndata: {event}\n\n")
    });
    lines.collect()
}

fn assemble(stateful: bool, stream: &[u8]) -> (Vec<ChatEvent>, Option<LlmError>) {
    testing::assemble(ResponsesAssembler::new(stateful), stream)
}

fn answered(stateful: bool, body: &Value) -> Result<Completion, LlmError> {
    testing::answered(ResponsesAssembler::new(stateful), body)
}

#[test]
fn items_keep_their_order() {
    let whole = response("completed", &output());
    let (events, failed) = assemble(false, streamed(&output(), &whole).as_bytes());
    assert!(failed.is_none(), "{failed:?}");
    insta::assert_debug_snapshot!(events);
    let streamed = folded(events);
    assert_eq!(streamed, answered(false, &whole).unwrap());
    let usage = TokenUsage {
        input: 40,
        cache_read: 60,
        cache_write: 0,
        answer: 30,
        reasoning: 20,
    };
    assert_eq!(streamed.usage, Some(usage));
    assert_eq!(streamed.served_by.as_deref(), Some("gpt-x-2026"));
}

#[test]
fn reasoning_may_lack_an_id() {
    let output = json!([
        {"type": "reasoning", "summary": [], "encrypted_content": "ZW5j"},
        {"type": "message", "content": [{"type": "output_text", "text": "A"}]},
    ]);
    let answer = answered(false, &response("completed", &output)).unwrap();
    let expected = AssistantBlock::EncryptedReasoning {
        id: String::new(),
        encrypted_content: "ZW5j".to_owned(),
        content: None,
        summary: Vec::new(),
    };
    assert_eq!(answer.message.blocks, [expected, AssistantBlock::text("A")]);
}

#[test]
fn missing_and_unknown_content_is_empty() {
    let parts = json!([
        {"type": "output_text", "text": null},
        {"type": "output_audio", "data": ""},
        {"type": "output_text", "text": "A"},
    ]);
    let output = json!([
        {"type": "message", "content": null},
        {"type": "message", "content": parts},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": null},
    ]);
    let answer = answered(false, &response("completed", &output)).unwrap();
    let call = ToolCall::new(Some("c".to_owned()), "f", "");
    let expected = [AssistantBlock::text("A"), AssistantBlock::ToolCall(call)];
    assert_eq!(answer.message.blocks, expected);
}

#[test]
fn reported_costs_are_read() {
    for (field, value) in [
        ("cost", json!(0.5)),
        ("cost_in_usd_ticks", json!(5_000_000_000_u64)),
    ] {
        let mut whole = response("completed", &output());
        whole["usage"][field] = value;
        assert_eq!(answered(false, &whole).unwrap().cost_usd, Some(0.5));
    }
}

#[test]
fn only_stored_responses_have_an_id() {
    let whole = response("completed", &output());
    for stateful in [true, false] {
        let id = answered(stateful, &whole)
            .unwrap()
            .message
            .provider_response_id;
        assert_eq!(id.is_some(), stateful);
    }
}

#[test]
fn unencrypted_reasoning_is_referenced_if_stored() {
    let item = |content: Value| {
        let output = json!([{"type": "reasoning", "id": "rs", "content": content,
            "summary": [{"type": "summary_text", "text": "S"}]}]);
        response("completed", &output)
    };
    let shown = json!([{"type": "reasoning_text", "text": "R"}]);
    let blocks = |stateful, body| answered(stateful, &body).unwrap().message.blocks;
    let named = |content: Option<&str>| AssistantBlock::ReasoningRef {
        id: "rs".to_owned(),
        content: content.map(str::to_owned),
        summary: vec!["S".to_owned()],
    };
    let plain = reasoning("S");
    assert_eq!(blocks(true, item(json!(null))), [named(None)]);
    assert_eq!(blocks(false, item(shown)), [named(Some("R"))]);
    assert_eq!(blocks(false, item(json!(null))), [plain]);
}

#[test]
fn a_stream_cut_before_its_end_is_interrupted() {
    let stream = streamed(&output(), &response("completed", &output()));
    for cut in 0..=stream.len() {
        let (events, failed) = assemble(false, &stream.as_bytes()[..cut]);
        let whole = events
            .iter()
            .any(|event| matches!(event, ChatEvent::Block(_)));
        let kind = failed.map(|error| error.kind());
        let expected = (cut < stream.len()).then_some(LlmErrorKind::Interrupted);
        assert_eq!(
            (whole, kind),
            (cut == stream.len(), expected),
            "cut at {cut}"
        );
    }
}

#[test]
fn items_of_the_final_event_are_read() {
    let whole = response("completed", &output());
    let end = json!({"type": "response.completed", "response": whole});
    let (events, _) = assemble(false, format!("data: {end}\n\n").as_bytes());
    assert_eq!(folded(events), answered(false, &whole).unwrap());
}

#[test]
fn stop_reasons_are_mapped() {
    let text = json!([{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}]);
    let mut cases = vec![
        (response("completed", &text), StopReason::EndTurn),
        (response("completed", &output()), StopReason::ToolCalls),
    ];
    for (reason, stop) in [
        ("max_output_tokens", StopReason::Length),
        ("content_filter", StopReason::ContentFilter),
        ("tired", StopReason::Other("tired".to_owned())),
    ] {
        let mut body = response("incomplete", &text);
        body["incomplete_details"] = json!({"reason": reason});
        cases.push((body, stop));
    }
    for (body, stop) in cases {
        let completion = answered(false, &body).unwrap();
        assert_eq!(completion.stop, stop);
        let stream = streamed(&body["output"], &body);
        assert_eq!(folded(assemble(false, stream.as_bytes()).0), completion);
    }
}

#[test]
fn failures_are_classified() {
    let failed = |code: &str, message: &str| {
        let mut body = response("failed", &json!([]));
        body["error"] = json!({"code": code, "message": message});
        body
    };
    for (body, expected) in [
        (failed("server_error", "broken"), LlmErrorKind::Server),
        (
            failed("rate_limit_exceeded", "slow"),
            LlmErrorKind::RateLimited,
        ),
        (
            failed("context_length_exceeded", "long"),
            LlmErrorKind::ContextOverflow,
        ),
        (response("cancelled", &json!([])), LlmErrorKind::Server),
    ] {
        assert_eq!(answered(false, &body).unwrap_err().kind(), expected);
        let event = json!({"type": "response.failed", "response": body});
        let error = assemble(false, format!("data: {event}\n\n").as_bytes())
            .1
            .unwrap();
        assert_eq!(error.kind(), expected, "{error}");
    }
    let event =
        json!({"type": "error", "code": "rate_limit_exceeded", "message": "slow", "param": null});
    let error = assemble(false, format!("event: error\ndata: {event}\n\n").as_bytes())
        .1
        .unwrap();
    assert_eq!(error.kind(), LlmErrorKind::RateLimited, "{error}");
    for body in [
        json!([]),
        json!({}),
        json!({"output": [{"type": "function_call"}], "status": "completed"}),
    ] {
        assert_eq!(
            answered(false, &body).unwrap_err().kind(),
            LlmErrorKind::Protocol,
            "{body}"
        );
    }
}

#[test]
fn calls_with_the_same_id_get_distinct_ids() {
    let call = json!({"type": "function_call", "call_id": "same", "name": "f", "arguments": ""});
    let message = answered(false, &response("completed", &json!([call, call])))
        .unwrap()
        .message;
    let calls: Vec<&ToolCall> = message.tool_calls().collect();
    assert!(calls[0].id == "same" && calls[1].id != "same" && !calls[1].has_provider_id);
}
