use cantle_core::llm::{ChatEvent, LlmErrorKind, StopReason};
use cantle_core::message::{AssistantBlock, ToolCall};
use reqwest::header::HeaderMap;
use serde_json::{Value, json};

use super::ChatAssembler;
use crate::chat::wire::ChatMessage;
use crate::http::TurnAssembler as _;
use crate::http::testing::{
    answered, assemble, folded, reasoning, redacted_reasoning, signed_reasoning,
};

/// Returns the deltas and blocks of a message streamed in `pieces`.
fn streamed(pieces: Vec<Value>) -> (Vec<ChatEvent>, Vec<AssistantBlock>) {
    let mut turn = ChatAssembler::default();
    let mut deltas = Vec::new();
    for piece in pieces {
        let piece: ChatMessage = serde_json::from_value(piece).unwrap();
        turn.add(piece, |event| deltas.push(event));
    }
    (deltas, blocks(turn))
}

fn blocks(mut turn: ChatAssembler) -> Vec<AssistantBlock> {
    turn.is_complete = true;
    let events = turn.finish(&HeaderMap::new()).unwrap();
    let blocks = events.into_iter().filter_map(|event| match event {
        ChatEvent::Block(block) => Some(block),
        _ => None,
    });
    blocks.collect()
}

fn call(id: &str, name: &str, arguments: &str) -> AssistantBlock {
    AssistantBlock::ToolCall(ToolCall::new(Some(id.to_owned()), name, arguments))
}

#[test]
fn blocks_are_ordered_reasoning_text_calls() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"content": "Hel"}),
        json!({"reasoning_content": "Hm."}),
        json!({"content": "lo"}),
    ]);
    assert_eq!(
        blocks,
        [
            reasoning("Hm."),
            AssistantBlock::text("Hello"),
            call("a", "f", "{}"),
        ]
    );
}

#[test]
fn reasoning_is_read_once_from_either_field() {
    let (deltas, blocks) = streamed(vec![
        json!({"reasoning": "a", "reasoning_content": "a"}),
        json!({"reasoning": "b", "reasoning_content": null}),
        json!({"reasoning": "c", "reasoning_content": ""}),
    ]);
    assert_eq!(deltas.len(), 3);
    assert_eq!(blocks, [reasoning("abc")]);
}

#[test]
fn usage_in_the_last_choice_is_read() {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop",
        "usage": {"prompt_tokens": 9, "completion_tokens": 2, "total_tokens": 11, "cached_tokens": 4}}]});
    let stream = format!("data: {chunk}\n\n");
    let (events, error) = assemble(ChatAssembler::default(), stream.as_bytes());
    assert!(error.is_none(), "{error:?}");
    let usage = folded(events).usage.unwrap();
    assert_eq!((usage.input, usage.cache_read, usage.answer), (5, 4, 2));
}

#[test]
fn a_flag_that_there_is_no_error_is_none() {
    let choice = json!({"index": 0, "delta": {"content": "Hi"}, "finish_reason": "stop"});
    let body = json!({"error": false, "choices": [choice]});
    let stream = format!("data: {body}\n\n");
    let (events, error) = assemble(ChatAssembler::default(), stream.as_bytes());
    assert!(error.is_none(), "{error:?}");
    let streamed = folded(events);
    assert_eq!(streamed.message.text(), "Hi");
    assert_eq!(streamed, answered(ChatAssembler::default(), &body).unwrap());
}

#[test]
fn content_in_parts_is_split_into_reasoning_and_text() {
    let thinking =
        |text: &str| json!({"type": "thinking", "thinking": [{"type": "text", "text": text}]});
    let summary =
        json!({"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm. Yes."}]});
    let text = json!({"type": "text", "text": "Hello"});
    let reference = json!({"type": "reference", "reference_ids": [1]});
    for pieces in [
        vec![
            json!({"content": [thinking("Hm. ")]}),
            json!({"content": [thinking("Yes.")]}),
            json!({"content": "Hel"}),
            json!({"content": "lo"}),
        ],
        vec![json!({"content": [thinking("Hm. Yes."), text, reference]})],
        vec![json!({"content": [summary, text]})],
    ] {
        let count = pieces.len();
        let (deltas, blocks) = streamed(pieces);
        assert_eq!(deltas.len(), count.max(2));
        assert_eq!(
            blocks,
            [reasoning("Hm. Yes."), AssistantBlock::text("Hello"),]
        );
    }
}

