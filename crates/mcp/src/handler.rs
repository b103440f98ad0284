//! Requests and notifications of a server: progress and questions to the user. Sampling is refused.

use std::sync::atomic::{AtomicBool, Ordering};

use cantle_core::escape::{for_display, shorten};
use cantle_core::tool::{Answer, Question, ToolContext, ToolError};
use parking_lot::Mutex;
use rmcp::model::{
    ClientCapabilities, ClientConfig, ElicitRequestParams, ElicitResult, ElicitationAction,
    ErrorData, Implementation, ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::{NotificationContext, RequestContext, RoleClient};
use rmcp::{ClientHandler, model::ElicitationCapability};
use serde_json::{Map, Value};
use tokio::sync::watch;

use crate::limits::{MAX_PROGRESS_CHARS, MAX_QUESTIONS};

/// The answer to a question for an optional field without a default.
const LEFT_OUT: &str = "(leave out)";

/// The client's side of a connection.
#[derive(Debug)]
pub(crate) struct Handler {
    server: String,
    /// The running call. A server works on one at a time, so its requests belong to it.
    call: Mutex<Option<ActiveCall>>,
    /// Whether the tools may differ from those that were listed last.
    changed: AtomicBool,
}

#[derive(Debug)]
struct ActiveCall {
    cx: ToolContext,
    questions: usize,
    /// Whether the user is being asked. Closed when the call ends.
    asking: watch::Sender<bool>,
}

/// Marks a call as running until it is dropped.
pub(crate) struct CallGuard<'h>(&'h Handler);

impl Drop for CallGuard<'_> {
    fn drop(&mut self) {
        *self.0.call.lock() = None;
    }
}

impl Handler {
    pub(crate) fn new(server: &str) -> Self {
        Self {
            server: server.to_owned(),
            call: Mutex::new(None),
            // A server that was started again may have other tools.
            changed: AtomicBool::new(true),
        }
    }

    /// Returns whether the tools may have changed since this was asked.
    pub(crate) fn take_changed(&self) -> bool {
        self.changed.swap(false, Ordering::Relaxed)
    }

    /// Directs what the server sends to a call. The receiver reports whether the user is being asked. Dropping it withdraws
    /// an open question: a server can end a call without having ended its question.
    pub(crate) fn begin_call(&self, cx: &ToolContext) -> (CallGuard<'_>, watch::Receiver<bool>) {
        let (asking, is_asking) = watch::channel(false);
        *self.call.lock() = Some(ActiveCall {
            cx: cx.clone(),
            questions: 0,
            asking,
        });
        (CallGuard(self), is_asking)
    }

    /// Asks the user for the fields of a form; `None` if the user declines.
    async fn ask(
        &self,
        cx: &ToolContext,
        message: &str,
        schema: &Value,
    ) -> Result<Option<Value>, ToolError> {
        let server = &self.server;
        let text = format!(
            "The MCP server `{server}` asks:\n{}\nAnswer it?",
            for_display(message)
        );
        let question = Question::confirm(cx.question_id(), text);
        if cx.user.ask(question).await? != (Answer::Confirm { yes: true }) {
            return Ok(None);
        }
        let mut content = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object);
        let required = schema.get("required").and_then(Value::as_array);
        for (name, field) in properties.into_iter().flatten() {
            let is_required = required.is_some_and(|it| it.iter().any(|it| it == name));
            let question = question_for(cx, server, (name, field), is_required);
            let answer = cx.user.ask(question).await?.to_string();
            if is_required || answer != LEFT_OUT {
                content.insert(name.clone(), value_of(answer, field)?);
            }
        }
        Ok(Some(Value::Object(content)))
    }
}

/// The question for one field of a form.
fn question_for(
    cx: &ToolContext,
    server: &str,
    (name, field): (&str, &Value),
    is_required: bool,
) -> Question {
    let text = |key: &str| field.get(key).and_then(Value::as_str);
    let label = text("title").unwrap_or(name);
    let mut shown = format!("For the MCP server `{server}`: {}", for_display(label));
    if let Some(description) = text("description") {
        shown = format!("{shown} ({})", for_display(description));
    }
    let shown = shorten(&shown, 1_000);
    let id = cx.question_id();
    // An empty answer means the default, and can't be one.
    let default = field.get("default").filter(|default| *default != "");
    let can_be_left_out = !is_required && default.is_none();
    let mut choices = choices(field);
    if can_be_left_out && !choices.is_empty() {
        choices.push(LEFT_OUT.to_owned());
    }
    let question = match text("type") {
        Some("boolean") if !can_be_left_out => Question::confirm(id, shown),
        Some("boolean") => Question::choice(id, shown, ["yes", "no", LEFT_OUT]),
        _ if !choices.is_empty() => Question::choice(id, shown, choices),
        _ => Question::new(id, shown),
    };
    match default {
        None if can_be_left_out => question.with_default(LEFT_OUT),
        Some(Value::String(default)) => question.with_default(default),
        Some(Value::Bool(default)) => question.with_default(if *default { "yes" } else { "no" }),
        Some(Value::Number(default)) => question.with_default(default.to_string()),
        _ => question,
    }
}

