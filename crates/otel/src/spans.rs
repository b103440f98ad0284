//! Spans from the events of a run.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use cantle_core::event::{Event, EventKind};
use cantle_core::ids::RunId;
use cantle_core::llm::StopReason;
use cantle_core::usage::TokenUsage;
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanContext, SpanKind, Status, TraceContextExt as _, Tracer as _,
};
use opentelemetry::{Context, KeyValue, StringValue, Value};
use opentelemetry_sdk::trace::{SdkTracer, Span};
use serde_json::json;

use crate::exporter::Counts;

/// Maximum size of a text in an attribute, in bytes.
const MAX_TEXT_BYTES: usize = 16 << 10;

/// Maximum length of a reason in a provider's words, and of the name of a tool in a model's.
const MAX_NAME_CHARS: usize = 100;

/// Maximum number of runs, and of tool calls of a run, with open spans. Others have none.
const MAX_OPEN: usize = 10_000;

/// Lets a text of a run pass into a span, without what must not leave.
pub type ContentFilter = Box<dyn Fn(&str) -> String + Send + Sync>;

/// Makes spans from the events of a run and its sub-agents: `invoke_agent` for each run, and in it `chat` for each
/// answer of the model and `execute_tool` for each tool call.
pub struct RunSpans {
    tracer: SdkTracer,
    counts: Arc<Counts>,
    provider: Option<String>,
    content: Option<ContentFilter>,
    runs: HashMap<RunId, OpenRun>,
}

/// A run that has not ended.
struct OpenRun {
    span: Span,
    model: String,
    /// Tool calls that have started, by id.
    calls: HashMap<String, Span>,
}

impl fmt::Debug for RunSpans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunSpans").finish_non_exhaustive()
    }
}

impl RunSpans {
    pub(crate) fn new(
        tracer: SdkTracer,
        counts: Arc<Counts>,
        provider: Option<String>,
        content: Option<ContentFilter>,
    ) -> Self {
        Self {
            tracer,
            counts,
            provider,
            content,
            runs: HashMap::new(),
        }
    }

    /// Starts and ends the spans of an event. Never blocks.
    pub fn record(&mut self, event: &Event) {
        match &event.kind {
            EventKind::RunStarted { .. } => self.run_started(event),
            EventKind::RunFinished { .. } => self.run_finished(event),
            EventKind::ModelAnswered { .. } => self.model_answered(event),
            EventKind::ModelRetry { attempt, usage, .. } => {
                let mut attributes = vec![number("cantle.attempt", (*attempt).into())];
                attributes.extend(usage_attributes(usage));
                self.note(event, "cantle.attempt_failed", attributes);
            }
            EventKind::HistorySummarized {
                replaced, usage, ..
            } => {
                let mut attributes = vec![number("cantle.replaced_messages", *replaced as u64)];
                attributes.extend(usage_attributes(usage));
                self.note(event, "cantle.history_summarized", attributes);
            }
            EventKind::TurnDropped { turn } => {
                let turn = number("cantle.turn", (*turn).into());
                self.note(event, "cantle.turn_dropped", vec![turn]);
            }
            EventKind::ToolStarted {
                call_id,
                tool,
                arguments,
            } => self.tool_started(event, event.time, call_id, tool, Some(arguments)),
            EventKind::ToolFinished { .. } => self.tool_finished(event),
            _ => {}
        }
    }

    fn run_started(&mut self, event: &Event) {
        let EventKind::RunStarted {
            agent,
            model,
            task,
            parent_call,
            ..
        } = &event.kind
        else {
            return;
        };
        if self.runs.len() >= MAX_OPEN {
            return;
        }
        let mut attributes = self.operation("invoke_agent", Some(model));
        attributes.extend([
            text("gen_ai.agent.name", agent),
            text("gen_ai.conversation.id", &event.run.to_string()),
            number("cantle.depth", event.depth.into()),
        ]);
        let message = || json!([{"role": "user", "parts": [{"type": "text", "content": task}]}]);
        attributes.extend(self.content("gen_ai.input.messages", || message().to_string()));
        let parent = event.parent.and_then(|parent| self.runs.get(&parent));
        let parent = parent.map(|run| run.context_of_sub_agent(parent_call.as_deref()));
        let name = format!("invoke_agent {agent}");
        let span = self.start(name, SpanKind::Internal, event.time, attributes, parent);
        let run = OpenRun {
            span,
            model: model.clone(),
            calls: HashMap::new(),
        };
        self.runs.insert(event.run, run);
    }