#[test]
fn a_refusal_becomes_answer_text() {
    let (_, blocks) = streamed(vec![json!({"content": null, "refusal": "I can't."})]);
    assert_eq!(blocks, [AssistantBlock::text("I can't.")]);
}

#[test]
fn thinking_blocks_end_with_their_signature() {
    let thinking = |text: &str, signature: &str| json!({"type": "thinking", "thinking": text, "signature": signature});
    let (_, blocks) = streamed(vec![
        json!({"reasoning_content": "one ", "thinking_blocks": [thinking("one ", "")]}),
        json!({"reasoning_content": "more", "thinking_blocks": [thinking("more", "")]}),
        json!({"reasoning_content": "", "thinking_blocks": [thinking("", "sig1")]}),
        json!({"thinking_blocks": [{"type": "redacted_thinking", "data": "xyz"}]}),
        json!({"thinking_blocks": [thinking("two", "sig2")]}),
        json!({"content": "Done."}),
    ]);
    assert_eq!(
        blocks,
        [
            signed_reasoning("sig1", "one more"),
            redacted_reasoning("xyz"),
            signed_reasoning("sig2", "two"),
            AssistantBlock::text("Done."),
        ]
    );
}

#[test]
fn a_thinking_block_without_signature_is_plain_reasoning() {
    let (_, blocks) = streamed(vec![
        json!({"reasoning_content": "x", "thinking_blocks": [{"type": "thinking", "thinking": "x"}]}),
    ]);
    assert_eq!(blocks, [reasoning("x")]);
}

#[test]
fn reasoning_is_kept_if_all_blocks_are_redacted() {
    let (_, blocks) = streamed(vec![json!({
        "reasoning_content": "x",
        "thinking_blocks": [{"type": "redacted_thinking", "data": "d"}]
    })]);
    assert_eq!(blocks, [reasoning("x"), redacted_reasoning("d"),]);
}

#[test]
fn deltas_of_parallel_calls_are_joined_by_index() {
    let piece = |index: i64, arguments: &str| json!({"tool_calls": [{"index": index, "function": {"arguments": arguments}}]});
    // A gateway to Bedrock begins at -1 if there is no text before the calls.
    for (first, second) in [(0, 1), (-1, 0)] {
        let (deltas, blocks) = streamed(vec![
            json!({"tool_calls": [{"index": first, "id": "a", "function": {"name": "f", "arguments": ""}}]}),
            piece(first, "{\"x\""),
            json!({"tool_calls": [{"index": second, "id": "b", "function": {"name": "g", "arguments": null}}]}),
            piece(second, "{}"),
            piece(first, ":1}"),
        ]);
        assert_eq!(blocks, [call("a", "f", "{\"x\":1}"), call("b", "g", "{}")]);
        assert_eq!(
            deltas.last(),
            Some(&ChatEvent::ToolCallDelta {
                index: 0,
                name: None,
                arguments: ":1}".to_owned()
            })
        );
    }
}

#[test]
fn arguments_sent_as_an_object_become_text() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": {"x": 1}}}]}),
    ]);
    assert_eq!(blocks, [call("a", "f", "{\"x\":1}")]);
}

#[test]
fn deltas_without_index_are_joined_by_id_or_to_the_last_call() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{"}}]}),
        json!({"tool_calls": [{"id": "b", "function": {"name": "g", "arguments": "["}}]}),
        json!({"tool_calls": [{"id": "a", "function": {"arguments": "}"}}]}),
        json!({"tool_calls": [{"function": {"arguments": "]"}}]}),
    ]);
    assert_eq!(blocks, [call("a", "f", "{}"), call("b", "g", "[]")]);
}

