//! A turn in OpenAI's Responses.

use serde_json::{Value, json};

use super::script::{ToolCall, Usage};
use super::wire::{ARGUMENT_CHARS, Answer, CREATED, Part, pieces, response_id, set, set_some};

/// Encrypted content of all reasoning items.
const ENCRYPTED: &str = "ZW5jcnlwdGVk";

/// Returns the answer as one JSON object.
pub(super) fn whole(answer: &Answer<'_>) -> Value {
    let items: Vec<Value> = items(answer).into_iter().map(|item| item.whole).collect();
    finished(answer, &json!(items))
}

/// Returns the answer as a stream.
pub(super) fn events(answer: &Answer<'_>) -> Vec<Part> {
    let created = response(answer, "in_progress", &json!([]));
    let mut events = vec![json!({"type": "response.created", "response": created})];
    let mut output = Vec::new();
    for (index, item) in items(answer).into_iter().enumerate() {
        let mut push = |kind: &str, field: &str, value: &Value| {
            let mut event = json!({"type": kind, "output_index": index});
            set(&mut event, field, value);
            events.push(event);
        };
        push("response.output_item.added", "item", &item.opening);
        for piece in &item.pieces {
            push(item.delta, "delta", &json!(piece));
        }
        push("response.output_item.done", "item", &item.whole);
        output.push(item.whole);
    }
    let mut parts: Vec<Part> = events
        .iter()
        .map(|event| answer.named(event, None))
        .collect();
    let finished = finished(answer, &json!(output));
    let status = finished.get("status").and_then(Value::as_str);
    let kind = format!("response.{}", status.unwrap_or_default());
    let last = json!({"type": kind, "response": finished});
    parts.push(answer.named(&last, answer.turn.usage));
    parts
}

/// Output item: its opening form, its deltas with their event type, and its final form.
struct Item {
    opening: Value,
    delta: &'static str,
    pieces: Vec<String>,
    whole: Value,
}

fn items(answer: &Answer<'_>) -> Vec<Item> {
    let turn = answer.turn;
    let name = |kind: &str, index: usize| format!("{kind}_{}_{index}", answer.turn_index);
    let mut items = Vec::new();
    if !turn.reasoning.is_empty() {
        let item = |summary: Value| {
            json!({"type": "reasoning", "id": name("rs", 0), "summary": summary,
                "encrypted_content": ENCRYPTED})
        };
        items.push(Item {
            opening: item(json!([])),
            delta: "response.reasoning_summary_text.delta",
            pieces: pieces(&turn.reasoning, turn.delta_chars),
            whole: item(json!([{"type": "summary_text", "text": turn.reasoning}])),
        });
    }
    if !turn.text.is_empty() {
        let item = |content: Value| json!({"type": "message", "id": name("msg", 0), "role": "assistant", "content": content});
        items.push(Item {
            opening: item(json!([])),
            delta: "response.output_text.delta",
            pieces: pieces(&turn.text, turn.delta_chars),
            whole: item(json!([{"type": "output_text", "text": turn.text, "annotations": []}])),
        });
    }
    for (index, call) in turn.calls.iter().enumerate() {
        let item = |arguments: &str| function_call(answer, index, call, arguments);
        let size = turn.delta_chars.or(Some(ARGUMENT_CHARS));
        items.push(Item {
            opening: item(""),
            delta: "response.function_call_arguments.delta",
            pieces: pieces(&call.arguments, size),
            whole: item(&call.arguments),
        });
    }
    items
}

fn function_call(answer: &Answer<'_>, index: usize, call: &ToolCall, arguments: &str) -> Value {
    let id = format!("fc_{}_{index}", answer.turn_index);
    let mut item =
        json!({"type": "function_call", "id": id, "name": call.name, "arguments": arguments});
    set_some(&mut item, "call_id", answer.call_id(index, call));
    item
}

fn finished(answer: &Answer<'_>, output: &Value) -> Value {
    let reason = match answer.finish_reason() {
        "stop" | "tool_calls" => None,
        "length" => Some("max_output_tokens"),
        other => Some(other),
    };
    let status = reason.map_or("completed", |_| "incomplete");
    let mut finished = response(answer, status, output);
    let details = reason.map(|reason| json!({"reason": reason}));
    set_some(&mut finished, "incomplete_details", details);
    set_some(&mut finished, "usage", answer.turn.usage.map(usage_json));
    finished
}

fn response(answer: &Answer<'_>, status: &str, output: &Value) -> Value {
    json!({
        "id": response_id(answer.turn_index, answer.attempt),
        "object": "response",
        "created_at": CREATED,
        "status": status,
        "error": null,
        "incomplete_details": null,
        "model": answer.envelope.model,
        "output": output,
    })
}

fn usage_json(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached.unwrap_or(0)},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning.unwrap_or(0)},
        "total_tokens": usage.prompt + usage.completion,
    })
}
