use cantle_core::llm::{ChatEvent, Completion, LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{AssistantBlock, ToolCall};
use cantle_core::usage::TokenUsage;
use serde_json::{Value, json};

use super::AnthropicAssembler;
use crate::http::testing::{self, folded};

/// As Anthropic streams it: thinking with its signature, text, and two calls.
const RECORDED: &str = include_str!("recorded.sse");

/// The same answer in one piece.
fn whole() -> Value {
    json!({
        "id": "msg_1", "type": "message", "role": "assistant", "model": "claude-x-20260101",
        "content": [
            {"type": "thinking", "thinking": "Where is it?", "signature": "c2ln"},
            {"type": "redacted_thinking", "data": "ZGF0YQ=="},
            {"type": "text", "text": "Grüße, 世界."},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at":"größe"}},
            {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
        ],
        "stop_reason": "tool_use", "stop_sequence": null,
        "usage": {"input_tokens": 12, "cache_creation_input_tokens": 30,
            "cache_read_input_tokens": 400, "output_tokens": 55},
    })
}

fn assemble(stream: &[u8]) -> (Vec<ChatEvent>, Option<LlmError>) {
    testing::assemble(AnthropicAssembler::default(), stream)
}

fn answered(body: &Value) -> Result<Completion, LlmError> {
    testing::answered(AnthropicAssembler::default(), body)
}

#[test]
fn a_recorded_stream_gives_the_same_turn_as_its_body() {
    let (events, failed) = assemble(RECORDED.as_bytes());
    assert!(failed.is_none(), "{failed:?}");
    insta::assert_debug_snapshot!(events);
    let streamed = folded(events);
    assert_eq!(streamed, answered(&whole()).unwrap());
    assert_eq!(
        streamed.usage,
        Some(TokenUsage {
            input: 12,
            cache_read: 400,
            cache_write: 30,
            answer: 55,
            reasoning: 0
        })
    );
    assert_eq!(streamed.served_by.as_deref(), Some("claude-x-20260101"));
}

#[test]
fn later_counts_never_lower_earlier_ones() {
    let later = RECORDED.replace(
        "\"usage\":{\"output_tokens\":55",
        "\"usage\":{\"input_tokens\":0,\"cache_read_input_tokens\":0,\"output_tokens\":55",
    );
    assert_ne!(later, RECORDED);
    let counted = folded(assemble(later.as_bytes()).0).usage;
    assert_eq!(counted, answered(&whole()).unwrap().usage);
}

#[test]
fn a_stream_cut_before_its_end_is_interrupted() {
    let delta = RECORDED.find("event: message_delta").unwrap();
    let (_, rest) = RECORDED.split_at(delta);
    let sent_end = delta + rest.find("\n\n").unwrap() + 2;
    for cut in 0..=RECORDED.len() {
        let (events, failed) = assemble(&RECORDED.as_bytes()[..cut]);
        let whole = events
            .iter()
            .any(|event| matches!(event, ChatEvent::Block(_)));
        let kind = failed.map(|error| error.kind());
        let expected = (cut < sent_end).then_some(LlmErrorKind::Interrupted);
        assert_eq!((whole, kind), (cut >= sent_end, expected), "cut at {cut}");
    }
}

#[test]
fn stop_reasons_are_mapped() {
    for (reason, expected) in [
        ("end_turn", StopReason::EndTurn),
        ("stop_sequence", StopReason::EndTurn),
        ("tool_use", StopReason::ToolCalls),
        ("max_tokens", StopReason::Length),
        ("refusal", StopReason::ContentFilter),
        ("pause_turn", StopReason::Other("pause_turn".to_owned())),
    ] {
        let mut body = whole();
        body["stop_reason"] = reason.into();
        assert_eq!(answered(&body).unwrap().stop, expected);
    }
}

#[test]
fn an_answer_that_fills_the_context_window_is_an_overflow() {
    let mut body = whole();
    body["stop_reason"] = "model_context_window_exceeded".into();
    let error = answered(&body).unwrap_err();
    assert_eq!(error.kind(), LlmErrorKind::ContextOverflow);
}

#[test]
fn unknown_blocks_are_kept() {
    let block = json!({"type": "server_tool_use", "id": "s", "name": "web", "input": {"q": "x"}});
    let mut body = whole();
    body["content"] = json!([block]);
    let stream = "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"server_tool_use\",\"id\":\"s\",\"name\":\"web\",\"input\":{}}}\n\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"q\\\":\"}}\n\n\
        data: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"\\\"x\\\"}\"}}\n\n\
        data: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"}}\n\n";
    for completion in [
        answered(&body).unwrap(),
        folded(assemble(stream.as_bytes()).0),
    ] {
        let [AssistantBlock::Opaque { data }] = &completion.message.blocks[..] else {
            panic!("{completion:?}");
        };
        assert_eq!(serde_json::from_str::<Value>(data).unwrap(), block);
    }
}