#[test]
fn complete_calls_with_the_same_index_are_separate() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"index": 0, "id": "b", "function": {"name": "f", "arguments": "[]"}}]}),
    ]);
    assert_eq!(blocks, [call("a", "f", "{}"), call("b", "f", "[]")]);
}

#[test]
fn complete_calls_with_the_same_index_and_no_id_are_separate() {
    let piece = |name: &str, arguments: &str| json!({"tool_calls": [{"index": 0, "id": "", "function": {"name": name, "arguments": arguments}}]});
    let (_, blocks) = streamed(vec![
        piece("f", "{\"x\":1}"),
        piece("f", "{"),
        piece("f", "}"),
        piece("f", ""),
        piece("g", "{}"),
    ]);
    let calls = blocks.iter().map(|block| match block {
        AssistantBlock::ToolCall(call) => (call.name.as_str(), call.arguments.as_str()),
        other => panic!("{other:?}"),
    });
    assert_eq!(
        calls.collect::<Vec<_>>(),
        [("f", "{\"x\":1}"), ("f", "{}"), ("g", "{}")]
    );
}

#[test]
fn repeated_ids_and_names_are_read_once() {
    let piece = |arguments: &str| json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}]});
    let (_, blocks) = streamed(vec![piece("{"), piece("}")]);
    assert_eq!(blocks, [call("a", "f", "{}")]);
}

#[test]
fn calls_without_ids_get_unique_ids() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}),
        json!({"tool_calls": [{"function": {"name": "g", "arguments": "{}"}}]}),
    ]);
    let [AssistantBlock::ToolCall(f), AssistantBlock::ToolCall(g)] = &blocks[..] else {
        panic!("{blocks:?}");
    };
    assert_eq!((f.name.as_str(), g.name.as_str()), ("f", "g"));
    assert!(!f.has_provider_id && !g.has_provider_id && f.id != g.id);
}

#[test]
fn a_repeated_id_is_replaced() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "1"}}]}),
        json!({"tool_calls": [{"index": 1, "id": "a", "function": {"name": "f", "arguments": "2"}}]}),
    ]);
    let [
        AssistantBlock::ToolCall(first),
        AssistantBlock::ToolCall(second),
    ] = &blocks[..]
    else {
        panic!("{blocks:?}");
    };
    assert_eq!((first.id.as_str(), first.has_provider_id), ("a", true));
    assert!(!second.has_provider_id && second.id != "a");
    assert_eq!(second.arguments, "2");
}

#[test]
fn call_signatures_are_kept() {
    let (_, blocks) = streamed(vec![
        json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"},
            "provider_specific_fields": {"thought_signature": "sig"}}]}),
        json!({"tool_calls": [{"index": 0, "provider_specific_fields": null}]}),
    ]);
    let mut signed = ToolCall::new(Some("a".to_owned()), "f", "{}");
    signed.signature = Some("sig".to_owned());
    assert_eq!(blocks, [AssistantBlock::ToolCall(signed)]);
}

fn stop(reason: Option<&str>, calls: bool) -> StopReason {
    let mut turn = ChatAssembler {
        finish_reason: reason.map(str::to_owned),
        ..ChatAssembler::default()
    };
    if calls {
        let piece = json!({"tool_calls": [{"id": "a", "function": {"name": "f"}}]});
        turn.add(serde_json::from_value(piece).unwrap(), |_| ());
    }
    turn.is_complete = true;
    match turn.finish(&HeaderMap::new()).unwrap().pop() {
        Some(ChatEvent::Finished(end)) => end.stop,
        other => panic!("{other:?}"),
    }
}

