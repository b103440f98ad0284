//! Questions that tools ask the user.
//!
//! A [`Question`] is data with the id of the call that asks, so that it can be displayed, stored and
//! answered later. [`Question::parse_answer`] turns the user's text into an [`Answer`]. [`AskUser`]
//! is implemented by user interfaces; [`user_channel`] is an implementation for programs.

mod channel;

use std::fmt;

use async_trait::async_trait;
use auto_impl::auto_impl;
use serde::{Deserialize, Serialize};

pub use self::channel::{AnswerError, AnswerHandle, ChannelUser, QuestionReceiver, user_channel};
use super::{ApprovalScope, Decision, ToolError};
use crate::escape::for_decision;
use crate::ids::RunId;

/// A user interface that can ask the user during a run.
#[async_trait]
#[auto_impl(Arc, Box)]
pub trait AskUser: Send + Sync {
    /// Returns whether a user is available, which the system prompt states.
    fn is_available(&self) -> bool;

    /// Asks a question and waits for the answer, as parsed by [`Question::parse_answer`]. Invalid
    /// answers are asked for again. Dropping the returned future withdraws the question.
    ///
    /// # Errors
    /// If the user can't or won't answer; the model reads the message.
    async fn ask(&self, question: Question) -> Result<Answer, ToolError>;
}

/// A user interface without a user.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "a unit")]
pub struct NoUser;

#[async_trait]
impl AskUser for NoUser {
    fn is_available(&self) -> bool {
        false
    }

    async fn ask(&self, _: Question) -> Result<Answer, ToolError> {
        Err(no_user())
    }
}

fn no_user() -> ToolError {
    ToolError::failed("There is no user to ask in this run. Decide yourself and continue.")
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
/// assert_eq!(question.parse_answer("json"), Ok(json.clone()));
/// assert_eq!(question.parse_answer("2"), Ok(json));
/// assert_eq!(question.parse_answer("").unwrap().to_string(), "CSV");
/// assert!(question.parse_answer("XML").is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Question {
    /// The id, which names the call that asks.
    pub id: QuestionId,
    /// The text of the question.
    pub text: String,
    /// The kind of answer.
    #[serde(flatten)]
    pub kind: QuestionKind,
    /// The answer to use for empty input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default: Option<String>,
}

/// The id of a question: the call that asks it. A call has at most one open question.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub struct QuestionId {
    /// The run the call belongs to.
    pub run: RunId,
    /// The id of the call.
    pub call_id: String,
}

impl QuestionId {
    /// Creates the id for a question from this call.
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

/// The kind of answer that a question accepts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum QuestionKind {
    /// Any text.
    Text,
    /// One of several choices.
    Choice {
        /// The choices.
        choices: Vec<String>,
    },
    /// Yes or no.
    Confirm,
    /// A decision on a tool call.
    Approval {
        /// The tool's name.
        tool: String,
        /// The call's arguments, as the model wrote them.
        arguments: String,
    },
}

/// The user's answer. [`Display`](fmt::Display) gives the text for the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Answer {
    /// Text.
    Text {
        /// The text.
        text: String,
    },
    /// One of the choices.
    Choice {
        /// The number of the choice, counted from 1.
        number: usize,
        /// The text of the choice in the question.
        text: String,
    },
    /// Yes or no. As the answer to an approval: run the call, or don't.
    Confirm {
        /// Whether the answer is yes.
        yes: bool,
    },
    /// A decision on a tool call.
    Approval {
        /// The decision.
        #[serde(flatten)]
        decision: Decision,
    },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text { text } | Self::Choice { text, .. } => text,
            Self::Confirm { yes: true } => "yes",
            Self::Confirm { yes: false } => "no",
            Self::Approval { decision } => match decision {
                Decision::Approve => "yes",
                Decision::ApproveAlways {
                    scope: ApprovalScope::Arguments,
                } => "always",
                Decision::ApproveAlways {
                    scope: ApprovalScope::Tool,
                } => "always tool",
                Decision::Edit { arguments, .. } => return write!(f, "edit {arguments}"),
                Decision::Reject { .. } => "no",
            },
        })
    }
}

impl Question {
    /// Creates a question that accepts any text.
    pub fn new(id: QuestionId, text: impl Into<String>) -> Self {
        Self {
            id,
            text: text.into(),
            kind: QuestionKind::Text,
            default: None,
        }
    }

    /// Creates a question that accepts one of `choices`.
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

    /// Creates a question that accepts yes or no.
    pub fn confirm(id: QuestionId, text: impl Into<String>) -> Self {
        Self {
            kind: QuestionKind::Confirm,
            ..Self::new(id, text)
        }
    }

