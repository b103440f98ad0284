//! A turn in OpenAI's Chat Completions.

use serde_json::{Value, json};

use super::script::{ToolCall, Usage};
use super::wire::{ARGUMENT_CHARS, Answer, CREATED, Part, pieces, set, set_some};

/// Returns the answer as one JSON object.
pub(super) fn whole(answer: &Answer<'_>) -> Value {
    let turn = answer.turn;
    let mut message = json!({"role": "assistant", "content": null, "refusal": null});
    if !turn.text.is_empty() {
        set(&mut message, "content", &turn.text);
    }
    if !turn.reasoning.is_empty() {
        set(&mut message, "reasoning_content", &turn.reasoning);
    }
    if !turn.calls.is_empty() {
        let calls = turn.calls.iter().enumerate();
        let calls = calls.map(|(index, call)| tool_call(answer, index, call, &call.arguments));
        set(&mut message, "tool_calls", calls.collect::<Value>());
    }
    let choice = json!({"index": 0, "message": message, "finish_reason": answer.finish_reason()});
    let mut body = head(answer, "chat.completion", &json!([choice]));
    set_some(&mut body, "usage", turn.usage.map(usage_json));
    body
}

/// Returns the answer as a stream.
pub(super) fn events(answer: &Answer<'_>) -> Vec<Part> {
    let turn = answer.turn;
    let first = (!turn.text.is_empty()).then_some("");
    let first = json!({"role": "assistant", "content": first});
    let mut events = vec![delta(answer, &first)];
    for piece in pieces(&turn.reasoning, turn.delta_chars) {
        events.push(delta(answer, &json!({"reasoning_content": piece})));
    }
    for piece in pieces(&turn.text, turn.delta_chars) {
        events.push(delta(answer, &json!({"content": piece})));
    }
    for (index, call) in turn.calls.iter().enumerate() {
        let mut opening = tool_call(answer, index, call, "");
        set(&mut opening, "index", index);
        events.push(delta(answer, &json!({"tool_calls": [opening]})));
        for piece in pieces(&call.arguments, turn.delta_chars.or(Some(ARGUMENT_CHARS))) {
            let call = json!({"index": index, "function": {"arguments": piece}});
            events.push(delta(answer, &json!({"tool_calls": [call]})));
        }
    }
    let last = json!({"index": 0, "delta": {}, "finish_reason": answer.finish_reason()});
    events.push(chunk(answer, &json!([last]), None));
    if let Some(usage) = turn.usage.filter(|_| answer.envelope.includes_usage()) {
        let choices = match answer.style.usage_in_choice {
            true => json!([{"index": 0, "delta": {}}]),
            false => json!([]),
        };
        events.push(chunk(answer, &choices, Some(usage)));
    }
    events.push(answer.event("[DONE]", None));
    events
}

fn delta(answer: &Answer<'_>, delta: &Value) -> Part {
    let choice = json!({"index": 0, "delta": delta, "finish_reason": null});
    chunk(answer, &json!([choice]), None)
}

fn chunk(answer: &Answer<'_>, choices: &Value, usage: Option<Usage>) -> Part {
    let mut chunk = head(answer, "chat.completion.chunk", choices);
    if answer.envelope.includes_usage() {
        // All chunks except the last have a null usage.
        set(&mut chunk, "usage", usage.map(usage_json));
    }
    answer.event(&chunk.to_string(), usage)
}

fn head(answer: &Answer<'_>, object: &str, choices: &Value) -> Value {
    json!({
        "id": format!("chatcmpl-{}-{}", answer.turn_index, answer.attempt),
        "object": object,
        "created": CREATED,
        "model": answer.envelope.model,
        "choices": choices,
    })
}

fn tool_call(answer: &Answer<'_>, index: usize, call: &ToolCall, arguments: &str) -> Value {
    let function = json!({"name": call.name, "arguments": arguments});
    let mut value = json!({"type": "function", "function": function});
    set_some(&mut value, "id", answer.call_id(index, call));
    value
}

fn usage_json(usage: Usage) -> Value {
    let mut value = json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
    });
    let cached = usage.cached.map(|it| json!({"cached_tokens": it}));
    set_some(&mut value, "prompt_tokens_details", cached);
    let reasoning = usage.reasoning.map(|it| json!({"reasoning_tokens": it}));
    set_some(&mut value, "completion_tokens_details", reasoning);
    value
}
