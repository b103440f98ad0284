//! Human-readable difference of two JSON documents.

use serde_json::Value;

/// Characters of an excerpt before and after the difference.
const CONTEXT_BEFORE: usize = 40;
const CONTEXT_AFTER: usize = 160;

/// Returns the path of the first difference, with excerpts of both documents.
pub(super) fn describe_difference(recorded: &[u8], current: &[u8]) -> String {
    let parse = |json| serde_json::from_slice::<Value>(json).unwrap_or_default();
    let (recorded, current) = (parse(recorded), parse(current));
    let mut path = String::new();
    let values = first_difference(&recorded, &current, &mut path);
    let (recorded, current) = match values {
        (Some(Value::String(recorded)), Some(Value::String(current))) => {
            excerpts(recorded, current)
        }
        (recorded, current) => {
            let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
            excerpts(&text(recorded), &text(current))
        }
    };
    let path = path.trim_start_matches('.');
    format!("`{path}`\n  recorded: {recorded}\n  now:      {current}")
}

fn first_difference<'a>(
    recorded: &'a Value,
    current: &'a Value,
    path: &mut String,
) -> (Option<&'a Value>, Option<&'a Value>) {
    match (recorded, current) {
        (Value::Object(before), Value::Object(after)) => {
            let names = before.keys().chain(after.keys());
            let differs = |name: &&String| before.get(*name) != after.get(*name);
            if let Some(name) = { names }.find(differs) {
                path.push('.');
                path.push_str(name);
                return match (before.get(name), after.get(name)) {
                    (Some(recorded), Some(current)) => first_difference(recorded, current, path),
                    missing_value => missing_value,
                };
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            let longest = before.len().max(after.len());
            if let Some(at) = (0..longest).find(|&at| before.get(at) != after.get(at)) {
                path.push_str(&format!("[{at}]"));
                return match (before.get(at), after.get(at)) {
                    (Some(recorded), Some(current)) => first_difference(recorded, current, path),
                    missing_value => missing_value,
                };
            }
        }
        _ => {}
    }
    (Some(recorded), Some(current))
}

/// Returns excerpts of two texts around their first difference.
fn excerpts(recorded: &str, current: &str) -> (String, String) {
    let common = recorded
        .chars()
        .zip(current.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let start = common.saturating_sub(CONTEXT_BEFORE);
    let excerpt = |text: &str| {
        let mut excerpt: String = text
            .chars()
            .skip(start)
            .take(common - start + CONTEXT_AFTER)
            .collect();
        if start > 0 {
            excerpt.insert(0, '…');
        }
        if text.chars().count() > common + CONTEXT_AFTER {
            excerpt.push('…');
        }
        excerpt.replace('\n', "\\n")
    };
    (excerpt(recorded), excerpt(current))
}
