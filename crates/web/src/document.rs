//! From a response's bytes to text: charset, and HTML to Markdown.

use dom_query::{Document, Element};
use dom_smoothie::{Config, Readability, TextMode};
use encoding_rs::{Encoding, UTF_8, WINDOWS_1252};

use crate::scan::{MAX_DEPTH, scan};

/// Maximum number of elements of a page whose main part is extracted.
const MAX_ELEMENTS: usize = 100_000;
/// Maximum of the bytes of text and URLs that extraction writes, at all levels together.
const MAX_COST: usize = 64 << 20;
/// Maximum of the bytes of the title in all its comparisons with headings.
const MAX_COMPARED: usize = 8 << 20;
/// Maximum number of attributes of an element and its parents: extraction adds those of a `div` to the one in it.
const MAX_ATTRIBUTES: usize = 2_000;
/// Elements of which extraction resolves more than `href`.
const MEDIA: [&str; 6] = ["audio", "figure", "img", "picture", "source", "video"];
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

/// Decodes text: by its byte order mark, the declared charset, the document's own declaration, or as UTF-8 if it is, else
/// as Windows-1252. Bytes that are invalid in the charset become U+FFFD.
pub(crate) fn decode(content_type: Option<&str>, body: &[u8]) -> String {
    let declared = content_type.and_then(|it| charset(it.as_bytes(), b"charset="));
    let encoding = declared.or_else(|| own_charset(content_type, body));
    let encoding = encoding.unwrap_or_else(|| {
        let is_utf8 = std::str::from_utf8(body).is_ok();
        if is_utf8 { UTF_8 } else { WINDOWS_1252 }
    });
    let (text, _, _) = encoding.decode(body);
    text.into_owned()
}

/// Returns the charset that a page or an XML document declares itself. Other text may just be about charsets.
fn own_charset(content_type: Option<&str>, body: &[u8]) -> Option<&'static Encoding> {
    let head = body.get(..CHARSET_SCAN_BYTES).unwrap_or(body);
    let may_be_page = content_type.is_none() || is_html(content_type, body);
    let of_page = may_be_page.then(|| charset(head, b"charset=")).flatten();
    let xml = head.strip_prefix(b"<?xml");
    let xml = xml.and_then(|xml| xml.split(|byte| *byte == b'>').next());
    let found = of_page.or_else(|| charset(xml?, b"encoding="))?;
    // It was read as ASCII, so UTF-16 is wrong (HTML, 13.2.3.2).
    Some(found.output_encoding())
}

/// Returns the known charset of the first `key`, such as `charset=`, in a text.
fn charset(text: &[u8], key: &[u8]) -> Option<&'static Encoding> {
    let text = text.to_ascii_lowercase();
    let at = text.windows(key.len()).position(|window| window == key)?;
    let label = text.get(at + key.len()..)?.trim_ascii_start();
    let label = label
        .strip_prefix(b"\"")
        .or_else(|| label.strip_prefix(b"'"))
        .unwrap_or(label);
    let is_end = |byte: &u8| b"\"' ;/>,".contains(byte);
    Encoding::for_label(label.split(is_end).next()?)
}

/// Returns the main part of an HTML page as Markdown, as `fetch_web_page` does. `content_type` may name the charset.
///
/// It blocks, for some seconds if a page of 5 MiB is made for that, and recurses as deep as the page is nested (up to
/// 512 levels). A page that would take more time or memory is reduced to its text.
pub fn html_to_markdown(body: &[u8], content_type: Option<&str>, url: &str) -> String {
    let html = decode(content_type, body);
    let scanned = scan(&html);
    let extracted = if scanned.is_bounded {
        extract(&html, url)
    } else {
        None
    };
    // Markdown is longer than its page only if many links are resolved.
    let limit = 2 * html.len() + (64 << 10);
    extracted
        .filter(|text| !text.trim().is_empty() && text.len() <= limit)
        .unwrap_or(scanned.text)
}

fn extract(html: &str, url: &str) -> Option<String> {
    let document = Document::from(html);
    if is_too_costly(&document, url) {
        return None;
    }
    let code_blocks = document.select("pre").length();
    let headings = document.select("h1, h2").length();
    let config = Config {
        text_mode: TextMode::Markdown,
        // It would compare the title of each block of JSON-LD with the page's own.
        disable_json_ld: true,
        ..Config::default()
    };
    let Ok(mut page) = Readability::with_document(document, Some(url), Some(config)) else {
        return Some(whole(html));
    };
    let metadata = page.get_article_metadata(None);
    if metadata.title.len().saturating_mul(headings) > MAX_COMPARED {
        return None;
    }
    let Ok(article) = page.parse() else {
        return Some(whole(html));
    };
    // Of a page in several parts, one may be taken for all of it.
    let is_complete = article.content.matches("<pre").count() >= code_blocks;
    let body = match is_complete {
        true => article.text_content.to_string(),
        false => whole(html),
    };
    let (body, title) = (body.trim(), article.title.trim());
    // The title is in the head, which is not part of the article.
    let has_title = title.is_empty() || body.lines().take(3).any(|line| line.contains(title));
    Some(match has_title {
        true => body.to_owned(),
        false => format!("# {title}\n\n{body}"),
    })
}

/// Returns a page as a whole, but for its navigation.
fn whole(html: &str) -> String {
    let skipped = ["script", "style", "noscript", "template", "svg", "nav"];
    Document::from(html).md(Some(&skipped)).to_string()
}

/// Whether the work on a parsed page is not bounded by its size.
///
/// This is the parser's own view, so nothing is hidden. Extraction recurses to the page's depth; each level of a list
/// or quote is written once more, with its lines indented; each link is resolved against the page's URL; and each
/// attribute that is added to an element is compared with all others.
fn is_too_costly(document: &Document, url: &str) -> bool {
    let bases = document.select("base[href]");
    let lengths = bases.iter().filter_map(|it| Some(it.attr("href")?.len()));
    let base = lengths.chain([url.len()]).max().unwrap_or_default();
    let (mut elements, mut cost) = (0_usize, 0_usize);
    let root = document.root();
    let children = root.children_it(false);
    let mut pending: Vec<_> = children.map(|node| (node, 1, 0)).collect();
    while let Some((node, depth, mut attributes)) = pending.pop() {
        if let Some(element) = node.element_ref() {
            elements += 1;
            attributes += element.attrs.len();
            cost = cost.saturating_add(16 * depth + base.saturating_mul(links(&element)));
        } else if node.is_text() {
            cost = cost.saturating_add(depth * node.text().len());
        }
        // What the parser adds (`html`, `head`, `tbody`) is beyond the limit of the scan.
        let is_deep = depth > MAX_DEPTH + 16 || attributes > MAX_ATTRIBUTES;
        if is_deep || elements > MAX_ELEMENTS || cost > MAX_COST {
            return true;
        }
        let children = node.children_it(false);
        pending.extend(children.map(|child| (child, depth + 1, attributes)));
    }
    false
}

/// Returns the maximum number of URLs of an element that extraction resolves.
fn links(element: &Element) -> usize {
    let attributes = element.attrs.iter();
    if !MEDIA.contains(&&*element.name.local) {
        return attributes.filter(|it| &*it.name.local == "href").count();
    }
    // Any attribute may be taken for a `srcset`, which has at most as many URLs as words.
    let words = |value: &str| 1 + value.bytes().filter(u8::is_ascii_whitespace).count();
    attributes.map(|it| words(&it.value)).sum()
}

#[cfg(test)]
mod tests;
