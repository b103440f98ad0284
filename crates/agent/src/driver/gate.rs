//! What stands before a tool call: hooks, rules, and somebody who is asked.

use std::collections::HashMap;
use std::sync::Arc;

use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::message::ToolCall;
use cantle_core::tool::{Answer, AskUser, DynTool, Question, QuestionId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::approval::{Approvals, Decision, Permission, Questions, digest};
use crate::error::RunError;
use crate::hooks::{BeforeTool, Hooks, guarded};
use crate::hub::Hub;

/// Decides which calls of a run may be made.
pub(crate) struct Gate {
    pub(crate) approvals: Approvals,
    pub(crate) hooks: Option<Arc<dyn Hooks>>,
    pub(crate) run: RunId,
    /// Who is asked where somebody has to be.
    pub(crate) asked: Asked,
}

/// Who decides on calls that need somebody's consent.
pub(crate) enum Asked {
    /// Whoever holds the run.
    Holder(Arc<Questions>),
    /// The user that the agent can ask.
    User(Arc<dyn AskUser>),
    /// Nobody: those calls don't run.
    Nobody,
}

impl Asked {
    /// Where questions are put to whoever holds the run.
    pub(super) fn questions(&self) -> Option<Arc<Questions>> {
        match self {
            Self::Holder(questions) => Some(Arc::clone(questions)),
            Self::User(_) | Self::Nobody => None,
        }
    }
}

impl Gate {
    /// Whether every call may be made, without looking.
    pub(super) fn is_open(&self) -> bool {
        self.hooks.is_none() && self.approvals.allow_all()
    }

    /// Decides on a call, and takes the time that takes.
    pub(super) async fn decide(
        &self,
        call: &ToolCall,
        tools: &HashMap<String, DynTool>,
        hub: &Hub,
        cancellation: &CancellationToken,
    ) -> Result<Decision, RunError> {
        let before = match &self.hooks {
            Some(hooks) => guarded("before_tool", hooks.before_tool(call)).await?,
            None => BeforeTool::Call,
        };
        let mut call = call.clone();
        let mut decision = Decision::Approve;
        let mut ask = false;
        match before {
            BeforeTool::Call => {}
            BeforeTool::Ask => ask = true,
            BeforeTool::Refuse { reason } => return Ok(Decision::Reject { reason }),
            BeforeTool::Edit { arguments } => {
                call.arguments.clone_from(&arguments);
                decision = Decision::Edit { arguments };
            }
        }
        // Rules look at what the tool will get. What it would refuse anyway needs no consent.
        let tool = tools.get(&call.name);
        let parsed = tool.and_then(|tool| tool.parse(&call.arguments).ok());
        let permission = match parsed {
            Some(_) if ask => Permission::Ask,
            Some(parsed) => self.approvals.permission(&call.name, &parsed.arguments),
            None => Permission::Allow,
        };
        Ok(match permission {
            Permission::Allow => decision,
            Permission::Deny => Decision::Reject {
                reason: "calls like this are not allowed in this run. Find another way.".to_owned(),
            },
            Permission::Ask => self.ask(&call, hub, cancellation, decision).await,
        })
    }

    async fn ask(
        &self,
        call: &ToolCall,
        hub: &Hub,
        cancellation: &CancellationToken,
        approved: Decision,
    ) -> Decision {
        let digest = digest(&call.name, &call.arguments);
        let requested = EventKind::ApprovalRequested {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            arguments: call.arguments.clone(),
            digest: digest.clone(),
        };
        let undecided = |why: &str| Decision::Reject {
            reason: why.to_owned(),
        };
        let answer = async {
            match &self.asked {
                Asked::Nobody => undecided(
                    "this call needs somebody's consent, and nobody can be asked in this run. Find \
                     another way.",
                ),
                Asked::Holder(questions) => {
                    let answer = questions.ask(self.run, &call.id, digest);
                    hub.emit(requested);
                    answer
                        .await
                        .unwrap_or_else(|_| undecided("nobody decided on it."))
                }
                Asked::User(user) => {
                    hub.emit(requested);
                    ask_user(&**user, self.run, call).await
                }
            }
        };
        let decision = tokio::select! {
            decision = answer => decision,
            () = cancellation.cancelled() => Decision::Reject {
                reason: "the run was stopped before anybody had decided on it.".to_owned(),
            },
        };
        let reason = match &decision {
            Decision::Reject { reason } => Some(reason.clone()),
            _ => None,
        };
        hub.emit(EventKind::ApprovalGiven {
            call_id: call.id.clone(),
            approved: reason.is_none(),
            reason,
        });
        match decision {
            Decision::Approve => approved,
            other => other,
        }
    }
}

/// Asks the user of the agent, who can say yes or no.
async fn ask_user(user: &dyn AskUser, run: RunId, call: &ToolCall) -> Decision {
    let id = QuestionId::new(run, &call.id);
    let text = format!(
        "The model wants to call {} with\n{}\nMay it?",
        call.name, call.arguments
    );
    match user.ask(Question::confirm(id, text)).await {
        Ok(Answer::Confirm { yes: true }) => Decision::Approve,
        Ok(_) => Decision::Reject {
            reason: "the user does not allow this call. Find another way.".to_owned(),
        },
        Err(error) => Decision::Reject {
            reason: error.to_string(),
        },
    }
}

/// Arguments as they are shown: as JSON where they are, else the model's text.
pub(super) fn shown(call: &ToolCall) -> Value {
    serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()))
}
