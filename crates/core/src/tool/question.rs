//! Questions to the user: what is asked, what counts as an answer, and who can be asked.
//!
//! A [`Question`] is data: it names the call that asks, so that it can be shown, written down and
//! answered later by a program. [`Question::read`] is the one place that says which words are an
//! answer. [`AskUser`] is whoever answers; [`user_channel`] is one for programs.

mod channel;

use std::fmt;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

pub use self::channel::{AnswerError, Answers, ChannelUser, Questions, user_channel};
use super::ToolError;
use crate::ids::RunId;

/// Somebody who can be asked while a run goes on.
#[async_trait]
pub trait AskUser: Send + Sync {
    /// Whether there is anybody; the system prompt tells the model.
    fn is_available(&self) -> bool;

    /// Asks and waits for the answer. Words are made an answer by [`Question::read`]; who gives
    /// words that are none is asked again.
    ///
    /// Dropping the returned future takes the question back.
    ///
    /// # Errors
    /// Where nobody can or will answer; the model sees the message.
    async fn ask(&self, question: Question) -> Result<Answer, ToolError>;
}

/// Nobody is there to be asked.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a unit")]
pub struct NoUser;

#[async_trait]
impl AskUser for NoUser {
    fn is_available(&self) -> bool {
        false
    }

    async fn ask(&self, _: Question) -> Result<Answer, ToolError> {
        Err(nobody())
    }
}

fn nobody() -> ToolError {
    ToolError::failed("Nobody can be asked in this run. Decide yourself and go on.")
}

/// A question to the user.
///
/// ```
/// use cantle_core::ids::RunId;
/// use cantle_core::tool::{Answer, Question, QuestionId};
///
/// let id = QuestionId::new(RunId::new(), "call-1");
/// let question = Question::choice(id, "Which format?", ["CSV", "JSON"]).with_default("CSV");
/// let json = Answer::Choice { number: 2, text: "JSON".to_owned() };
/// assert_eq!(question.read("json"), Ok(json.clone()));
/// assert_eq!(question.read("2"), Ok(json));
/// assert_eq!(question.read("").unwrap().to_string(), "CSV");
/// assert!(question.read("XML").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Question {
    /// The call that asks.
    pub id: QuestionId,
    /// What is asked.
    pub text: String,
    /// What counts as an answer.
    #[serde(flatten)]
    pub kind: QuestionKind,
    /// The answer where the user gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// Names a question by the call that asks it. A call has one question open at a time.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuestionId {
    /// The run the call belongs to.
    pub run: RunId,
    /// The call.
    pub call_id: String,
}

impl QuestionId {
    /// The question that a call asks.
    pub fn new(run: RunId, call_id: impl Into<String>) -> Self {
        Self {
            run,
            call_id: call_id.into(),
        }
    }
}

impl fmt::Display for QuestionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.run, self.call_id)
    }
}

/// What counts as an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionKind {
    /// Any text.
    Text,
    /// One of these.
    Choice {
        /// The answers to choose from.
        choices: Vec<String>,
    },
    /// Yes or no.
    Confirm,
}

/// What the user answered. Displayed, it is what the model reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// Text.
    Text {
        /// What was said.
        text: String,
    },
    /// One of the choices.
    Choice {
        /// Which one, counted from 1.
        number: usize,
        /// The choice as the question has it.
        text: String,
    },
    /// Yes or no.
    Confirm {
        /// Whether it is yes.
        yes: bool,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text { text } | Self::Choice { text, .. } => text,
            Self::Confirm { yes: true } => "yes",
            Self::Confirm { yes: false } => "no",
        })
    }
}

impl Question {
    /// A question that any text answers.
    pub fn new(id: QuestionId, text: impl Into<String>) -> Self {
        Self {
            id,
            text: text.into(),
            kind: QuestionKind::Text,
            default: None,
        }
    }

    /// A question that one of `choices` answers.
    pub fn choice<C: Into<String>>(
        id: QuestionId,
        text: impl Into<String>,
        choices: impl IntoIterator<Item = C>,
    ) -> Self {
        let choices = choices.into_iter().map(Into::into).collect();
        Self {
            kind: QuestionKind::Choice { choices },
            ..Self::new(id, text)
        }
    }

    /// A question that yes or no answers.
    pub fn confirm(id: QuestionId, text: impl Into<String>) -> Self {
        Self {
            kind: QuestionKind::Confirm,
            ..Self::new(id, text)
        }
    }

    /// The same with an answer for a user who gives none.
    #[must_use]
    pub fn with_default(mut self, default: impl Into<String>) -> Self {
        self.default = Some(default.into());
        self
    }

    /// What these words mean as an answer. No words at all mean the default. A choice is named by
    /// its text (in any case, where only one is meant) or else by its number, counted from 1.
    ///
    /// # Errors
    /// Where they are no answer to this question; the message says what would be.
    pub fn read(&self, words: &str) -> Result<Answer, InvalidAnswer> {
        let words = words.trim();
        match &self.default {
            Some(default) if words.is_empty() => self.read_given(default.trim()),
            _ => self.read_given(words),
        }
    }

    fn read_given(&self, words: &str) -> Result<Answer, InvalidAnswer> {
        let answer = match &self.kind {
            QuestionKind::Text => (!words.is_empty()).then(|| Answer::Text {
                text: words.to_owned(),
            }),
            QuestionKind::Choice { choices } => {
                chosen(choices, words).map(|(index, text)| Answer::Choice {
                    number: index + 1,
                    text: text.to_owned(),
                })
            }
            QuestionKind::Confirm => match words.to_lowercase().as_str() {
                "yes" | "y" | "true" => Some(Answer::Confirm { yes: true }),
                "no" | "n" | "false" => Some(Answer::Confirm { yes: false }),
                _ => None,
            },
        };
        answer.ok_or_else(|| InvalidAnswer {
            kind: self.kind.clone(),
        })
    }
}

fn chosen<'c>(choices: &'c [String], words: &str) -> Option<(usize, &'c str)> {
    let named = |same: &dyn Fn(&str) -> bool| {
        let mut found = choices.iter().map(|choice| choice.trim()).enumerate();
        let first = found.find(|(_, choice)| same(choice))?;
        // The same text twice is one answer; two texts that differ in case are two.
        let unique = found.all(|(_, choice)| !same(choice) || choice == first.1);
        unique.then_some(first)
    };
    let number = || {
        let index = words.parse::<usize>().ok()?.checked_sub(1)?;
        Some((index, choices.get(index)?.trim()))
    };
    named(&|choice| choice == words)
        .or_else(|| named(&|choice| choice.to_lowercase() == words.to_lowercase()))
        .or_else(number)
}

/// Words that are no answer to the question. Says what would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidAnswer {
    kind: QuestionKind,
}

impl fmt::Display for InvalidAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            QuestionKind::Text => f.write_str("an answer is needed"),
            QuestionKind::Choice { choices } => {
                write!(f, "the answer must be one of the {} choices", choices.len())?;
                f.write_str(", by its text or its number")
            }
            QuestionKind::Confirm => f.write_str("the answer must be yes or no"),
        }
    }
}

impl std::error::Error for InvalidAnswer {}

#[cfg(test)]
mod tests;
