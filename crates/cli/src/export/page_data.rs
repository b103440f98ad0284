//! The data of the page's timeline: what the script shows of a run's events, and nothing else.
//!
//! Texts and names repeat, so they compress; numbers, times and ids that differ from event to event are what a long run's
//! page would mostly consist of.

use std::collections::{BTreeMap, HashMap};

use cantle::core::event::{Event, EventKind};
use serde_json::{Map, Value, json};

/// Fields of events that the script does not read.
const UNUSED: [&str; 9] = [
    "number",
    "time",
    "parent",
    "call_id",
    "tool_calls",
    "arguments_valid",
    "metadata",
    "ledger",
    "size_bytes",
];

/// Returns the events in order. A call is one event, `tool_call`, in the place of its start, with its images.
pub(super) fn timeline(
    events: &[Event],
    mut images: BTreeMap<String, Vec<String>>,
) -> serde_json::Result<Vec<Value>> {
    let mut shown: Vec<Map<String, Value>> = Vec::new();
    let mut open: HashMap<String, usize> = HashMap::new();
    for event in events {
        let Value::Object(mut fields) = serde_json::to_value(event)? else {
            continue;
        };
        fields.retain(|name, _| !UNUSED.contains(&name.as_str()));
        if let Some(seconds) = fields.get("duration_s").and_then(Value::as_f64) {
            fields.insert("duration_s".to_owned(), json!(rounded(seconds)));
        }
        match &event.kind {
            EventKind::TurnStarted { .. } => {}
            EventKind::ToolStarted { call_id, .. } => {
                fields.insert("event".to_owned(), json!("tool_call"));
                open.insert(key(event, call_id), shown.len());
                shown.push(fields);
            }
            EventKind::ToolFinished {
                call_id, arguments, ..
            } => {
                let key = key(event, call_id);
                fields.insert("event".to_owned(), json!("tool_call"));
                fields.insert("has_run".to_owned(), json!(arguments.is_none()));
                if let Some(images) = images.remove(&key) {
                    fields.insert("images".to_owned(), json!(images));
                }
                match open.remove(&key).and_then(|index| shown.get_mut(index)) {
                    Some(started) => started.append(&mut fields),
                    None => shown.push(fields),
                }
            }
            _ => shown.push(fields),
        }
    }
    Ok(shown.into_iter().map(Value::Object).collect())
}

/// Returns the name of a call in a run's images.
fn key(event: &Event, call_id: &str) -> String {
    format!("{} {call_id}", event.run)
}

/// Rounds seconds as the script shows them.
fn rounded(seconds: f64) -> f64 {
    match seconds < 1.0 {
        true => (seconds * 100.0).round() / 100.0,
        false => (seconds * 10.0).round() / 10.0,
    }
}