#[test]
fn stop_reasons() {
    assert_eq!(stop(Some("stop"), false), StopReason::EndTurn);
    assert_eq!(stop(None, false), StopReason::EndTurn);
    assert_eq!(stop(None, true), StopReason::ToolCalls);
    assert_eq!(stop(Some("tool_calls"), true), StopReason::ToolCalls);
    assert_eq!(stop(Some("tool_calls"), false), StopReason::ToolCalls);
    assert_eq!(stop(Some("stop"), true), StopReason::ToolCalls);
    assert_eq!(stop(Some("eos"), false), StopReason::EndTurn);
    assert_eq!(stop(Some("eos"), true), StopReason::ToolCalls);
    assert_eq!(stop(Some("length"), true), StopReason::Length);
    assert_eq!(stop(Some("max_tokens"), false), StopReason::Length);
    assert_eq!(
        stop(Some("content_filter"), false),
        StopReason::ContentFilter
    );
    assert_eq!(
        stop(Some("recitation"), false),
        StopReason::Other("recitation".to_owned())
    );
}

#[test]
fn an_error_as_stop_reason_fails() {
    for (reason, kind) in [
        ("error", LlmErrorKind::Server),
        ("abort", LlmErrorKind::Server),
        ("insufficient_system_resource", LlmErrorKind::Server),
        ("model_length", LlmErrorKind::ContextOverflow),
        (
            "model_context_window_exceeded",
            LlmErrorKind::ContextOverflow,
        ),
    ] {
        let turn = ChatAssembler {
            finish_reason: Some(reason.to_owned()),
            ..ChatAssembler::default()
        };
        let error = turn.finish(&HeaderMap::new()).unwrap_err();
        assert_eq!(error.kind(), kind, "{reason}");
    }
}

#[test]
fn reasoning_details_are_merged_and_kept() {
    let (deltas, blocks) = streamed(vec![
        json!({"reasoning": "one ", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "one ", "signature": null}]}),
        json!({"reasoning": "more", "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "more", "signature": null}]}),
        json!({"reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "", "signature": "sig"}]}),
        json!({"reasoning_details": [{"type": "reasoning.encrypted", "index": 1, "data": "xyz", "id": "r"}]}),
        json!({"content": "Done."}),
    ]);
    assert_eq!(deltas.len(), 3);
    let [
        AssistantBlock::Reasoning { content },
        AssistantBlock::Opaque { data },
        AssistantBlock::Text { .. },
    ] = &blocks[..]
    else {
        panic!("{blocks:?}");
    };
    assert_eq!(content, "one more");
    let details: Value = serde_json::from_str(data).unwrap();
    assert_eq!(
        details,
        json!({"reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "one more", "signature": "sig"},
            {"type": "reasoning.encrypted", "index": 1, "data": "xyz", "id": "r"},
        ]})
    );
}

#[test]
fn geminis_signature_field_is_read() {
    let (_, blocks) = streamed(vec![json!({"tool_calls": [{
        "index": 0, "id": "a", "function": {"name": "f", "arguments": "{}"},
        "extra_content": {"google": {"thought_signature": "sig"}},
    }]})]);
    let mut expected = ToolCall::new(Some("a".to_owned()), "f", "{}");
    expected.signature = Some("sig".to_owned());
    assert_eq!(blocks, [AssistantBlock::ToolCall(expected)]);
}

#[test]
fn log_probabilities_are_kept_with_and_without_streaming() {
    let token = |token: &str| json!({"token": token, "logprob": -0.5, "top_logprobs": []});
    let both = json!({"content": [token("Hel"), token("lo")]});
    let chunks = [
        json!({"delta": {"content": "Hel"}, "logprobs": {"content": [token("Hel")], "refusal": null}}),
        json!({"delta": {"content": "lo"}, "logprobs": {"content": [token("lo")], "refusal": null}}),
        json!({"delta": {"content": ""}, "logprobs": null, "finish_reason": "stop"}),
    ];
    let stream = chunks.map(|chunk| format!("data: {}\n\n", json!({"choices": [chunk]})));
    let (streamed, _) = assemble(ChatAssembler::default(), stream.concat().as_bytes());
    let body = json!({"choices": [{"message": {"content": "Hello"}, "logprobs": both}]});
    let whole = answered(ChatAssembler::default(), &body).unwrap();
    for completion in [folded(streamed), whole] {
        let metadata = Value::Object(completion.message.metadata);
        assert_eq!(metadata, json!({"logprobs": both}));
    }
}
