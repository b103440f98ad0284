//! The commands that may be run, as advice to the model.
//!
//! An allow-list keeps a model on its task. It is no boundary: a program that is allowed can start
//! any other (`git -c core.pager=…`), and a name is looked up in the sandbox's own `PATH`. What code
//! can reach is the policy's business, and the kernel's.

use std::fmt::Write as _;
use std::sync::Arc;

use cantle_core::escape::shorten;
use regex_lite::Regex;
use thiserror::Error;

use super::{refusal, words};

/// How much of the patterns the model is shown.
const SHOWN_CHARS: usize = 2_000;
/// How much of a refused command is repeated.
const COMMAND_CHARS: usize = 200;

/// A pattern of allowed commands that is no regular expression.
#[derive(Debug, Error)]
#[error("`{pattern}` is not a pattern of commands")]
pub struct InvalidPattern {
    pattern: String,
    source: regex_lite::Error,
}

/// Patterns of the commands that may be run.
#[derive(Clone, Debug)]
pub(super) struct AllowedCommands(Arc<[Pattern]>);

#[derive(Debug)]
struct Pattern {
    /// As it was given.
    text: String,
    /// The same at the start of a command: a search would scan the whole command, however long it is.
    at_start: Regex,
}

impl AllowedCommands {
    pub(super) fn new<P: AsRef<str>>(
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Self, InvalidPattern> {
        let compile = |pattern: P| {
            let text = pattern.as_ref().to_owned();
            // Compiled alone first, because `a)|(b` would be valid within the group.
            let compiled = Regex::new(&text).and_then(|_| Regex::new(&format!("^(?:{text})")));
            match compiled {
                Ok(at_start) => Ok(Pattern { text, at_start }),
                Err(source) => Err(InvalidPattern {
                    pattern: text,
                    source,
                }),
            }
        };
        let patterns = patterns.into_iter().map(compile);
        Ok(Self(patterns.collect::<Result<_, _>>()?))
    }

    /// Returns the program and arguments of an allowed command, or the refusal of another.
    pub(super) fn argv(&self, line: &str) -> Result<Vec<String>, String> {
        let argv = words::split(line)?;
        let form = words::join(&argv);
        if self
            .0
            .iter()
            .any(|pattern| pattern.at_start.is_match(&form))
        {
            return Ok(argv);
        }
        let shown = shorten(&form, COMMAND_CHARS);
        let details = format!("`{shown}` is not an allowed command.");
        let advice = format!("Use a command that begins like one of these patterns: {self}.");
        Err(refusal::not_allowed(&details, &advice))
    }

    /// Lists the patterns until the text is longer than `max_bytes`, and counts the others.
    pub(super) fn list(&self, max_bytes: usize) -> String {
        if self.0.is_empty() {
            return "none, no command is allowed".to_owned();
        }
        let mut text = String::new();
        for (number, pattern) in self.0.iter().enumerate() {
            if text.len() > max_bytes {
                let _ = write!(text, " and {} more", self.0.len() - number);
                break;
            }
            let comma = if number == 0 { "" } else { ", " };
            let _ = write!(text, "{comma}`{}`", pattern.text);
        }
        text
    }
}

/// Formats the patterns for the model.
impl std::fmt::Display for AllowedCommands {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.list(SHOWN_CHARS))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(patterns: &[&str]) -> AllowedCommands {
        AllowedCommands::new(patterns).expect("patterns")
    }

    #[test]
    fn patterns_match_from_the_start_of_the_canonical_form() {
        let allowed = allowed(&["git (status|log)( |$)", r"ls\b", "echo 'a b'$"]);
        for line in [
            "git status",
            "git   'status' --short",
            "g\"i\"t log",
            "ls",
            "ls -la 'x;y'",
            "echo a\\ b",
        ] {
            let argv = words::split(line).expect("words");
            assert_eq!(allowed.argv(line), Ok(argv), "{line}");
        }
        for line in [
            "git push",
            "git statusx",
            "my git status",
            "/usr/bin/git status",
            "./ls",
            "lsof",
            "echo 'a b' c",
            "'git status'",
            "x 'git status'",
        ] {
            let refused = allowed.argv(line).expect_err(line);
            assert!(refused.contains("command_not_allowed"), "{line}");
        }
        // Alternatives are anchored too.
        assert!(self::allowed(&["a|b"]).argv("xb").is_err());
        // No pattern permits shell syntax.
        let everything = self::allowed(&[".*"]);
        assert!(everything.argv("ls; rm x").is_err());
        assert!(everything.argv("A=1 ls").is_err());
    }

    #[test]
    fn refusals_list_the_patterns_up_to_a_limit() {
        let refusal = allowed(&["git ", "ls"])
            .argv("rm -rf 'a b'")
            .expect_err("refused");
        insta::assert_snapshot!(refusal);
        let many: Vec<String> = (0..10_000)
            .map(|number| format!("command{number}"))
            .collect();
        let many = AllowedCommands::new(&many).expect("patterns");
        let refusal = many.argv(&"x".repeat(100_000)).expect_err("refused");
        assert!(
            refusal.len() < 3_000 && refusal.contains(" more."),
            "{refusal}"
        );
        let refusal = allowed(&[]).argv("ls").expect_err("refused");
        assert!(refusal.contains("no command is allowed"), "{refusal}");
    }

    #[test]
    fn invalid_patterns_are_named() {
        for pattern in ["git (", "a)|(b", "[z-a]"] {
            let error = AllowedCommands::new(["ls", pattern]).expect_err("no pattern");
            let text = format!("`{pattern}` is not a pattern of commands");
            assert_eq!(error.to_string(), text);
            assert!(std::error::Error::source(&error).is_some());
        }
    }
}
