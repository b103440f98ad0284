//! From a response's bytes to text: charset, and HTML to Markdown.

use dom_query::Document;
use dom_smoothie::{Config, Readability, TextMode};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use crate::scan::{MAX_DEPTH, scan};

/// Maximum number of elements of a page whose main part is extracted.
const MAX_ELEMENTS: usize = 100_000;
/// Part of a page that may declare its charset (HTML, 13.2.3.2).
const CHARSET_SCAN_BYTES: usize = 1024;

/// Returns whether a declared type is text, HTML included.
pub(crate) fn is_text(content_type: &str) -> bool {
    let kind = media_type(content_type);
    kind.starts_with("text/")
        || kind.ends_with("+json")
        || kind.ends_with("+xml") && kind != "image/svg+xml"
        || matches!(
            kind.as_str(),
            "application/json"
                | "application/xml"
                | "application/javascript"
                | "application/x-ndjson"
                | "application/yaml"
                | "application/toml"
        )
}

/// Returns whether a resource is HTML, by its declared type or, without one, its content.
pub(crate) fn is_html(content_type: Option<&str>, body: &[u8]) -> bool {
    match content_type {
        Some(declared) => {
            matches!(
                media_type(declared).as_str(),
                "text/html" | "application/xhtml+xml"
            )
        }
        None => {
            let head = body.trim_ascii_start().get(..14).unwrap_or_default();
            let head = head.to_ascii_lowercase();
            head.starts_with(b"<!doctype html") || head.starts_with(b"<html")
        }
    }
}

/// Returns the type without parameters, in lower case.
pub(crate) fn media_type(content_type: &str) -> String {
    let kind = content_type.split(';').next().unwrap_or_default();
    kind.trim().to_ascii_lowercase()
}

/// Decodes text: by its byte order mark, the declared charset, the page's own declaration, or as UTF-8 if it is, else
/// as Windows-1252. Bytes that are invalid in the charset become U+FFFD.
pub(crate) fn decode(content_type: Option<&str>, body: &[u8]) -> String {
    let declared = content_type.and_then(|it| charset(it.as_bytes()));
    let in_page = || charset(body.get(..CHARSET_SCAN_BYTES).unwrap_or(body));
    let encoding = declared.or_else(in_page).unwrap_or_else(|| {
        let is_utf8 = std::str::from_utf8(body).is_ok();
        if is_utf8 { UTF_8 } else { WINDOWS_1252 }
    });
    let (text, _, _) = encoding.decode(body);
    text.into_owned()
}

/// Returns the known charset of the first `charset=` in a text.
fn charset(text: &[u8]) -> Option<&'static Encoding> {
    const KEY: &[u8] = b"charset=";
    let text = text.to_ascii_lowercase();
    let at = text.windows(KEY.len()).position(|window| window == KEY)?;
    let label = text.get(at + KEY.len()..)?.trim_ascii_start();
    let label = label
        .strip_prefix(b"\"")
        .or_else(|| label.strip_prefix(b"'"))
        .unwrap_or(label);
    let is_end = |byte: &u8| b"\"' ;/>,".contains(byte);
    Encoding::for_label(label.split(is_end).next()?)
}

/// Returns the main part of a page as Markdown. It blocks: up to some hundred milliseconds for a large page.
pub(crate) fn to_markdown(html: &str, url: &str) -> String {
    let scanned = scan(html);
    let extracted = if scanned.is_bounded {
        extract(html, url)
    } else {
        None
    };
    extracted
        .filter(|text| !text.trim().is_empty())
        .unwrap_or(scanned.text)
}

fn extract(html: &str, url: &str) -> Option<String> {
    let document = Document::from(html);
    if is_too_deep(&document) {
        return None;
    }
    let whole = document
        .md(Some(&[
            "script", "style", "noscript", "template", "svg", "nav",
        ]))
        .to_string();
    let config = Config {
        max_elements_to_parse: MAX_ELEMENTS,
        text_mode: TextMode::Markdown,
        ..Config::default()
    };
    let mut page = Readability::with_document(document, Some(url), Some(config)).ok()?;
    let Ok(article) = page.parse() else {
        return Some(whole);
    };
    let body = article.text_content.trim();
    let title = article.title.trim();
    // The title is in the head, which is not part of the article.
    let has_title = title.is_empty() || body.lines().take(3).any(|line| line.contains(title));
    Some(if has_title {
        body.to_owned()
    } else {
        format!("# {title}\n\n{body}")
    })
}

/// Whether a parsed page is nested deeper than extraction can recurse; the parser's own view, so nothing is hidden.
fn is_too_deep(document: &Document) -> bool {
    let mut pending: Vec<_> = document
        .root()
        .children()
        .into_iter()
        .map(|node| (node, 1))
        .collect();
    while let Some((node, depth)) = pending.pop() {
        // What the parser adds (`html`, `head`, `tbody`) is beyond the limit of the scan.
        if depth > MAX_DEPTH + 16 {
            return true;
        }
        pending.extend(node.children_it(false).map(|child| (child, depth + 1)));
    }
    false
}

#[cfg(test)]
mod tests;
