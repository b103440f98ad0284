//! The XML-like text of results.

/// Escapes text for an element.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

/// Changes what would end the element that marks a page as data; everything else stays readable.
pub(crate) fn defuse(text: &str) -> String {
    let mut defused = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("</") {
        defused.push_str(before);
        let name: String = after.trim_start().chars().take(9).collect();
        let name = name.to_ascii_lowercase();
        let ends_result = name.starts_with("body") || name.starts_with("web_fetch");
        defused.push_str(if ends_result { "<\\/" } else { "</" });
        rest = after;
    }
    defused.push_str(rest);
    defused
}
