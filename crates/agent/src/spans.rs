//! Tracing spans of a run, a model call and a tool call, with the field names of
//! OpenTelemetry's conventions for generative AI
//! (<https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-agent-spans/>). They hold names, numbers
//! and ids only; messages are in events and journals, never in spans.

use cantle_core::ids::RunId;
use cantle_core::ledger::ModelCall;
use cantle_core::message::ToolCall;
use tracing::field::Empty;
use tracing::{Span, info_span};

/// The span of a run.
pub(crate) fn run(agent: &str, model: &str, run: RunId, depth: u32) -> Span {
    info_span!(
        "invoke_agent",
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = agent,
        gen_ai.request.model = model,
        gen_ai.conversation.id = %run,
        cantle.depth = depth,
        error.type = Empty,
    )
}

/// The span of a model call.
pub(crate) fn chat(model: &str) -> Span {
    info_span!(
        "chat",
        gen_ai.operation.name = "chat",
        gen_ai.request.model = model,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        error.type = Empty,
    )
}

/// The span of a tool call.
pub(crate) fn tool(call: &ToolCall) -> Span {
    info_span!(
        "execute_tool",
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = &*call.name,
        gen_ai.tool.call.id = &*call.id,
        error.type = Empty,
    )
}

/// Records the usage of a model call.
pub(crate) fn usage(span: &Span, call: &ModelCall) {
    let usage = call.usage;
    span.record("gen_ai.usage.input_tokens", usage.input_total());
    span.record("gen_ai.usage.output_tokens", usage.output_total());
}

/// Records the kind of a failure, not its message.
pub(crate) fn failed(span: &Span, kind: &impl std::fmt::Debug) {
    span.record("error.type", tracing::field::debug(kind));
}
