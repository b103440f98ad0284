//! Approvals: which tool calls may run, and which need a decision.
//!
//! A rule allows, denies or asks about a call, by its tool and arguments. A decision is bound to the
//! arguments it was made for: to their digest, which the request carries and the answer must repeat.

use std::collections::HashMap;
use std::fmt;

use cantle_core::ids::RunId;
use cantle_core::tool::{Decision, ToolSpec};
use globset::{GlobBuilder, GlobMatcher};
use indexmap::IndexMap;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

/// The result of the rules for a call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Permission {
    /// The call runs.
    #[default]
    Allow,
    /// The call does not run, and the model is informed.
    Deny,
    /// The call needs a decision. Without a person to decide, it does not run.
    Ask,
}

/// Rules for tool calls: the first that matches applies.
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
#[serde(try_from = "ApprovalsFile")]
pub struct Approvals {
    rules: Vec<ApprovalRule>,
    default: Permission,
}

#[derive(Clone, Debug)]
struct ApprovalRule {
    tool: GlobMatcher,
    /// Whether `tool` is a name, which must be that of a tool, rather than a pattern.
    is_name: bool,
    arguments: Vec<(String, GlobMatcher)>,
    permission: Permission,
}

/// An invalid pattern in a rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{pattern}` is not a valid pattern: {message}")]
pub struct InvalidRule {
    pattern: String,
    message: String,
}

/// The form of approvals in a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalsFile {
    #[serde(default)]
    default: Permission,
    #[serde(default, rename = "rule")]
    rules: Vec<RuleTable>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleTable {
    tool: String,
    #[serde(default)]
    arguments: IndexMap<String, String>,
    permission: Permission,
}

impl TryFrom<ApprovalsFile> for Approvals {
    type Error = InvalidRule;

    fn try_from(file: ApprovalsFile) -> Result<Self, InvalidRule> {
        let mut approvals = Self {
            rules: Vec::new(),
            default: file.default,
        };
        for rule in file.rules {
            let arguments = rule.arguments.iter();
            let arguments = arguments.map(|(name, pattern)| (name.as_str(), pattern.as_str()));
            approvals = approvals.rule(&rule.tool, arguments, rule.permission)?;
        }
        Ok(approvals)
    }
}

impl Approvals {
    /// Rules that allow every call by default.
    pub fn allowing() -> Self {
        Self::default()
    }

    /// Rules that ask about every call by default.
    pub fn asking() -> Self {
        Self {
            rules: Vec::new(),
            default: Permission::Ask,
        }
    }

