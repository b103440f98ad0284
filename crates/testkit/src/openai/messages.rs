//! A turn in Anthropic's Messages.

use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::script::Usage;
use super::wire::{ARGUMENT_CHARS, Answer, Part, pieces, set, set_some};

/// Signature of all thinking blocks.
const SIGNATURE: &str = "c2lnbmVk";

/// Returns the answer as one JSON object.
///
/// Arguments that are not JSON are sent as a string.
pub(super) fn whole(answer: &Answer<'_>) -> String {
    let turn = answer.turn;
    let mut blocks = Vec::new();
    if !turn.reasoning.is_empty() {
        let block = json!({"type": "thinking", "thinking": turn.reasoning, "signature": SIGNATURE});
        blocks.push(block.to_string());
    }
    if !turn.text.is_empty() {
        blocks.push(json!({"type": "text", "text": turn.text}).to_string());
    }
    for (index, call) in turn.calls.iter().enumerate() {
        // Assembled as text, so that the arguments stay unchanged.
        let mut head = json!({"type": "tool_use", "name": call.name});
        set_some(&mut head, "id", answer.call_id(index, call));
        let head = head.to_string();
        let head = head.strip_suffix('}').unwrap_or(&head);
        blocks.push(format!("{head},\"input\":{}}}", json_text(&call.arguments)));
    }
    let mut message = message(answer);
    set(&mut message, "stop_reason", stop_reason(answer));
    set_some(&mut message, "usage", turn.usage.map(usage_json));
    let message = message.to_string();
    let message = message.strip_suffix('}').unwrap_or(&message);
    format!("{message},\"content\":[{}]}}", blocks.join(","))
}

fn json_text(arguments: &str) -> String {
    match serde_json::from_str::<&RawValue>(arguments) {
        Ok(raw) => raw.get().to_owned(),
        Err(_) => json!(arguments).to_string(),
    }
}

/// Returns the answer as a stream.
pub(super) fn events(answer: &Answer<'_>) -> Vec<Part> {
    let turn = answer.turn;
    let mut start = message(answer);
    set(&mut start, "content", json!([]));
    let before = turn.usage.map(|usage| Usage {
        completion: 1,
        reasoning: None,
        ..usage
    });
    set_some(&mut start, "usage", before.map(usage_json));
    let mut events = vec![json!({"type": "message_start", "message": start})];
    let mut index = 0;
    let mut block = |opening: Value, deltas: Vec<Value>| {
        events
            .push(json!({"type": "content_block_start", "index": index, "content_block": opening}));
        for delta in deltas {
            events.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        }
        events.push(json!({"type": "content_block_stop", "index": index}));
        index += 1;
    };
    if !turn.reasoning.is_empty() {
        let pieces = pieces(&turn.reasoning, turn.delta_chars).into_iter();
        let thinking = pieces.map(|piece| json!({"type": "thinking_delta", "thinking": piece}));
        let signature = json!({"type": "signature_delta", "signature": SIGNATURE});
        let opening = json!({"type": "thinking", "thinking": "", "signature": ""});
        block(opening, thinking.chain([signature]).collect());
    }
    if !turn.text.is_empty() {
        let pieces = pieces(&turn.text, turn.delta_chars).into_iter();
        let deltas = pieces.map(|piece| json!({"type": "text_delta", "text": piece}));
        block(json!({"type": "text", "text": ""}), deltas.collect());
    }
    for (number, call) in turn.calls.iter().enumerate() {
        let mut opening = json!({"type": "tool_use", "name": call.name, "input": {}});
        set_some(&mut opening, "id", answer.call_id(number, call));
        let size = turn.delta_chars.or(Some(ARGUMENT_CHARS));
        let pieces = pieces(&call.arguments, size).into_iter();
        let deltas = pieces.map(|piece| json!({"type": "input_json_delta", "partial_json": piece}));
        block(opening, deltas.collect());
    }
    let mut parts: Vec<Part> = events
        .iter()
        .map(|event| answer.named(event, None))
        .collect();
    let delta = json!({"stop_reason": stop_reason(answer), "stop_sequence": null});
    let mut last = json!({"type": "message_delta", "delta": delta});
    set_some(&mut last, "usage", turn.usage.map(usage_json));
    parts.push(answer.named(&last, turn.usage));
    parts.push(answer.named(&json!({"type": "message_stop"}), None));
    parts
}

fn message(answer: &Answer<'_>) -> Value {
    json!({
        "id": format!("msg_{}_{}", answer.turn_index, answer.attempt),
        "type": "message",
        "role": "assistant",
        "model": answer.envelope.model,
        "stop_reason": null,
        "stop_sequence": null,
    })
}

fn stop_reason<'a>(answer: &'a Answer<'_>) -> &'a str {
    match answer.finish_reason() {
        "stop" => "end_turn",
        "tool_calls" => "tool_use",
        "length" => "max_tokens",
        "content_filter" => "refusal",
        other => other,
    }
}

fn usage_json(usage: Usage) -> Value {
    let cached = usage.cached.unwrap_or(0).min(usage.prompt);
    let mut value = json!({
        "input_tokens": usage.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.completion,
    });
    let reasoning = usage.reasoning.map(|it| json!({"thinking_tokens": it}));
    set_some(&mut value, "output_tokens_details", reasoning);
    value
}
