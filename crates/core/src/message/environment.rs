//! The description of a run's environment at the head of its first user message.
//!
//! It holds what varies between runs of one agent, such as the date, so that everything before it is the
//! same for all of them.

use crate::content::Content;

const START: &str = "<environment>\n";
const END: &str = "\n</environment>\n\n";

/// Puts a description of the environment at the head of a message. `lines` must not contain the end tag.
pub fn describe(lines: &str, mut content: Content) -> Content {
    content.prepend(&format!("{START}{}{END}", lines.trim_end()));
    content
}

/// Returns the text of a message without the description at its head.
///
/// ```
/// use cantle_core::content::Content;
/// use cantle_core::message::environment::{describe, strip};
///
/// let described = describe("Date: 2026-11-23", Content::from("Count the words."));
/// assert_eq!(
///     described.text(),
///     "<environment>\nDate: 2026-11-23\n</environment>\n\nCount the words."
/// );
/// assert_eq!(strip(&described.text()), "Count the words.");
/// ```
pub fn strip(text: &str) -> &str {
    let block = text.strip_prefix(START);
    let rest = block.and_then(|block| block.split_once(END));
    rest.map_or(text, |(_, rest)| rest)
}
