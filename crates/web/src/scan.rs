//! One linear pass over HTML, before anything parses it.
//!
//! The parser takes time quadratic in the depth of nesting and in the number of a tag's attributes, and extraction
//! recurses. The scan bounds all of these from above: it ignores that some end tags are implied, so it can call a
//! page too deep that is not, and such a page is reduced to its text. The text is collected in the same pass.

use std::collections::HashMap;

/// Maximum depth of nesting; browsers (Blink) have the same.
pub(crate) const MAX_DEPTH: usize = 512;
/// Maximum number of attributes of a tag.
const MAX_ATTRIBUTES: usize = 512;
/// Maximum number of elements that the parser creates anew because formatting is reopened in each block.
const MAX_REOPENED: usize = 2_000_000;
/// Longest name that counts; the parser knows none that is longer.
const MAX_NAME: usize = 32;

const VOID: [&str; 14] = [
    "area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track",
    "wbr", "param",
];
/// Elements whose end tags are optional and which can't contain themselves without another element between.
const IMPLIED_END: [&str; 13] = [
    "p", "li", "dd", "dt", "td", "th", "tr", "tbody", "thead", "tfoot", "option", "html", "body",
];
/// Elements whose content is text for the parser.
const ESCAPABLE: [&str; 6] = ["title", "textarea", "iframe", "noembed", "noframes", "xmp"];
/// Elements that the parser reopens in the next block.
const FORMATTING: [&str; 14] = [
    "a", "b", "big", "code", "em", "font", "i", "nobr", "s", "small", "strike", "strong", "tt", "u",
];
/// Elements of SVG whose content the parser reads as HTML.
const INTEGRATION_POINTS: [&str; 3] = ["foreignobject", "desc", "title"];
/// Elements besides those above and those that break lines that end an SVG or MathML that is open (HTML, 13.2.6.5).
const BREAKOUT: [&str; 9] = [
    "center", "head", "listing", "menu", "ruby", "span", "sub", "sup", "var",
];

/// The result of a scan.
#[derive(Debug)]
pub(crate) struct Scan {
    /// Whether the page can be parsed in bounded time and memory.
    pub(crate) is_bounded: bool,
    /// The page's text without tags, scripts and styles.
    pub(crate) text: String,
}

/// Scans HTML.
pub(crate) fn scan(html: &str) -> Scan {
    let mut scanner = Scanner::default();
    let mut rest = html;
    while let Some((text, tag)) = rest.split_once('<') {
        scanner.text.push_str(text);
        rest = scanner.markup(tag);
    }
    scanner.text.push_str(rest);
    Scan {
        is_bounded: !scanner.is_refused,
        text: tidy(&scanner.text),
    }
}

#[derive(Default)]
struct Scanner {
    /// Number of open elements by name.
    open: HashMap<String, usize>,
    depth: usize,
    formatting: usize,
    reopened: usize,
    is_refused: bool,
    /// The open elements of an SVG, from its own on, as long as they are nested as in XML.
    svg: Vec<String>,
    /// Whether one was not: from there on, the scan can't tell what belongs to an SVG.
    is_mixed: bool,
    text: String,
}