/// The values of an enumeration.
fn choices(field: &Value) -> Vec<String> {
    let field = field.get("items").unwrap_or(field);
    let list = |key: &str| {
        let list = field.get(key).and_then(Value::as_array);
        list.into_iter().flatten()
    };
    let titled = list("oneOf").chain(list("anyOf"));
    let titled = titled.filter_map(|choice| choice.get("const"));
    let values = list("enum").chain(titled);
    let texts = values.filter_map(Value::as_str);
    texts.take(100).map(str::to_owned).collect()
}

/// Converts an answer to the type of its field.
fn value_of(text: String, field: &Value) -> Result<Value, ToolError> {
    match field.get("type").and_then(Value::as_str) {
        Some("boolean") => Ok(Value::Bool(text == "yes")),
        Some("string") | None => Ok(Value::String(text)),
        Some("array") => Ok(Value::Array(vec![Value::String(text)])),
        Some(kind) => {
            let value: Option<Value> = serde_json::from_str(&text).ok();
            let value = value.filter(|value| match kind {
                "integer" => value.is_i64() || value.is_u64(),
                "number" => value.is_number(),
                _ => true,
            });
            value.ok_or_else(|| ToolError::failed("The user's answer has another type."))
        }
    }
}

impl ClientHandler for Handler {
    fn get_info(&self) -> ClientConfig {
        let mut capabilities = ClientCapabilities::default();
        capabilities.elicitation = Some(ElicitationCapability::new());
        let implementation = Implementation::new("cantle", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(capabilities, implementation)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _: NotificationContext<RoleClient>,
    ) {
        let total = progress.total.map(|total| format!("/{total}"));
        let (total, message) = (total.unwrap_or_default(), progress.message);
        let message = message.unwrap_or_default();
        let line = format!("{}{total} {message}", progress.progress);
        let line = shorten(&for_display(line.trim_end()), MAX_PROGRESS_CHARS);
        if let Some(call) = &*self.call.lock() {
            call.cx.progress.output(&format!("{line}\n"));
        }
    }

    async fn on_tool_list_changed(&self, _: NotificationContext<RoleClient>) {
        self.changed.store(true, Ordering::Relaxed);
    }

    async fn create_elicitation(
        &self,
        request: ElicitRequestParams,
        context: RequestContext<RoleClient>,
    ) -> Result<ElicitResult, ErrorData> {
        let declined = Ok(ElicitResult::new(ElicitationAction::Decline));
        let ElicitRequestParams::FormElicitationParams {
            message,
            requested_schema,
            ..
        } = request
        else {
            return declined;
        };
        let Ok(schema) = serde_json::to_value(requested_schema) else {
            return declined;
        };
        let fields = schema.get("properties").and_then(Value::as_object);
        let questions = 1 + fields.map_or(0, Map::len);
        let (cx, asking) = match &mut *self.call.lock() {
            Some(call) if call.questions + questions <= MAX_QUESTIONS => {
                call.questions += questions;
                (call.cx.clone(), call.asking.clone())
            }
            _ => return declined,
        };
        // A call has one open question at a time.
        if !cx.user.is_available() || asking.send_replace(true) {
            return declined;
        }
        let message = shorten(&message, 2_000);
        let answered = tokio::select! {
            answered = self.ask(&cx, &message, &schema) => answered,
            () = context.ct.cancelled() => Ok(None),
            () = cx.cancellation.cancelled() => Ok(None),
            () = asking.closed() => Ok(None),
        };
        asking.send_replace(false);
        match answered {
            Ok(Some(content)) => {
                Ok(ElicitResult::new(ElicitationAction::Accept).with_content(content))
            }
            Ok(None) => declined,
            Err(_) => Ok(ElicitResult::new(ElicitationAction::Cancel)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_answer_of_another_type_than_its_field_fails() {
        for (kind, text, expected) in [
            ("integer", "12", Some(json!(12))),
            ("integer", "1.5", None),
            ("integer", "true", None),
            ("number", "1.5", Some(json!(1.5))),
            ("number", "[1]", None),
            ("number", "many", None),
            ("string", "12", Some(json!("12"))),
        ] {
            let value = value_of(text.to_owned(), &json!({"type": kind}));
            assert_eq!(value.ok(), expected, "{kind} {text}");
        }
    }
}
