//! `POST /execute`: one call of a tool.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use cantle_core::ids::{RunId, unique_id};
use cantle_core::principal::{Level, Principal, PrincipalId};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolErrorKind, ToolOutput};
use futures_util::FutureExt as _;
use http::{Request, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::leases::{ActiveCall, Leased};
use super::{Refusal, ServedTools};
use crate::accounts::Account;
use crate::body::{self, BodyError};

/// Maximum size of a call.
const CALL_BYTES: usize = 4 << 20;
/// Maximum size of a tool's name, which responses repeat.
const NAME_BYTES: usize = 512;
/// Bytes charged for each byte of a call: small strings, parsed, are that much larger.
const CALL_WEIGHT: usize = 8;
/// How long a request body may make no progress.
const IDLE: Duration = Duration::from_secs(30);
/// Time of a call whose tool has no limit of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a client waits that has to free memory first.
const MEMORY_RETRY: Duration = Duration::from_secs(5);

#[derive(Deserialize)]
struct ToolCallRequest {
    tool_name: String,
    #[serde(default)]
    arguments: Value,
    user_id: Option<String>,
    level: Option<String>,
}

#[derive(Serialize)]
pub(super) struct ToolResult {
    tool_name: String,
    success: bool,
    result: Value,
    error: Option<String>,
}

pub(super) async fn execute(
    State(served): State<Arc<ServedTools>>,
    request: Request<Body>,
) -> Result<Json<ToolResult>, Refusal> {
    let (head, body) = request.into_parts();
    let owner = served.authenticate(&Request::from_parts(head, ())).await?;
    let mut charge = Account::new(&served.leases.fleet.accounts, &owner).charge();
    let body = body::read_all(body, CALL_BYTES, IDLE, &mut charge, CALL_WEIGHT).await;
    let body = body.map_err(|error| match error {
        BodyError::TooLarge { .. } => {
            Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error.to_string())
        }
        BodyError::Memory(error) => Refusal::limited(error.to_string(), MEMORY_RETRY),
        BodyError::Idle | BodyError::Disconnected => {
            Refusal::new(StatusCode::REQUEST_TIMEOUT, error.to_string())
        }
    })?;
    let call = serde_json::from_slice(&body);
    let call: ToolCallRequest = call.map_err(|error| {
        let detail = format!("the call is invalid: {error}");
        Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    })?;
    if call.tool_name.len() > NAME_BYTES {
        let detail = "the name of the tool is too long";
        return Err(Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, detail));
    }
    let principal = served.principal(&owner, &call)?;
    let outcome = served.call(&owner, &principal, &call).await?;
    let (success, result, error) = match outcome {
        Ok(output) => {
            let text = output.content.text();
            let result = serde_json::from_str(&text).unwrap_or_else(|_| Value::from(&*text));
            // The orchestrator shows the model nothing else of a failure.
            let error = (!output.success).then_some(text);
            (output.success, result, error)
        }
        Err(error) => (false, Value::Null, Some(error.to_string())),
    };
    Ok(Json(ToolResult {
        tool_name: call.tool_name,
        success,
        result,
        error,
    }))
}

impl ServedTools {
    /// Returns the principal that a call is for.
    fn principal(&self, owner: &PrincipalId, call: &ToolCallRequest) -> Result<Principal, Refusal> {
        let given = call.user_id.as_deref().filter(|id| !id.is_empty());
        // As the orchestrator ranks a level that it does not know.
        let level = call.level.as_deref().map(|level| level.parse());
        let level = level.map(Result::unwrap_or_default);
        let bound = self.leases.fleet.settings.keys.level_of(owner);
        let (id, level) = match (bound, given) {
            (Some(_), Some(id)) if id != owner.as_str() => {
                let detail = format!("the key is bound to the principal `{owner}`");
                return Err(Refusal::new(StatusCode::FORBIDDEN, detail));
            }
            (Some(bound), _) => (
                owner.as_str(),
                level.map_or(bound, |it: Level| it.min(bound)),
            ),
            (None, given) => (given.unwrap_or(owner.as_str()), level.unwrap_or_default()),
        };
        Principal::new(id, level)
            .map_err(|error| Refusal::new(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()))
    }

    async fn call(
        &self,
        owner: &PrincipalId,
        principal: &Principal,
        call: &ToolCallRequest,
    ) -> Result<Result<ToolOutput, ToolError>, Refusal> {
        let name = call.tool_name.rsplit('.').next().unwrap_or_default();
        let tool = self.service.tools.iter().find(|tool| tool.name() == name);
        let refused = |message| Ok(Err(ToolError::failed(message)));
        let Some(tool) = tool else {
            return refused(format!("Unknown tool: {}", call.tool_name));
        };
        if let Some(refusal) = tool
            .properties()
            .level
            .refusal(&call.tool_name, Some(principal))
        {
            return refused(refusal);
        }
        let arguments = match &call.arguments {
            Value::Null => json!({}),
            given => given.clone(),
        };
        let arguments = match tool.parse(&arguments.to_string()) {
            Ok(parsed) => parsed.arguments,
            Err(error) => return Ok(Err(error.into())),
        };
        let mut active = self.leases.begin_call(owner, principal).await?;
        let needs_sandbox = !self.service.without_sandbox.iter().any(|it| it == name);
        let leased = match needs_sandbox {
            true => match active.sandbox().await? {
                Ok(leased) => Some(leased),
                Err(error) => return Ok(Err(error.into())),
            },
            false => None,
        };
        Ok(run(tool, arguments, principal, leased, &mut active).await)
    }
}

/// Runs a tool in the sandbox of a principal, which is closed if it no longer works.
async fn run(
    tool: &DynTool,
    arguments: Value,
    principal: &Principal,
    leased: Option<Leased>,
    active: &mut ActiveCall,
) -> Result<ToolOutput, ToolError> {
    let run = leased.as_ref().map_or_else(RunId::new, |leased| leased.run);
    let has_sandbox = leased.is_some();
    let mut cx = ToolContext::new(run, unique_id());
    cx.principal = Some(principal.clone());
    cx.sandbox = leased.map(|leased| leased.sandbox);
    cx.cancellation = active.stopping();
    let stopping = cx.cancellation.clone();
    let limit = tool.properties().timeout.unwrap_or(CALL_TIMEOUT);
    let calling = AssertUnwindSafe(tool.call(arguments, cx)).catch_unwind();
    let result = match stopping.run_until_cancelled(timeout(limit, calling)).await {
        Some(Ok(Ok(result))) => result,
        Some(Ok(Err(panic))) => Err(ToolError::from_panic(&*panic)),
        Some(Err(_)) => {
            let mut message = format!("The call timed out after {} s.", limit.as_secs());
            if has_sandbox {
                active.close().await;
                message += " Its sandbox was closed; the next call opens a new one.";
            }
            Err(ToolError::failed(message))
        }
        None => Err(ToolError::failed("The server is stopping.")),
    };
    if result
        .as_ref()
        .is_err_and(|error| error.kind() == ToolErrorKind::SandboxGone)
    {
        active.close().await;
    }
    result
}