    /// Creates a question whether a call may run, which accepts a [`Decision`].
    ///
    /// ```
    /// use cantle_core::ids::RunId;
    /// use cantle_core::tool::{Answer, Decision, Question, QuestionId};
    ///
    /// let id = QuestionId::new(RunId::new(), "call-1");
    /// let question = Question::approval(id, "code_exec", r#"{"cmd": "ls /"}"#);
    /// let edited = Decision::edit(r#"{"cmd": "ls"}"#);
    /// let answer = question.parse_answer(r#"edit {"cmd": "ls"}"#).unwrap();
    /// assert_eq!(answer, Answer::Approval { decision: edited });
    /// for valid in ["yes", "no", "no use the copy", "always", "always tool"] {
    ///     assert!(question.parse_answer(valid).is_ok(), "{valid}");
    /// }
    /// for invalid in ["", "yes please", "edit", "edit ls", "always yes"] {
    ///     assert!(question.parse_answer(invalid).is_err(), "{invalid}");
    /// }
    /// ```
    pub fn approval(id: QuestionId, tool: impl Into<String>, arguments: impl Into<String>) -> Self {
        let (tool, arguments) = (tool.into(), arguments.into());
        let text = format!(
            "Allow this call of {}?\n{}\nyes / no REASON / always / always tool / edit ARGUMENTS",
            for_decision(&tool),
            for_decision(&arguments)
        );
        Self {
            kind: QuestionKind::Approval { tool, arguments },
            ..Self::new(id, text)
        }
    }

    /// Sets the default answer.
    pub fn with_default(mut self, default: impl Into<String>) -> Self {
        self.default = Some(default.into());
        self
    }

    /// Parses the user's text. Empty text means the default. A choice is given by its text (in any
    /// case, if that is unambiguous) or its number, counted from 1.
    ///
    /// # Errors
    /// If the text is not a valid answer; the message states the valid ones.
    pub fn parse_answer(&self, text: &str) -> Result<Answer, InvalidAnswer> {
        let text = text.trim();
        match &self.default {
            Some(default) if text.is_empty() => self.parse_text(default.trim()),
            _ => self.parse_text(text),
        }
    }

    fn parse_text(&self, given: &str) -> Result<Answer, InvalidAnswer> {
        let answer = match &self.kind {
            QuestionKind::Text => (!given.is_empty()).then(|| Answer::Text {
                text: given.to_owned(),
            }),
            QuestionKind::Choice { choices } => {
                chosen(choices, given).map(|(index, text)| Answer::Choice {
                    number: index + 1,
                    text: text.to_owned(),
                })
            }
            QuestionKind::Confirm => match given.to_lowercase().as_str() {
                "yes" | "y" | "true" => Some(Answer::Confirm { yes: true }),
                "no" | "n" | "false" => Some(Answer::Confirm { yes: false }),
                _ => None,
            },
            QuestionKind::Approval { .. } => {
                Decision::parse(given).map(|decision| Answer::Approval { decision })
            }
        };
        answer.ok_or_else(|| {
            InvalidAnswer(match &self.kind {
                QuestionKind::Text => "an answer is needed".to_owned(),
                QuestionKind::Choice { choices } => format!(
                    "the answer must be one of the {} choices, by its text or its number",
                    choices.len()
                ),
                QuestionKind::Confirm => "the answer must be yes or no".to_owned(),
                QuestionKind::Approval { .. } => {
                    "the answer must be yes, no, no REASON, always, always tool, or edit ARGUMENTS with a JSON object"
                        .to_owned()
                }
            })
        })
    }
}

fn chosen<'c>(choices: &'c [String], given: &str) -> Option<(usize, &'c str)> {
    let named = |same: &dyn Fn(&str) -> bool| {
        let mut found = choices.iter().map(|choice| choice.trim()).enumerate();
        let first = found.find(|(_, choice)| same(choice))?;
        // The same text twice is one answer; two texts that differ in case are two.
        let unique = found.all(|(_, choice)| !same(choice) || choice == first.1);
        unique.then_some(first)
    };
    let number = || {
        let index = given.parse::<usize>().ok()?.checked_sub(1)?;
        Some((index, choices.get(index)?.trim()))
    };
    named(&|choice| choice == given)
        .or_else(|| named(&|choice| choice.to_lowercase() == given.to_lowercase()))
        .or_else(number)
}

/// Text that is not a valid answer to the question. The message states the valid answers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidAnswer(String);

#[cfg(test)]
mod tests;
