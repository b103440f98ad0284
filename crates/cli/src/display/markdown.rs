//! Markdown at a terminal: headings, emphasis, code and lists become attributes of the text, line by line.

use super::style::Paint;

/// Renders lines of a text in order. What it doesn't know stays as it was written.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    /// The fence of the code block that is open.
    fence: Option<String>,
}

impl Markdown {
    /// Returns a line with attributes; as it is without colours. `is_start` is false for the rest of a line that was
    /// wrapped before it was complete.
    pub(super) fn line(&mut self, line: &str, is_start: bool, paint: Paint) -> String {
        if !paint.on {
            return line.to_owned();
        }
        let content = line.trim_start();
        let indent = line.get(..line.len() - content.len()).unwrap_or_default();
        let fence = fence(content).filter(|_| is_start);
        if let Some(open) = &self.fence {
            if fence.is_some_and(|fence| fence.starts_with(open.as_str())) {
                self.fence = None;
                return paint.dim(line);
            }
            return paint.cyan(line);
        }
        if let Some(fence) = fence {
            self.fence = Some(fence.to_owned());
            return paint.dim(line);
        }
        if is_start {
            let heading = content.trim_start_matches('#');
            let level = content.len() - heading.len();
            if (1..=6).contains(&level) && heading.starts_with(' ') {
                return paint.bold(heading.trim());
            }
            for marker in ["- ", "* ", "+ "] {
                if let Some(item) = content.strip_prefix(marker) {
                    return format!("{indent}• {}", inline(item, paint));
                }
            }
            if content.starts_with("> ") {
                return paint.dim(line);
            }
        }
        inline(line, paint)
    }
}

/// Returns the backticks or tildes that open or close a code block.
fn fence(line: &str) -> Option<&str> {
    let mark = line
        .chars()
        .next()
        .filter(|mark| matches!(mark, '`' | '~'))?;
    let rest = line.trim_start_matches(mark);
    let (length, is_inline) = (line.len() - rest.len(), rest.contains('`'));
    line.get(..length).filter(|_| length >= 3 && !is_inline)
}

/// Renders `code` and **strong** text that begin and end in a line.
fn inline(line: &str, paint: Paint) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['`', '*']) {
        let (before, marked) = rest.split_at(at);
        text.push_str(before);
        let mark = match marked {
            _ if marked.starts_with('`') => "`",
            _ if marked.starts_with("**") => "**",
            _ => "*",
        };
        let inner = marked.strip_prefix(mark).unwrap_or_default();
        let end = inner.split_once(mark).filter(|(inner, _)| {
            mark != "*" && !inner.is_empty() && (mark == "`" || inner.trim() == *inner)
        });
        match end {
            Some((inner, after)) => {
                text.push_str(&match mark {
                    "`" => paint.cyan(inner),
                    _ => paint.bold(inner),
                });
                rest = after;
            }
            None => {
                text.push_str(mark);
                rest = inner;
            }
        }
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rendered(text: &str) -> Vec<String> {
        let mut markdown = Markdown::default();
        let lines = text.lines();
        lines
            .map(|line| {
                let line = markdown.line(line, true, Paint { on: true });
                line.replace("\x1b[0m", "}")
                    .replace("\x1b[1m", "{b ")
                    .replace("\x1b[2m", "{d ")
                    .replace("\x1b[36m", "{c ")
            })
            .collect()
    }

    #[test]
    fn lines_have_attributes() {
        let text = "## The *end*\nA **bold** word, `a * b`, 2 * 3 ** 4 and **open\n- one `x`\n  * two\n> said\n#no\n1. `";
        let expected = [
            "{b The *end*}",
            "A {b bold} word, {c a * b}, 2 * 3 ** 4 and **open",
            "• one {c x}",
            "  • two",
            "{d > said}",
            "#no",
            "1. `",
        ];
        assert_eq!(rendered(text), expected);
    }

    #[test]
    fn code_blocks_are_verbatim() {
        let text = "````sh\n# **no**\n```\n- x\n````\n- y";
        let expected = [
            "{d ````sh}",
            "{c # **no**}",
            "{c ```}",
            "{c - x}",
            "{d ````}",
            "• y",
        ];
        assert_eq!(rendered(text), expected);
    }

    #[test]
    fn nothing_changes_without_colours() {
        let mut markdown = Markdown::default();
        for line in ["# a", "```", "- **b**"] {
            assert_eq!(markdown.line(line, true, Paint { on: false }), line);
        }
    }
}