impl Scanner {
    /// Reads one tag, comment or declaration, whose `<` is consumed; returns what follows.
    fn markup<'a>(&mut self, rest: &'a str) -> &'a str {
        if let Some(comment) = rest.strip_prefix("!--") {
            return after_comment(comment);
        }
        let (is_end, named) = match rest.strip_prefix('/') {
            Some(named) => (true, named),
            None => (false, rest),
        };
        match named.bytes().next() {
            Some(b'a'..=b'z' | b'A'..=b'Z') => {}
            Some(b'!' | b'?') | None => {
                // In an SVG, it may be a CDATA section.
                self.is_mixed |= !self.svg.is_empty();
                return after(named, '>');
            }
            Some(_) if is_end => return after(named, '>'),
            Some(_) => {
                self.text.push('<');
                return rest;
            }
        }
        let is_name_end = |c: char| c.is_ascii_whitespace() || c == '/' || c == '>';
        let (name, attributes) = named.split_at(named.find(is_name_end).unwrap_or(named.len()));
        let name: String = name.chars().take(MAX_NAME).collect();
        let name = name.to_ascii_lowercase();
        let (rest, is_self_closing) = self.attributes(attributes);
        self.text.push_str(separator(&name));
        if !self.is_closed_in_svg(&name, is_end, is_self_closing) {
            self.count(&name, is_end);
        }
        // The parser ignores what follows in a page of frames.
        self.is_refused |= name == "frameset";
        if is_end || self.is_in_foreign() {
            return rest;
        }
        let is_raw = matches!(name.as_str(), "script" | "style");
        if !is_raw && (self.is_refused || !ESCAPABLE.contains(&name.as_str())) {
            return rest;
        }
        let (content, following) = rest.split_at(find_tag(rest, "</", &name).unwrap_or(rest.len()));
        if !is_raw {
            // Markup is text here, unless the parser ignored the start tag.
            self.is_refused |= content.contains('<');
            return rest;
        }
        // A script in a comment in a script ends later, and a style in a `select` is none.
        self.is_refused |= content.contains("<!--") && find_tag(content, "<", "script").is_some();
        self.is_refused |= name == "style" && self.is_open("select");
        following
    }

    /// Follows an SVG, and returns whether the tag is one of its elements that closes itself. Elsewhere, the parser
    /// ignores the slash.
    fn is_closed_in_svg(&mut self, name: &str, is_end: bool, is_self_closing: bool) -> bool {
        if self.is_mixed || self.is_refused {
            return false;
        }
        if self.svg.is_empty() {
            if name != "svg" || is_end {
                return false;
            }
            // Ignored in the one, and an element of another kind in the other.
            self.is_mixed = self.is_open("select") || self.is_open("math");
        } else if is_end {
            let is_last = self.svg.pop().as_deref() == Some(name);
            self.is_mixed = !is_last || may_break_out(name);
            return false;
        } else {
            let is_html = |open: &String| INTEGRATION_POINTS.contains(&open.as_str());
            self.is_mixed = may_break_out(name) || self.svg.iter().any(is_html);
        }
        if !is_self_closing {
            self.svg.push(name.to_owned());
        }
        is_self_closing && !self.is_mixed
    }

    fn count(&mut self, name: &str, is_end: bool) {
        self.reopened = self.reopened.saturating_add(self.formatting);
        let is_formatting = FORMATTING.contains(&name);
        let implies_end = IMPLIED_END.contains(&name) && !self.is_in_foreign();
        if VOID.contains(&name) || implies_end {
            // Not counted.
        } else if !is_end {
            *self.open.entry(name.to_owned()).or_default() += 1;
            self.depth += 1;
            self.formatting += usize::from(is_formatting);
        } else if let Some(open) = self.open.get_mut(name)
            && *open > 0
        {
            *open -= 1;
            self.depth -= 1;
            self.formatting -= usize::from(is_formatting);
        }
        self.is_refused |= self.depth > MAX_DEPTH || self.reopened > MAX_REOPENED;
    }

    /// Whether an element of SVG or MathML may be open, where other rules apply.
    fn is_in_foreign(&self) -> bool {
        self.is_open("svg") || self.is_open("math")
    }

    fn is_open(&self, name: &str) -> bool {
        self.open.get(name).is_some_and(|open| *open > 0)
    }

    /// Skips the attributes of a tag; returns what follows its `>`, and whether the tag closes itself.
    fn attributes<'a>(&mut self, text: &'a str) -> (&'a str, bool) {
        let (mut quote, mut follows_equals, mut separators) = (None, false, 0_usize);
        // Whether a slash here is no part of a value, and whether there was one.
        let (mut is_between, mut is_self_closing) = (true, false);
        for (at, byte) in text.bytes().enumerate() {
            match (quote, byte) {
                (Some(open), _) if open == byte => {
                    quote = None;
                    separators += 1;
                    is_between = true;
                }
                (Some(_), _) => {}
                (None, b'"' | b'\'') if follows_equals => quote = Some(byte),
                (None, b'>') => {
                    self.is_refused |= separators > 2 * MAX_ATTRIBUTES;
                    return (text.get(at + 1..).unwrap_or_default(), is_self_closing);
                }
                (None, b'/') => {
                    separators += 1;
                    is_self_closing = is_between && !follows_equals;
                    is_between = false;
                }
                (None, byte) if byte.is_ascii_whitespace() => {
                    separators += 1;
                    (is_between, is_self_closing) = (true, false);
                    continue;
                }
                (None, _) => (is_between, is_self_closing) = (false, false),
            }
            follows_equals = byte == b'=' && quote.is_none();
        }
        self.is_refused |= separators > 2 * MAX_ATTRIBUTES;
        ("", false)
    }
}

fn after(text: &str, end: char) -> &str {
    text.split_once(end).map_or("", |(_, rest)| rest)
}

/// Returns what follows a comment: it ends with `-->` or `--!>`, or at once with `>` or `->`.
fn after_comment(text: &str) -> &str {
    if let Some(rest) = text.strip_prefix('>').or_else(|| text.strip_prefix("->")) {
        return rest;
    }
    let mut rest = text;
    while let Some((_, found)) = rest.split_once("--") {
        if let Some(rest) = found.strip_prefix('>').or_else(|| found.strip_prefix("!>")) {
            return rest;
        }
        // A third hyphen may belong to the end.
        rest = match found.strip_prefix('-') {
            Some(_) => rest.get(rest.len() - found.len() - 1..).unwrap_or_default(),
            None => found,
        };
    }
    ""
}

/// Returns the white space that stands for a tag in the text.
fn separator(name: &str) -> &'static str {
    match name {
        "p" | "br" | "div" | "li" | "tr" | "h1" | "h2" | "h3" | "h4" | "h5" | "h6" | "pre"
        | "table" | "ul" | "ol" | "dl" | "dt" | "dd" | "section" | "article" | "blockquote"
        | "title" => "\n",
        "td" | "th" | "option" => " ",
        _ => "",
    }
}

