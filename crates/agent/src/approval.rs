//! Approvals: which calls need somebody's consent, and what was decided.
//!
//! Rules say of a call, by its tool and its arguments, whether it is allowed, denied, or somebody has
//! to be asked. Consent is bound to the arguments it was given for: to their digest, which a question
//! carries and an answer must repeat.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cantle_core::ids::RunId;
use globset::{GlobBuilder, GlobMatcher};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use crate::journal::hex;

/// What was decided on a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// It runs as the model asked for it.
    Approve,
    /// It runs with other arguments.
    Edit {
        /// The arguments: a JSON object, as text.
        arguments: String,
    },
    /// It does not run.
    Reject {
        /// Why, for the model.
        reason: String,
    },
}

/// What a rule says of a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Permission {
    /// It runs.
    #[default]
    Allow,
    /// It does not run, and the model is told.
    Deny,
    /// Somebody is asked. Where nobody can be, it does not run.
    Ask,
}

/// Rules for calls: the first that matches decides.
///
/// ```
/// use cantle_agent::{Approvals, Permission};
/// use serde_json::json;
///
/// let approvals = Approvals::allowing()
///     .rule("code_exec", [("cmd", "git push*")], Permission::Ask)?
///     .rule("fetch_*", [], Permission::Deny)?;
/// assert_eq!(approvals.permission("code_exec", &json!({"cmd": "git push origin"})), Permission::Ask);
/// assert_eq!(approvals.permission("code_exec", &json!({"cmd": "ls"})), Permission::Allow);
/// # Ok::<(), cantle_agent::InvalidRule>(())
/// ```
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(try_from = "Written")]
pub struct Approvals {
    rules: Vec<Rule>,
    otherwise: Permission,
}

#[derive(Clone, Debug)]
struct Rule {
    tool: GlobMatcher,
    arguments: Vec<(String, GlobMatcher)>,
    permission: Permission,
}

/// A pattern of a rule that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is no pattern: {message}")]
pub struct InvalidRule {
    pattern: String,
    message: String,
}

/// Rules as a file has them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    default: Permission,
    #[serde(default, rename = "rule")]
    rules: Vec<WrittenRule>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenRule {
    tool: String,
    #[serde(default)]
    arguments: IndexMap<String, String>,
    permission: Permission,
}

impl TryFrom<Written> for Approvals {
    type Error = InvalidRule;

    fn try_from(written: Written) -> Result<Self, InvalidRule> {
        let mut approvals = Self {
            rules: Vec::new(),
            otherwise: written.default,
        };
        for rule in written.rules {
            let arguments = rule.arguments.iter();
            let arguments = arguments.map(|(name, pattern)| (name.as_str(), pattern.as_str()));
            approvals = approvals.rule(&rule.tool, arguments, rule.permission)?;
        }
        Ok(approvals)
    }
}

impl Approvals {
    /// Every call runs, unless a rule says otherwise.
    #[must_use]
    pub fn allowing() -> Self {
        Self::default()
    }

    /// Somebody is asked about every call, unless a rule says otherwise.
    #[must_use]
    pub fn asking() -> Self {
        Self {
            rules: Vec::new(),
            otherwise: Permission::Ask,
        }
    }

    /// The same with a rule behind the others: calls of tools whose names match a pattern (`*`, `?`,
    /// `[…]`), and whose arguments do, as far as named. An argument that is no text is matched as
    /// JSON; a `*` matches anything, also `/` and line ends.
    ///
    /// # Errors
    /// Where a pattern is none.
    pub fn rule<'a>(
        mut self,
        tool: &str,
        arguments: impl IntoIterator<Item = (&'a str, &'a str)>,
        permission: Permission,
    ) -> Result<Self, InvalidRule> {
        let arguments = arguments.into_iter();
        let arguments = arguments.map(|(name, text)| Ok((name.to_owned(), pattern(text)?)));
        self.rules.push(Rule {
            tool: pattern(tool)?,
            arguments: arguments.collect::<Result<_, _>>()?,
            permission,
        });
        Ok(self)
    }

    /// Whether they let every call through.
    pub(crate) fn allow_all(&self) -> bool {
        self.rules.is_empty() && self.otherwise == Permission::Allow
    }

    /// What these rules say of a call.
    #[must_use]
    pub fn permission(&self, tool: &str, arguments: &Value) -> Permission {
        let rule = self.rules.iter().find(|rule| rule.matches(tool, arguments));
        rule.map_or(self.otherwise, |rule| rule.permission)
    }
}

impl Rule {
    fn matches(&self, tool: &str, arguments: &Value) -> bool {
        self.tool.is_match(tool)
            && self.arguments.iter().all(|(name, pattern)| {
                let value = arguments.get(name);
                value.is_some_and(|value| match value {
                    Value::String(text) => pattern.is_match(text),
                    other => pattern.is_match(other.to_string()),
                })
            })
    }
}

fn pattern(text: &str) -> Result<GlobMatcher, InvalidRule> {
    let glob = GlobBuilder::new(text).literal_separator(false).build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| InvalidRule {
            pattern: text.to_owned(),
            message: error.kind().to_string(),
        })
}

/// What consent is bound to: the tool and its arguments as the model wrote them.
pub(crate) fn digest(tool: &str, arguments: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(tool);
    digest.update([0]);
    digest.update(arguments);
    hex(&digest.finalize()).chars().take(16).collect()
}

/// The questions of a run, and of those below it, that wait for an answer, by run and call.
#[derive(Debug, Default)]
pub(crate) struct Questions(Mutex<HashMap<(RunId, String), Open>>);

#[derive(Debug)]
struct Open {
    digest: String,
    answer: oneshot::Sender<Decision>,
}

/// An answer that answers nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// No call of this id waits for a decision.
    #[error("no call of this id waits for a decision")]
    NotAsked,
    /// The call's arguments are others than those that were decided on.
    #[error("the decision is about other arguments than those of the call")]
    OtherArguments,
}

impl Questions {
    fn open(&self) -> MutexGuard<'_, HashMap<(RunId, String), Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a question; whoever is asked answers through [`decide`](Self::decide).
    pub(crate) fn ask(
        &self,
        run: RunId,
        call_id: &str,
        digest: String,
    ) -> oneshot::Receiver<Decision> {
        let (answer, decision) = oneshot::channel();
        self.open()
            .insert((run, call_id.to_owned()), Open { digest, answer });
        decision
    }

    pub(crate) fn decide(
        &self,
        run: RunId,
        call_id: &str,
        digest: &str,
        decision: Decision,
    ) -> Result<(), DecisionError> {
        let mut open = self.open();
        let key = (run, call_id.to_owned());
        let asked = open.get(&key).ok_or(DecisionError::NotAsked)?;
        if asked.digest != digest {
            return Err(DecisionError::OtherArguments);
        }
        let asked = open.remove(&key).ok_or(DecisionError::NotAsked)?;
        asked
            .answer
            .send(decision)
            .map_err(|_| DecisionError::NotAsked)
    }
}
