//! Decisions on tool calls that need approval.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A decision whether a tool call may run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "decision", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Decision {
    /// The call runs as the model requested it.
    Approve,
    /// The call runs, and later calls of the same run that it covers run without a request. Rules that
    /// deny a call still apply.
    ApproveAlways {
        /// The later calls.
        scope: ApprovalScope,
    },
    /// The call runs with other arguments. Holds for this call only.
    Edit {
        /// The arguments: a JSON object, as text.
        arguments: String,
        /// Whether a hook of the program changed them, rather than the user.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        by_hook: bool,
    },
    /// The call does not run.
    Reject {
        /// The reason, for the model.
        reason: String,
    },
}

/// The calls that [`Decision::ApproveAlways`] covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ApprovalScope {
    /// Calls of the same tool whose arguments are the same text.
    Arguments,
    /// Every call of the tool, with any arguments.
    Tool,
}

impl Decision {
    /// A call that the user changed: it runs with these arguments, a JSON object as text.
    pub fn edit(arguments: impl Into<String>) -> Self {
        Self::Edit {
            arguments: arguments.into(),
            by_hook: false,
        }
    }

    /// Parses the text of a user's decision: `yes`, `no`, `no REASON`, `always` (this call with exactly these
    /// arguments), `always tool` (every call of the tool), or `edit ARGUMENTS` with a JSON object.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (word, rest) = match text.split_once(char::is_whitespace) {
            Some((word, rest)) => (word, rest.trim()),
            None => (text, ""),
        };
        let always = |scope| Some(Self::ApproveAlways { scope });
        match (word.to_lowercase().as_str(), rest) {
            ("yes" | "y" | "true", "") => Some(Self::Approve),
            ("no" | "n" | "false", reason) => Some(Self::rejection(reason)),
            ("always" | "a", "") => always(ApprovalScope::Arguments),
            ("always" | "a", "tool") => always(ApprovalScope::Tool),
            ("edit" | "e", arguments) => {
                let is_object = matches!(serde_json::from_str(arguments), Ok(Value::Object(_)));
                is_object.then(|| Self::edit(arguments))
            }
            _ => None,
        }
    }

    /// The decision of a user who rejects a call, with a reason or without (`""`).
    pub fn rejection(reason: &str) -> Self {
        let reason = match reason {
            "" => "the user rejected this call. Use another approach, or finish and explain."
                .to_owned(),
            reason => format!("the user rejected this call: {reason}"),
        };
        Self::Reject { reason }
    }
}
