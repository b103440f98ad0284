//! Conversations in the format of OpenAI's fine-tuning: one JSON object with `messages` and `tools` in each line.

use cantle::agent::Trajectory;
use cantle::core::content::Media;
use cantle::core::message::{AssistantMessage, Message};
use serde_json::{Value, json};

use super::content::{answer, content, data_url, object, plain_message, tools};

/// Returns the lines of a run and its sub-agents, a conversation each.
pub(super) fn lines(trajectory: &Trajectory) -> String {
    let mut lines = String::new();
    add(trajectory, &mut lines);
    lines
}

fn add(trajectory: &Trajectory, lines: &mut String) {
    let tools = tools(&trajectory.tools);
    for conversation in &trajectory.conversations {
        // What follows the last answer is nothing to learn from.
        let is_answer = |message: &Message| matches!(message, Message::Assistant(_));
        let Some(last) = conversation.iter().rposition(is_answer) else {
            continue;
        };
        let messages: Vec<_> = conversation.iter().take(last + 1).map(message).collect();
        let line = json!({"messages": messages, "tools": tools});
        lines.push_str(&line.to_string());
        lines.push('\n');
    }
    for sub_agent in &trajectory.sub_agents {
        add(sub_agent, lines);
    }
}

fn message(message: &Message) -> Value {
    match message {
        Message::System(message) => plain_message("system", &message.content, image),
        Message::User(message) => plain_message("user", &message.content, image),
        Message::Assistant(message) => assistant(message),
        Message::Tool(message) => json!({
            "role": "tool",
            "tool_call_id": message.tool_call_id,
            "content": content(&message.content, image),
        }),
    }
}

fn assistant(message: &AssistantMessage) -> Value {
    let calls: Vec<_> = message
        .tool_calls()
        .map(|call| {
            let function = json!({"name": call.name, "arguments": call.arguments});
            json!({"id": call.id, "type": "function", "function": function})
        })
        .collect();
    let answer = answer(message);
    // A message with calls may have no content, one without has to.
    let text = (!answer.is_empty() || calls.is_empty()).then(|| content(&answer, image));
    object(json!({
        "role": "assistant",
        "content": text,
        "tool_calls": Some(calls).filter(|calls| !calls.is_empty()),
    }))
}

fn image(media: &Media) -> Value {
    json!({"type": "image_url", "image_url": {"url": data_url(media)}})
}