/// Whether a tag may end an SVG that is open. Of HTML's elements, some do not; the scan knows less about a page then.
fn may_break_out(name: &str) -> bool {
    let is_in_svg = matches!(name, "a" | "title");
    let is_html = separator(name) == "\n"
        || [&VOID[..], &IMPLIED_END, &FORMATTING, &BREAKOUT]
            .iter()
            .any(|names| names.contains(&name));
    is_html && !is_in_svg
}

/// Returns where the first tag of a name may be in a text; `start` is `<` or `</`.
fn find_tag(text: &str, start: &str, name: &str) -> Option<usize> {
    let is_named = |at: usize| {
        let found = text.get(at + start.len()..at + start.len() + name.len());
        found.is_some_and(|found| found.eq_ignore_ascii_case(name))
    };
    let mut tags = text.match_indices(start).map(|(at, _)| at);
    tags.find(|at| is_named(*at))
}

/// Decodes the commonest entities and collapses white space.
fn tidy(text: &str) -> String {
    let mut tidied = String::new();
    for line in text.lines() {
        let words: Vec<_> = line.split_whitespace().collect();
        if !words.is_empty() {
            tidied.push_str(&words.join(" "));
            tidied.push('\n');
        }
    }
    let entities = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&nbsp;", " "),
        ("&amp;", "&"),
    ];
    for (entity, character) in entities {
        tidied = tidied.replace(entity, character);
    }
    tidied
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_pages_are_bounded() {
        let unclosed = "<p>text <img src=x><br>".repeat(5_000);
        let rows = format!("<table>{}</table>", "<tr><td>a<td>b".repeat(5_000));
        let script = format!("<script>{}</script>", "if (a<b) c<d;".repeat(5_000));
        let path = format!("<svg><path d=\"{}\"></path></svg>", "M 1 2 ".repeat(5_000));
        let icons =
            "<svg><title>x</title><g><path d='M 1/2' /><use href=\"#a\"/></g></svg>".repeat(2_000);
        for html in [unclosed, rows, script, path, icons] {
            assert!(
                scan(&html).is_bounded,
                "{}",
                html.chars().take(80).collect::<String>()
            );
        }
    }

    #[test]
    fn nesting_is_found_however_it_is_hidden() {
        let deep = "<div>".repeat(600);
        for html in [
            deep.clone(),
            "<DIV\n>".repeat(600),
            "<b></x>".repeat(600),
            "<b></b x=\"".to_owned() + &deep + "\">" + &"<i>".repeat(600),
            format!("<!-->{deep}-->"),
            format!("<!--a--!>{deep}-->"),
            format!("<!--a--->{deep}"),
            format!("<svg><style>{deep}</style>"),
            format!("<svg>{}", "<td>".repeat(600)),
            format!("<p title='>'>{deep}"),
            format!("<svg><div>{}", "<path/>".repeat(600)),
            format!("<svg>{}", "<path d=M/>".repeat(600)),
            format!("<svg>{}", "<path d= />".repeat(600)),
            format!("<svg>{}", "<path d=\"/\" / x>".repeat(600)),
            format!("<svg><desc>{}", "<x/>".repeat(600)),
            format!("<svg><desc><x></desc>{}", "<path/>".repeat(600)),
            format!("<svg></p>{}", "<x/>".repeat(600)),
            format!("<section><svg></section>{}", "<x/>".repeat(600)),
            format!("<select><svg></select>{}", "<x/>".repeat(600)),
            format!("<svg><![CDATA[><svg>]]></svg>{}", "<x/>".repeat(600)),
            format!("<math><mi><svg></mi><mi>{}", "<x/>".repeat(600)),
            format!("<svg></svg>{}", "<x/>".repeat(600)),
            format!("<textarea><b x=\"</textarea>{deep}\">"),
            format!("<title><!--</title>{deep}-->"),
            format!("<select><style></select>{deep}</style>"),
            format!("<select><iframe></select>{deep}</iframe>"),
            format!("<script><!--<script></script><b x=\"</script>{deep}\">"),
            format!("<p x'>{deep}"),
            format!(
                "<br {}>",
                (0..3_000).map(|n| format!("a{n} ")).collect::<String>()
            ),
            (0..400).map(|n| format!("<b x={n}>")).collect::<String>() + &"<p>x</p>".repeat(20_000),
        ] {
            assert!(
                !scan(&html).is_bounded,
                "{}",
                html.chars().take(60).collect::<String>()
            );
        }
    }

    #[test]
    fn text_has_no_tags_scripts_or_styles() {
        let html = "<title>T</title><style>b{}</style><p>a &lt; <b>b</b></p><script>x<y</SCRIPT>1 < 2<!-- no -->";
        assert_eq!(scan(html).text, "T\na < b\n1 < 2\n");
    }
}
