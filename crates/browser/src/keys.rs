//! Keys, as pages and Chromium name them.

use serde_json::{Value, json};

/// Named keys with their Windows virtual key codes, which pages read as `keyCode`, and the text that they type.
const NAMED: [(&str, u32, &str); 15] = [
    ("Enter", 13, "\r"),
    ("Tab", 9, ""),
    ("Escape", 27, ""),
    ("Backspace", 8, ""),
    ("Delete", 46, ""),
    ("Space", 32, " "),
    ("ArrowLeft", 37, ""),
    ("ArrowUp", 38, ""),
    ("ArrowRight", 39, ""),
    ("ArrowDown", 40, ""),
    ("PageUp", 33, ""),
    ("PageDown", 34, ""),
    ("End", 35, ""),
    ("Home", 36, ""),
    ("Insert", 45, ""),
];

/// Maximum number of keys of one call.
const MAX_KEYS: usize = 100;

/// Returns the parameters of the key events for keys such as `Tab Control+a`.
///
/// # Errors
/// If one is unknown; the sentence is for the model.
pub(crate) fn events(keys: &str) -> Result<Vec<Value>, String> {
    let keys: Vec<&str> = keys.split_whitespace().collect();
    if keys.is_empty() || keys.len() > MAX_KEYS {
        return Err(format!("Name 1 to {MAX_KEYS} keys."));
    }
    let events: Result<Vec<_>, _> = keys.into_iter().map(press).collect();
    Ok(events?.into_iter().flatten().collect())
}

/// Returns the events of one key, pressed and released.
fn press(chord: &str) -> Result<[Value; 2], String> {
    let (modifier_names, key) = match chord.rsplit_once('+') {
        Some((modifiers, key)) if !key.is_empty() => (modifiers, key),
        // The key of the plus sign.
        Some((modifiers, _)) => (modifiers.strip_suffix('+').unwrap_or_default(), "+"),
        None => ("", chord),
    };
    let mut modifiers = 0;
    for name in modifier_names.split('+').filter(|name| !name.is_empty()) {
        modifiers |= match name.to_ascii_lowercase().as_str() {
            "alt" => 1,
            "control" | "ctrl" => 2,
            "meta" => 4,
            "shift" => 8,
            _ => return Err(unknown(name)),
        };
    }
    let mut named = NAMED.into_iter();
    let named = named.find(|(name, ..)| name.eq_ignore_ascii_case(key));
    let mut chars = key.chars();
    let (name, code, text) = match (named, chars.next(), chars.next()) {
        (Some((name, code, text)), ..) => (if name == "Space" { " " } else { name }, code, text),
        (None, Some(char), None) => {
            let upper = Some(char.to_ascii_uppercase()).filter(char::is_ascii_alphanumeric);
            (key, upper.map_or(0, u32::from), key)
        }
        _ => return Err(unknown(key)),
    };
    // With Control, Alt or Meta, a key is a shortcut and types nothing.
    let text = if modifiers & 7 == 0 { text } else { "" };
    let event = |kind| {
        json!({
            "type": kind, "key": name, "code": if name == " " { "Space" } else { name },
            "windowsVirtualKeyCode": code, "modifiers": modifiers, "text": text,
        })
    };
    let mut up = event("keyUp");
    if let Some(up) = up.as_object_mut() {
        up.remove("text");
    }
    let down = match text {
        "" => "rawKeyDown",
        _ => "keyDown",
    };
    Ok([event(down), up])
}

fn unknown(key: &str) -> String {
    let names: Vec<&str> = NAMED.iter().map(|(name, ..)| *name).collect();
    format!(
        "`{key}` is no key. There are single characters and {}, with Control+, Shift+, Alt+ and Meta+ before them. Type \
         text with the tool for input.",
        names.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_pressed_and_released_in_order() {
        let events = events("Tab ctrl+A + x").unwrap();
        let shown = |event: &Value| {
            let text = |name: &str| event[name].as_str().unwrap_or("-").to_owned();
            let modifiers = event["modifiers"].to_string();
            [text("type"), text("key"), text("text"), modifiers].join(" ")
        };
        let shown: Vec<String> = events.iter().map(shown).collect();
        let expected = [
            "rawKeyDown Tab  0",
            "keyUp Tab - 0",
            "rawKeyDown A  2",
            "keyUp A - 2",
            "keyDown + + 0",
            "keyUp + - 0",
            "keyDown x x 0",
            "keyUp x - 0",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn unknown_keys_are_named() {
        let error = events("Enter Foo").unwrap_err();
        assert!(error.starts_with("`Foo` is no key."), "{error}");
        assert!(events("Hyper+a").unwrap_err().starts_with("`Hyper`"));
        assert!(events(" ").is_err());
    }
}