#[test]
fn thinking_without_a_signature_is_plain_reasoning() {
    for block in [
        json!({"type": "thinking", "thinking": "Hm."}),
        json!({"type": "thinking", "thinking": "Hm.", "signature": null}),
    ] {
        let mut body = whole();
        body["content"] = json!([block]);
        let content = "Hm.".to_owned();
        let blocks = answered(&body).unwrap().message.blocks;
        assert_eq!(blocks, [AssistantBlock::Reasoning { content }]);
    }
}

#[test]
fn calls_with_the_same_id_get_distinct_ids() {
    let call = json!({"type": "tool_use", "id": "same", "name": "f", "input": {}});
    let mut body = whole();
    body["content"] = json!([call, call]);
    let message = answered(&body).unwrap().message;
    let calls: Vec<&ToolCall> = message.tool_calls().collect();
    assert!(calls[0].id == "same" && calls[1].id != "same" && !calls[1].has_provider_id);
}

#[test]
fn error_events_are_classified() {
    for (kind, message, expected) in [
        ("overloaded_error", "Overloaded", LlmErrorKind::Server),
        ("api_error", "Internal server error", LlmErrorKind::Server),
        ("rate_limit_error", "slow down", LlmErrorKind::RateLimited),
        ("invalid_request_error", "no", LlmErrorKind::InvalidRequest),
        (
            "invalid_request_error",
            "prompt is too long: 200251 tokens > 200000 maximum",
            LlmErrorKind::ContextOverflow,
        ),
        ("request_too_large", "no", LlmErrorKind::ContextOverflow),
    ] {
        let error = json!({"type": "error", "error": {"type": kind, "message": message}});
        let (start, _) = RECORDED.split_once("event: content_block_stop").unwrap();
        for stream in [
            format!("event: error\ndata: {error}\n\n"),
            format!("{start}event: error\ndata: {error}\n\n"),
        ] {
            let failed = assemble(stream.as_bytes()).1.unwrap();
            assert_eq!(failed.kind(), expected, "{kind}: {failed}");
        }
        let failed = answered(&error).unwrap_err();
        assert_eq!(failed.kind(), expected, "{kind}: {failed}");
    }
}

#[test]
fn malformed_responses_are_protocol_errors() {
    for body in [
        json!([]),
        json!({}),
        json!({"content": []}),
        json!({"content": [1], "stop_reason": "end_turn"}),
        json!({"content": [{"type": "text"}], "stop_reason": "end_turn"}),
    ] {
        assert_eq!(
            answered(&body).unwrap_err().kind(),
            LlmErrorKind::Protocol,
            "{body}"
        );
    }
    for stream in [
        "data: no JSON\n\n",
        "data: {\"type\":\"content_block_delta\",\"index\":3,\"delta\":{\"type\":\"text_delta\",\"text\":\"x\"}}\n\n",
        "data: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\"}}\n\n",
    ] {
        let failed = assemble(stream.as_bytes()).1.unwrap();
        assert_eq!(failed.kind(), LlmErrorKind::Protocol, "{stream}");
    }
}
