//! Where two pieces of JSON differ first, for people.

use serde_json::Value;

/// How much is shown of a text before and from where it differs, in characters.
const BEFORE: usize = 40;
const AFTER: usize = 160;

/// Where two texts of JSON differ first, and what stands there.
pub(super) fn shown(then: &[u8], now: &[u8]) -> String {
    let read = |json| serde_json::from_slice::<Value>(json).unwrap_or_default();
    let (then, now) = (read(then), read(now));
    let mut path = String::new();
    let (then, now) = first_difference(&then, &now, &mut path);
    let (then, now) = match (then, now) {
        (Some(Value::String(then)), Some(Value::String(now))) => excerpts(then, now),
        (then, now) => {
            let text = |value: Option<&Value>| value.map_or("nothing".to_owned(), Value::to_string);
            excerpts(&text(then), &text(now))
        }
    };
    let path = path.trim_start_matches('.');
    format!("`{path}`\n  recorded: {then}\n  now:      {now}")
}

fn first_difference<'a>(
    then: &'a Value,
    now: &'a Value,
    path: &mut String,
) -> (Option<&'a Value>, Option<&'a Value>) {
    match (then, now) {
        (Value::Object(before), Value::Object(after)) => {
            let names = before.keys().chain(after.keys());
            let differs = |name: &&String| before.get(*name) != after.get(*name);
            if let Some(name) = { names }.find(differs) {
                path.push('.');
                path.push_str(name);
                return match (before.get(name), after.get(name)) {
                    (Some(then), Some(now)) => first_difference(then, now, path),
                    one_is_missing => one_is_missing,
                };
            }
        }
        (Value::Array(before), Value::Array(after)) => {
            let longest = before.len().max(after.len());
            if let Some(at) = (0..longest).find(|&at| before.get(at) != after.get(at)) {
                path.push_str(&format!("[{at}]"));
                return match (before.get(at), after.get(at)) {
                    (Some(then), Some(now)) => first_difference(then, now, path),
                    one_is_missing => one_is_missing,
                };
            }
        }
        _ => {}
    }
    (Some(then), Some(now))
}

/// Two texts from a little before where they differ.
fn excerpts(then: &str, now: &str) -> (String, String) {
    let common = then
        .chars()
        .zip(now.chars())
        .take_while(|(a, b)| a == b)
        .count();
    let start = common.saturating_sub(BEFORE);
    let excerpt = |text: &str| {
        let mut excerpt: String = text
            .chars()
            .skip(start)
            .take(common - start + AFTER)
            .collect();
        if start > 0 {
            excerpt.insert(0, '…');
        }
        if text.chars().count() > common + AFTER {
            excerpt.push('…');
        }
        excerpt.replace('\n', "\\n")
    };
    (excerpt(then), excerpt(now))
}
