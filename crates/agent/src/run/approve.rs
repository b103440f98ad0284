//! Decisions before a tool call: hooks, approval rules, and requests to a person.

use cantle_core::escape::for_decision;
use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::message::ToolCall;
use cantle_core::tool::{Answer, AskUser, Question, QuestionId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::resources::SessionResources;
use crate::approval::{Permission, digest};
use crate::error::RunError;
use crate::hooks::{BeforeTool, guarded};
use crate::rules::Decision;
use crate::scope::RunScope;

/// Decides on a call. Waits for hooks and people.
pub(super) async fn decide(
    scope: &RunScope,
    resources: &SessionResources,
    call: &ToolCall,
    cancellation: &CancellationToken,
) -> Result<Decision, RunError> {
    let agent = &resources.agent;
    let before = match &agent.hooks {
        Some(hooks) => guarded("before_tool", hooks.before_tool(call)).await?,
        None => BeforeTool::Call,
    };
    let mut edited;
    let (mut call, mut decision, mut asks) = (call, Decision::Approve, false);
    match before {
        BeforeTool::Call => {}
        BeforeTool::Ask => asks = true,
        BeforeTool::Refuse { reason } => return Ok(Decision::Reject { reason }),
        BeforeTool::Edit { arguments } => {
            edited = call.clone();
            edited.arguments.clone_from(&arguments);
            call = &edited;
            decision = Decision::Edit { arguments };
        }
    }
    // Rules apply to the arguments that the tool gets. A call with invalid arguments has no effect
    // and needs no approval.
    let tool = resources.tools.get(&call.name);
    let parsed = tool.and_then(|tool| tool.tool.parse(&call.arguments).ok());
    let permission = match parsed {
        Some(_) if asks => Permission::Ask,
        Some(parsed) => agent.approvals.permission(&call.name, &parsed.arguments),
        None => Permission::Allow,
    };
    Ok(match permission {
        Permission::Allow => decision,
        Permission::Deny => {
            reject("calls like this are not allowed in this run. Find another way.")
        }
        Permission::Ask => match request(scope, resources, call, cancellation).await {
            Decision::Approve => decision,
            other => other,
        },
    })
}

fn reject(reason: impl Into<String>) -> Decision {
    Decision::Reject {
        reason: reason.into(),
    }
}

/// Requests a decision from the holder of the run, or from the agent's user.
async fn request(
    scope: &RunScope,
    resources: &SessionResources,
    call: &ToolCall,
    cancellation: &CancellationToken,
) -> Decision {
    let digest = digest(&call.name, &call.arguments);
    let requested = EventKind::ApprovalRequested {
        call_id: call.id.clone(),
        tool: call.name.clone(),
        arguments: call.arguments.clone(),
        digest: digest.clone(),
    };
    let user = &resources.agent.user;
    let answer = async {
        if let Some(requests) = &scope.requests {
            let answer = requests.ask(scope.run, &call.id, digest);
            scope.hub.emit(requested);
            let answer = answer.await;
            answer.unwrap_or_else(|_| reject("no decision was made on it."))
        } else if user.is_available() {
            scope.hub.emit(requested);
            ask_user(&**user, scope.run, call).await
        } else {
            reject(
                "this call needs approval, and no one can approve calls in this run. Find another way.",
            )
        }
    };
    let decision = tokio::select! {
        decision = answer => decision,
        () = cancellation.cancelled() => reject("the run was stopped before a decision was made."),
    };
    let reason = match &decision {
        Decision::Reject { reason } => Some(reason.clone()),
        _ => None,
    };
    scope.hub.emit(EventKind::ApprovalGiven {
        call_id: call.id.clone(),
        approved: reason.is_none(),
        reason,
    });
    decision
}

/// Asks the agent's user, who can approve or reject.
async fn ask_user(user: &dyn AskUser, run: RunId, call: &ToolCall) -> Decision {
    let id = QuestionId::new(run, &call.id);
    let text = format!(
        "The model wants to call {} with\n{}\nMay it?",
        for_decision(&call.name),
        for_decision(&call.arguments)
    );
    match user.ask(Question::confirm(id, text)).await {
        Ok(Answer::Confirm { yes: true }) => Decision::Approve,
        Ok(_) => reject("the user does not allow this call. Find another way."),
        Err(error) => reject(error.to_string()),
    }
}

/// Returns arguments for display: as JSON if they are, else the model's text.
pub(super) fn display_arguments(call: &ToolCall) -> Value {
    serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()))
}
