//! Decisions before a tool call: hooks, approval rules, and requests to a person.

use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::message::ToolCall;
use cantle_core::tool::{Answer, ApprovalScope, AskUser, Decision, Question, QuestionId};
use tokio_util::sync::CancellationToken;

use super::resources::SessionResources;
use crate::approval::{Permission, digest};
use crate::error::RunError;
use crate::hooks::{BeforeTool, guarded};
use crate::rules::StandingApproval;
use crate::scope::RunScope;

/// Advice for the model after a call that may not run.
const ALTERNATIVE: &str = "Use an approach that doesn't need it, or finish and explain.";

/// Refuses a call of a tool above the principal's level, whatever was decided on it before.
pub(super) fn refusal(resources: &SessionResources, call: &ToolCall) -> Option<Decision> {
    let level = resources.tools.get(&call.name)?.tool.properties().level;
    let reason = level.refusal(&call.name, resources.run_options.principal.as_ref())?;
    Some(reject(reason))
}

/// Decides on a call. Waits for hooks and people. Returns the later calls that the user approved with it, too.
pub(super) async fn decide(
    scope: &RunScope,
    resources: &SessionResources,
    call: &ToolCall,
    cancellation: &CancellationToken,
) -> Result<(Decision, Option<StandingApproval>), RunError> {
    let agent = &resources.agent;
    let before = match &agent.hooks {
        Some(hooks) => guarded("before_tool", hooks.before_tool(call)).await?,
        None => BeforeTool::Call,
    };
    let mut edited;
    let (mut call, mut if_allowed, mut must_ask) = (call, Decision::Approve, false);
    match before {
        BeforeTool::Call => {}
        BeforeTool::Ask => must_ask = true,
        BeforeTool::Refuse { reason } => return Ok((Decision::Reject { reason }, None)),
        BeforeTool::Edit { arguments } => {
            edited = call.clone();
            edited.arguments.clone_from(&arguments);
            call = &edited;
            if_allowed = Decision::Edit {
                arguments,
                by_hook: true,
            };
        }
    }
    // Rules apply to the arguments that the tool gets. A call with invalid arguments has no effect
    // and needs no approval.
    let tool = resources.tools.get(&call.name).map(|tool| &tool.tool);
    let parsed = tool.and_then(|tool| tool.parse(&call.arguments).ok());
    let arguments = parsed.as_ref().map(|parsed| &parsed.arguments);
    let forwarded = tool
        .zip(arguments)
        .and_then(|(tool, arguments)| tool.forwarded(arguments));
    let permission = match arguments {
        Some(_) if must_ask => Permission::Ask,
        Some(arguments) => {
            let inner = forwarded
                .as_ref()
                .map(|(tool, inner)| (tool.as_str(), inner));
            let calls = [(call.name.as_str(), arguments)].into_iter().chain(inner);
            agent.approvals.permission_of_all(calls)
        }
        None => Permission::Allow,
    };
    // What is approved for later calls is the call of the tool that does the work.
    let effective_call = match forwarded {
        Some((name, arguments)) => &ToolCall::new(None, name, arguments.to_string()),
        None => call,
    };
    let decision = match permission {
        Permission::Allow => return Ok((if_allowed, None)),
        Permission::Deny => {
            let reason = format!("the user's rules deny this call. {ALTERNATIVE}");
            return Ok((reject(reason), None));
        }
        Permission::Ask => request(scope, resources, call, effective_call, cancellation).await,
    };
    Ok(match decision {
        Decision::Approve => (if_allowed, None),
        Decision::ApproveAlways { scope } => (if_allowed, Some(standing(effective_call, scope))),
        other => (other, None),
    })
}

fn standing(call: &ToolCall, scope: ApprovalScope) -> StandingApproval {
    StandingApproval {
        tool: call.name.clone(),
        arguments: match scope {
            ApprovalScope::Tool => None,
            _ => Some(call.arguments.clone()),
        },
    }
}

fn reject(reason: impl Into<String>) -> Decision {
    Decision::Reject {
        reason: reason.into(),
    }
}

/// Requests a decision from the holder of the run, or from the agent's user, unless an earlier decision
/// covers `effective_call`.
async fn request(
    scope: &RunScope,
    resources: &SessionResources,
    call: &ToolCall,
    effective_call: &ToolCall,
    cancellation: &CancellationToken,
) -> Decision {
    let digest = digest(&call.name, &call.arguments);
    let announce = || {
        scope.hub.emit(EventKind::ApprovalRequested {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            arguments: call.arguments.clone(),
            digest: digest.clone(),
        });
    };
    let user = &resources.agent.user;
    let answer = async {
        let mut standing_approvals = scope.standing_approvals.lock().await;
        if standing_approvals
            .iter()
            .any(|it| it.covers(effective_call))
        {
            return None;
        }
        let decision = if let Some(requests) = &scope.requests {
            // The holder can decide on several calls in any order.
            drop(standing_approvals);
            let open = requests.ask(scope.run, &call.id, digest.clone());
            announce();
            let decision = open.decision().await;
            standing_approvals = scope.standing_approvals.lock().await;
            decision.unwrap_or_else(|| reject("no decision was made on it."))
        } else if user.is_available() {
            announce();
            ask_user(&**user, scope.run, call).await
        } else {
            announce();
            reject(format!(
                "this call needs approval, and no one is available to give it. {ALTERNATIVE}"
            ))
        };
        // Calls that wait for their own decisions are covered at once.
        if let Decision::ApproveAlways { scope } = &decision {
            standing_approvals.insert(standing(effective_call, *scope));
        }
        Some(decision)
    };
    let decision = tokio::select! {
        decision = answer => decision,
        () = cancellation.cancelled() => Some(reject("the run was stopped before a decision was made.")),
    };
    let Some(decision) = decision else {
        return Decision::Approve;
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

/// Asks the agent's user.
async fn ask_user(user: &dyn AskUser, run: RunId, call: &ToolCall) -> Decision {
    let id = QuestionId::new(run, &call.id);
    let question = Question::approval(id, &call.name, &call.arguments);
    match user.ask(question).await {
        Ok(Answer::Approval { decision }) => decision,
        Ok(Answer::Confirm { yes: true }) => Decision::Approve,
        Ok(_) => Decision::rejection(""),
        Err(error) => reject(error.to_string()),
    }
}