    fn run_finished(&mut self, event: &Event) {
        let EventKind::RunFinished {
            status,
            finish,
            error,
            turns,
            ledger,
            ..
        } = &event.kind
        else {
            return;
        };
        let Some(mut run) = self.runs.remove(&event.run) else {
            return;
        };
        for span in run.calls.into_values() {
            self.end(span, event.time, Some("interrupted"));
        }
        let usage = ledger.reported_usage() + ledger.estimated_usage();
        run.span.set_attributes(usage_attributes(&usage));
        run.span.set_attributes(cost(ledger.cost_usd()));
        let status = serde_json::to_value(status).unwrap_or_default();
        let status = status.as_str().unwrap_or_default().to_owned();
        run.span.set_attributes([
            text("cantle.status", &status),
            number("cantle.turns", (*turns).into()),
        ]);
        if let Some(finish) = finish {
            let answer = finish
                .params
                .get("reason")
                .and_then(|reason| reason.as_str());
            let answer = answer.map_or_else(|| finish.params.to_string(), str::to_owned);
            let answer = output_message(&answer, "stop");
            let answer = self.content("gen_ai.output.messages", || answer);
            run.span.set_attributes(answer);
        }
        self.end(run.span, event.time, error.is_some().then_some(&*status));
    }

    fn model_answered(&mut self, event: &Event) {
        let EventKind::ModelAnswered {
            turn,
            text: answer,
            tool_calls,
            usage,
            usage_estimated,
            cost_usd,
            served_by,
            stop,
            duration,
            ..
        } = &event.kind
        else {
            return;
        };
        let Some(run) = self.runs.get(&event.run) else {
            return;
        };
        let mut attributes = self.operation("chat", Some(&run.model));
        let reason = stop.as_ref().map(finish_reason);
        let reasons = reason
            .clone()
            .map(|reason| Value::Array(vec![StringValue::from(reason)].into()));
        attributes.extend(
            reasons.map(|reasons| KeyValue::new("gen_ai.response.finish_reasons", reasons)),
        );
        let served_by = served_by.as_deref();
        attributes.extend(served_by.map(|model| text("gen_ai.response.model", model)));
        attributes.extend(usage_attributes(usage));
        attributes.extend(cost(*cost_usd));
        attributes.extend([
            number("cantle.turn", (*turn).into()),
            number("cantle.tool_calls", *tool_calls as u64),
        ]);
        if *usage_estimated {
            attributes.push(KeyValue::new("cantle.usage_estimated", true));
        }
        let reason = reason.unwrap_or_else(|| "stop".to_owned());
        let message = || output_message(answer, &reason);
        attributes.extend(self.content("gen_ai.output.messages", message));
        let started = event.time.checked_sub(*duration).unwrap_or(event.time);
        let name = format!("chat {}", run.model);
        let context = Some(run.span.span_context().clone());
        let span = self.start(name, SpanKind::Client, started, attributes, context);
        self.end(span, event.time, None);
    }

    fn tool_started(
        &mut self,
        event: &Event,
        started: SystemTime,
        call_id: &str,
        tool: &str,
        arguments: Option<&serde_json::Value>,
    ) {
        let Some(run) = self.runs.get(&event.run) else {
            return;
        };
        if run.calls.len() >= MAX_OPEN {
            return;
        }
        let tool: String = tool.chars().take(MAX_NAME_CHARS).collect();
        let mut attributes = self.operation("execute_tool", None);
        attributes.extend([
            text("gen_ai.tool.name", &tool),
            text("gen_ai.tool.call.id", call_id),
            text("gen_ai.tool.type", "function"),
        ]);
        let content =
            |it: &serde_json::Value| self.content("gen_ai.tool.call.arguments", || it.to_string());
        attributes.extend(arguments.and_then(content));
        let (name, context) = (
            format!("execute_tool {tool}"),
            run.span.span_context().clone(),
        );
        let internal = SpanKind::Internal;
        let span = self.start(name, internal, started, attributes, Some(context));
        if let Some(run) = self.runs.get_mut(&event.run) {
            run.calls.insert(call_id.to_owned(), span);
        }
    }

    fn tool_finished(&mut self, event: &Event) {
        let EventKind::ToolFinished {
            call_id,
            tool,
            result,
            success,
            arguments,
            duration,
            ..
        } = &event.kind
        else {
            return;
        };
        let run = self.runs.get(&event.run);
        let is_open = run.is_some_and(|run| run.calls.contains_key(call_id));
        // It was answered without having started, or a process that has ended started it.
        if arguments.is_some() || !is_open {
            let started = event.time.checked_sub(*duration).unwrap_or(event.time);
            self.tool_started(event, started, call_id, tool, arguments.as_ref());
        }
        let run = self.runs.get_mut(&event.run);
        let Some(mut span) = run.and_then(|run| run.calls.remove(call_id)) else {
            return;
        };
        let code = exit_code(result);
        span.set_attributes(code.map(|code| KeyValue::new("process.exit.code", code)));
        let result = self.content("gen_ai.tool.call.result", || result.clone());
        span.set_attributes(result);
        self.end(span, event.time, (!success).then_some("tool_error"));
    }

    /// Adds an event to the span of a run.
    fn note(&mut self, event: &Event, name: &'static str, attributes: Vec<KeyValue>) {
        if let Some(run) = self.runs.get_mut(&event.run) {
            run.span
                .add_event_with_timestamp(name, event.time, attributes);
        }
    }