    /// Adds a rule for the tools whose names match a pattern (`*`, `?`, `[…]`), and for the calls whose
    /// named arguments match theirs. Arguments other than strings are matched as JSON; a `*` matches
    /// any text, including `/` and newlines.
    ///
    /// # Errors
    /// If a pattern is invalid.
    pub fn rule<'a>(
        mut self,
        tool: &str,
        arguments: impl IntoIterator<Item = (&'a str, &'a str)>,
        permission: Permission,
    ) -> Result<Self, InvalidRule> {
        let arguments = arguments.into_iter();
        let arguments = arguments.map(|(name, text)| Ok((name.to_owned(), pattern(text)?)));
        self.rules.push(ApprovalRule {
            is_name: !tool.contains(['*', '?', '[', '{', '\\']),
            tool: pattern(tool)?,
            arguments: arguments.collect::<Result<_, _>>()?,
            permission,
        });
        Ok(self)
    }

    /// Returns the rules for a sub-agent with other tools: those about tools that it does not have are no error.
    #[must_use]
    pub fn for_sub_agent(mut self) -> Self {
        for rule in &mut self.rules {
            rule.is_name = false;
        }
        self
    }

    /// Whether every call is allowed.
    pub(crate) fn allow_all(&self) -> bool {
        self.rules.is_empty() && self.default == Permission::Allow
    }

    /// Whether some call may need a person's decision: a rule asks, or calls that no rule matches do.
    pub fn may_ask(&self) -> bool {
        self.default == Permission::Ask
            || self
                .rules
                .iter()
                .any(|rule| rule.permission == Permission::Ask)
    }

    /// Checks that the rules name tools and arguments that exist. A pattern may match tools that are
    /// added later, and any rule those to which another tool forwards calls.
    pub(crate) fn check(&self, tools: &[ToolSpec], are_forwarded: bool) -> Result<(), String> {
        for rule in &self.rules {
            let pattern = rule.tool.glob().glob();
            let matching = || tools.iter().filter(|spec| rule.tool.is_match(spec.name()));
            if rule.is_name && !are_forwarded && matching().next().is_none() {
                let names: Vec<_> = tools.iter().map(ToolSpec::name).collect();
                return Err(format!(
                    "an approval rule is about the tool `{pattern}`, which does not exist. The tools are: {}",
                    names.join(", ")
                ));
            }
            for (argument, _) in &rule.arguments {
                let mut specs = matching().peekable();
                if specs.peek().is_some() && !specs.any(|spec| accepts(spec, argument)) {
                    return Err(format!(
                        "an approval rule for `{pattern}` is about the argument `{argument}`, which does not exist"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Returns the permission of a call.
    pub fn permission(&self, tool: &str, arguments: &Value) -> Permission {
        self.permission_of_all([(tool, arguments)])
    }

    /// Returns the permission of a call that is several calls: the strictest that a rule gives one of them.
    pub(crate) fn permission_of_all<'a>(
        &self,
        calls: impl IntoIterator<Item = (&'a str, &'a Value)>,
    ) -> Permission {
        let ruled = calls.into_iter().filter_map(|(tool, arguments)| {
            let rule = self.rules.iter().find(|rule| rule.matches(tool, arguments));
            rule.map(|rule| rule.permission)
        });
        let strictness = |permission: &Permission| match permission {
            Permission::Allow => 0,
            Permission::Ask => 1,
            Permission::Deny => 2,
        };
        ruled.max_by_key(strictness).unwrap_or(self.default)
    }
}

/// A rule in each line, and what holds for all other calls in the last.
impl fmt::Display for Approvals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for rule in &self.rules {
            write!(f, "{} {}", rule.permission.verb(), rule.tool.glob().glob())?;
            for (index, (name, pattern)) in rule.arguments.iter().enumerate() {
                let conjunction = if index == 0 { "with" } else { "and" };
                write!(
                    f,
                    " {conjunction} {name} = {}",
                    pattern.glob().glob().escape_debug()
                )?;
            }
            writeln!(f)?;
        }
        let rest = if self.rules.is_empty() {
            "calls"
        } else {
            "others"
        };
        write!(f, "{} all {rest}", self.default.verb())
    }
}

impl Permission {
    fn verb(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
            Self::Ask => "ask about",
        }
    }
}

impl ApprovalRule {
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

/// Whether a call of a tool may have an argument of this name.
fn accepts(spec: &ToolSpec, argument: &str) -> bool {
    let schema = spec.parameters();
    let is_open = !matches!(
        schema.get("additionalProperties"),
        Some(Value::Bool(false)) | None
    );
    let properties = schema.get("properties");
    is_open || properties.is_none_or(|properties| properties.get(argument).is_some())
}

fn pattern(text: &str) -> Result<GlobMatcher, InvalidRule> {
    let glob = GlobBuilder::new(text).literal_separator(false).build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| InvalidRule {
            pattern: text.to_owned(),
            message: error.kind().to_string(),
        })
}

/// Returns the digest of a call to which a decision is bound: of its tool and unparsed arguments.
pub(crate) fn digest(tool: &str, arguments: &str) -> String {
    let mut digest = Sha256::new();
    digest.update(tool);
    digest.update([0]);
    digest.update(arguments);
    let mut digest = format!("{:x}", digest.finalize());
    digest.truncate(16);
    digest
}

/// The open approval requests of a run and its sub-agents, by run and call.
#[derive(Debug, Default)]
pub(crate) struct ApprovalRequests(Mutex<HashMap<(RunId, String), ApprovalRequest>>);

#[derive(Debug)]
struct ApprovalRequest {
    digest: String,
    answer: oneshot::Sender<Decision>,
}

/// A decision that matches no open request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecisionError {
    /// No call with this id waits for a decision.
    #[error("no call of this id waits for a decision")]
    NotAsked,
    /// The decision was made for other arguments.
    #[error("the decision is about other arguments than those of the call")]
    OtherArguments,
}

/// A request that waits for its decision. Dropping it withdraws it.
#[derive(Debug)]
pub(crate) struct OpenApproval<'a> {
    requests: &'a ApprovalRequests,
    key: (RunId, String),
    decision: oneshot::Receiver<Decision>,
}

impl OpenApproval<'_> {
    /// Waits for the decision; `None` if there will be none.
    pub(crate) async fn decision(mut self) -> Option<Decision> {
        (&mut self.decision).await.ok()
    }
}

impl Drop for OpenApproval<'_> {
    fn drop(&mut self) {
        self.requests.0.lock().remove(&self.key);
    }
}

impl ApprovalRequests {
    /// Adds a request, which [`decide`](Self::decide) answers.
    pub(crate) fn ask(&self, run: RunId, call_id: &str, digest: String) -> OpenApproval<'_> {
        let (answer, decision) = oneshot::channel();
        let key = (run, call_id.to_owned());
        let request = ApprovalRequest { digest, answer };
        self.0.lock().insert(key.clone(), request);
        OpenApproval {
            requests: self,
            key,
            decision,
        }
    }

    /// Answers a request.
    pub(crate) fn decide(
        &self,
        run: RunId,
        call_id: &str,
        digest: &str,
        decision: Decision,
    ) -> Result<(), DecisionError> {
        let mut requests = self.0.lock();
        let key = (run, call_id.to_owned());
        let request = requests.get(&key).ok_or(DecisionError::NotAsked)?;
        if request.digest != digest {
            return Err(DecisionError::OtherArguments);
        }
        let request = requests.remove(&key).ok_or(DecisionError::NotAsked)?;
        let answered = request.answer.send(decision);
        answered.map_err(|_| DecisionError::NotAsked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_is_dropped_is_withdrawn() {
        let (requests, run) = (ApprovalRequests::default(), RunId::new());
        let open = requests.ask(run, "call", "digest".to_owned());
        assert_eq!(requests.0.lock().len(), 1);
        drop(open);
        assert!(requests.0.lock().is_empty());
        let decided = requests.decide(run, "call", "digest", Decision::Approve);
        assert_eq!(decided, Err(DecisionError::NotAsked));
    }
}
