use serde_json::json;

use super::*;

fn to_markdown(html: &str, url: &str) -> String {
    html_to_markdown(html.as_bytes(), Some("text/html; charset=utf-8"), url)
}

const PAGE: &str = include_str!("fixtures/guide.html");

#[test]
fn a_guide_keeps_headings_code_tables_and_links() {
    let text = to_markdown(PAGE, "https://docs.example.com/guide/start.html");
    for expected in [
        "Installing the tool",
        "```",
        "tool init --name demo\ncd demo\n    tool run",
        "| Option",
        "--verbose",
        "https://docs.example.com/guide/reference.html",
        "- First",
    ] {
        assert!(text.contains(expected), "{expected} in:\n{text}");
    }
    assert!(!text.contains("alert("), "{text}");
}

#[test]
fn a_page_without_an_article_is_returned_whole() {
    let text = to_markdown(
        "<title>T</title><ul><li><a href=/a>A</a><li>B</ul>",
        "https://example.com/",
    );
    assert!(text.contains('A') && text.contains('B'), "{text}");
    assert_eq!(to_markdown("", "https://example.com/"), "");
}

#[test]
fn nested_tags_become_text_and_never_exhaust_the_stack() {
    for (tag, count) in [
        ("b", 20_000),
        ("div", 12_000),
        ("div", 210_000),
        ("svg", 20_000),
        ("blockquote", 20_000),
    ] {
        let html = format!("{}found", format!("<{tag}>").repeat(count));
        assert_eq!(
            to_markdown(&html, "https://example.com/").trim(),
            "found",
            "{tag}"
        );
    }
    // At the limit, extraction recurses as deep as it ever does.
    for tag in ["div", "table><tr><td"] {
        let html = format!("{}found", format!("<{tag}>").repeat(MAX_DEPTH - 1));
        assert!(
            to_markdown(&html, "https://example.com/").contains("found"),
            "{tag}"
        );
    }
}

#[test]
fn charsets_are_declared_found_or_guessed() {
    assert_eq!(
        decode(Some("text/html; charset=ISO-8859-1"), b"caf\xe9"),
        "café"
    );
    assert_eq!(
        decode(Some("text/html; charset=\"utf-8\""), b"caf\xe9"),
        "caf\u{fffd}"
    );
    assert_eq!(
        decode(Some("text/html; charset=klingon"), b"caf\xe9"),
        "café"
    );
    assert_eq!(decode(None, b"\xff\xfea\0b\0"), "ab");
    assert_eq!(
        decode(Some("text/html"), b"<meta charset='shift_jis'>\x83\x65"),
        "<meta charset='shift_jis'>テ"
    );
    assert_eq!(
        decode(Some("text/html"), b"<meta charset=utf-16>caf\xc3\xa9"),
        "<meta charset=utf-16>café"
    );
    assert_eq!(
        decode(
            Some("text/xml"),
            b"<?xml version='1.0' encoding='shift_jis'?>\x83\x65"
        ),
        "<?xml version='1.0' encoding='shift_jis'?>テ"
    );
    let about_charsets = "# charset=latin1 and größe";
    for kind in ["text/plain", "application/json"] {
        assert_eq!(
            decode(Some(kind), about_charsets.as_bytes()),
            about_charsets
        );
    }
    assert_eq!(decode(None, "größe".as_bytes()), "größe");
}

#[test]
fn small_pages_do_not_become_large_texts() {
    let base = format!("<base href=\"http://example.com/{}\">", "a".repeat(10_000));
    let (words, urls) = ("<p>many words ".repeat(100), "?a, ".repeat(10_000));
    for html in [
        format!("{base}{words}<img srcset=\"{urls}\">"),
        format!("{base}{words}<img data-a=\"x.jpg 1x, {urls}\">"),
        base + &"<p>many words <a href=\"?b\">link</a>".repeat(1_500),
        "<ul><li>x".repeat(250) + &"<li>word ".repeat(10_000),
        "<blockquote>".repeat(500) + &"<p>word ".repeat(10_000),
        "<table><tr><td>".repeat(120) + &"word <img src=x>".repeat(10_000),
    ] {
        let text = to_markdown(&html, "https://example.com/");
        assert!(
            text.contains("word") && !text.contains("]("),
            "{}",
            text.len()
        );
        assert!(text.len() < html.len(), "{} of {}", text.len(), html.len());
    }
}

#[test]
fn many_attributes_are_not_merged() {
    let attributes = |level: usize| (0..50).map(move |number| format!(" a{level}-{number}"));
    let divs = (0..50).map(|level| format!("<div{}>", attributes(level).collect::<String>()));
    let html = divs.collect::<String>() + "<p>some <a href=x>words</a>";
    let text = to_markdown(&html, "https://example.com/");
    assert_eq!(text.trim(), "some words");
}

#[test]
fn a_long_title_is_not_compared_with_many_others() {
    let title = format!("<title>{}</title>", "word ".repeat(100_000));
    let headings = "<h2>other</h2>".repeat(1_000);
    let text = to_markdown(&format!("{title}{headings}"), "https://example.com/");
    assert!(text.contains("\nother\n") && !text.contains('#'));
    let context = concat!("https://schema", ".org");
    let block = json!({
        "@context": context, "@type": "Article", "name": " ", "headline": "other",
    });
    let blocks = format!("<script type=\"application/ld+json\">{block}</script>").repeat(1_000);
    let html = format!("{title}{blocks}<p>the text");
    assert!(to_markdown(&html, "https://example.com/").contains("the text"));
}

#[test]
fn code_blocks_of_every_part_are_kept() {
    let words = "<p>Some words, with commas, and more of them, until the paragraph is long enough."
        .repeat(20);
    let html = format!(
        "<title>Two parts</title><div id=a><h2>One</h2>{words}<pre>first block</pre></div>\
         <div class=sidebar><h2>Two</h2><pre>second block</pre></div>"
    );
    let text = to_markdown(&html, "https://example.com/");
    assert!(text.contains("```\nfirst block\n```"), "{text}");
    assert!(text.contains("```\nsecond block\n```"), "{text}");
}