    fn operation(&self, name: &'static str, model: Option<&str>) -> Vec<KeyValue> {
        let mut attributes = vec![KeyValue::new("gen_ai.operation.name", name)];
        if let Some(model) = model {
            attributes.push(text("gen_ai.request.model", model));
            let provider = self.provider.as_deref();
            attributes.extend(provider.map(|name| text("gen_ai.provider.name", name)));
        }
        attributes
    }

    /// Returns an attribute with content, if the caller wants it.
    fn content(&self, key: &'static str, value: impl FnOnce() -> String) -> Option<KeyValue> {
        let filter = self.content.as_ref()?;
        Some(text(key, &filter(&value())))
    }

    fn start(
        &self,
        name: String,
        kind: SpanKind,
        time: SystemTime,
        attributes: Vec<KeyValue>,
        parent: Option<SpanContext>,
    ) -> Span {
        let context = match parent {
            Some(parent) => Context::new().with_remote_span_context(parent),
            None => Context::new(),
        };
        let builder = SpanBuilder::from_name(name)
            .with_kind(kind)
            .with_start_time(time)
            .with_attributes(attributes);
        self.tracer.build_with_context(builder, &context)
    }

    fn end(&self, mut span: Span, time: SystemTime, error: Option<&str>) {
        if let Some(error) = error {
            span.set_attribute(text("error.type", error));
            span.set_status(Status::error(error.to_owned()));
        }
        if span.span_context().is_sampled() {
            self.counts.ended.fetch_add(1, Ordering::Relaxed);
        }
        span.end_with_timestamp(time);
    }
}

impl OpenRun {
    /// Returns the context of a sub-agent that this call started. A background one outlives its call.
    fn context_of_sub_agent(&self, call_id: Option<&str>) -> SpanContext {
        let call = call_id.and_then(|id| self.calls.get(id));
        call.unwrap_or(&self.span).span_context().clone()
    }
}

fn output_message(text: &str, finish_reason: &str) -> String {
    let parts = json!([{"type": "text", "content": text}]);
    json!([{"role": "assistant", "parts": parts, "finish_reason": finish_reason}]).to_string()
}

/// Returns the reason for which a model stopped, in the words of the conventions.
fn finish_reason(stop: &StopReason) -> String {
    match stop {
        StopReason::EndTurn => "stop",
        StopReason::ToolCalls => "tool_call",
        StopReason::Length => "length",
        StopReason::ContentFilter => "content_filter",
        StopReason::Other(reason) => return reason.chars().take(MAX_NAME_CHARS).collect(),
        _ => "other",
    }
    .to_owned()
}

/// Returns the exit code in the result of a command.
fn exit_code(result: &str) -> Option<i64> {
    let rest = result.strip_prefix("<shell_results>\n<exit_code>")?;
    rest.split_once("</exit_code>")?.0.parse().ok()
}

fn usage_attributes(usage: &TokenUsage) -> Vec<KeyValue> {
    let mut attributes = vec![
        number("gen_ai.usage.input_tokens", usage.input_total()),
        number("gen_ai.usage.output_tokens", usage.output_total()),
    ];
    let details = [
        ("gen_ai.usage.cache_read.input_tokens", usage.cache_read),
        (
            "gen_ai.usage.cache_creation.input_tokens",
            usage.cache_write,
        ),
        ("gen_ai.usage.reasoning.output_tokens", usage.reasoning),
    ];
    let known = details.into_iter().filter(|(_, tokens)| *tokens > 0);
    attributes.extend(known.map(|(name, tokens)| number(name, tokens)));
    attributes
}

fn cost(cost_usd: Option<f64>) -> Option<KeyValue> {
    cost_usd.map(|cost| KeyValue::new("cantle.cost_usd", cost))
}

fn number(key: &'static str, value: u64) -> KeyValue {
    KeyValue::new(key, i64::try_from(value).unwrap_or(i64::MAX))
}

fn text(key: &'static str, value: &str) -> KeyValue {
    let cut = value.floor_char_boundary(MAX_TEXT_BYTES);
    let mut shown = value.get(..cut).unwrap_or_default().to_owned();
    if cut < value.len() {
        shown.push('…');
    }
    KeyValue::new(key, Value::from(shown))
}

#[cfg(test)]
mod tests {
    use opentelemetry::trace::TracerProvider as _;
    use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};

    use super::*;

    #[test]
    fn only_sampled_spans_are_counted() {
        for (sampler, expected) in [(Sampler::AlwaysOff, 0), (Sampler::AlwaysOn, 2)] {
            let provider = SdkTracerProvider::builder().with_sampler(sampler).build();
            let counts = Arc::new(Counts::default());
            let tracer = provider.tracer("cantle");
            let spans = RunSpans::new(tracer, Arc::clone(&counts), None, None);
            let start = |parent: Option<SpanContext>| {
                let (kind, now) = (SpanKind::Internal, SystemTime::now());
                spans.start("work".to_owned(), kind, now, Vec::new(), parent)
            };
            let parent = start(None);
            let child = start(Some(parent.span_context().clone()));
            for span in [child, parent] {
                spans.end(span, SystemTime::now(), None);
            }
            assert_eq!(counts.report().lost, expected);
        }
    }
}
