//! A model that follows a script, without a network.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cantle_agent::{Agent, AgentBuilder, Outcome, Run, Session, SessionOptions};
use cantle_core::event::Event;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, ModelInfo, StopReason, TurnEnd,
};
use cantle_core::message::{AssistantBlock, Message, ToolCall};
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_core::usage::TokenUsage;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

type Answer = dyn Fn(usize, &ChatRequest) -> Vec<Result<ChatEvent, LlmError>> + Send + Sync;

/// Answers by the number of model turns in the request.
#[derive(Clone)]
pub(crate) struct Scripted {
    model: ModelInfo,
    answer: Arc<Answer>,
    requests: Arc<AtomicUsize>,
}

impl Scripted {
    pub(crate) fn new<F>(answer: F) -> Self
    where
        F: Fn(usize, &ChatRequest) -> Vec<Result<ChatEvent, LlmError>> + Send + Sync + 'static,
    {
        Self {
            model: ModelInfo::new("scripted"),
            answer: Arc::new(answer),
            requests: Arc::default(),
        }
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl LlmClient for Scripted {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        self.requests.fetch_add(1, Ordering::SeqCst);
        let turn = request
            .messages
            .iter()
            .filter(|m| matches!(&***m, Message::Assistant(_)));
        Box::pin(stream::iter((self.answer)(turn.count(), &request)))
    }
}

/// A turn that calls tools: name, id, arguments.
pub(crate) fn calls(calls: &[(&str, &str, Value)]) -> Vec<Result<ChatEvent, LlmError>> {
    let mut events: Vec<_> = calls
        .iter()
        .map(|(name, id, arguments)| {
            let arguments = match arguments {
                Value::String(raw) => raw.clone(),
                arguments => arguments.to_string(),
            };
            let call = ToolCall::new(Some((*id).to_owned()), *name, arguments);
            Ok(ChatEvent::Block(AssistantBlock::ToolCall(call)))
        })
        .collect();
    events.push(Ok(end()));
    events
}

pub(crate) fn text(text: &str) -> Vec<Result<ChatEvent, LlmError>> {
    vec![
        Ok(ChatEvent::TextDelta(text.to_owned())),
        Ok(ChatEvent::Block(AssistantBlock::text(text))),
        Ok(end()),
    ]
}

pub(crate) fn finish(reason: &str) -> Vec<Result<ChatEvent, LlmError>> {
    calls(&[("finish", "f", json!({"reason": reason}))])
}

fn end() -> ChatEvent {
    let usage = TokenUsage {
        input: 10,
        answer: 5,
        ..TokenUsage::default()
    };
    ChatEvent::Finished(TurnEnd::new(StopReason::EndTurn, Some(usage)))
}

pub(crate) fn finish_tool() -> DynTool {
    let schema = json!({"type": "object", "properties": {
        "reason": {"type": "string"},
        "paths": {"type": "array", "items": {"type": "string"}},
    }});
    DynTool::from_schema(
        ToolSpec::new("finish", "Ends the run.", schema),
        |arguments, _| async move {
            Ok(ToolOutput::text(
                arguments["reason"].as_str().unwrap_or_default(),
            ))
        },
    )
}

pub(crate) fn agent(client: &Scripted) -> AgentBuilder {
    Agent::builder("test", client.clone())
        .finish(finish_tool())
        .turn_warning_threshold(0)
}

pub(crate) async fn session(agent: AgentBuilder) -> Session {
    agent
        .build()
        .unwrap()
        .session(SessionOptions::default())
        .await
        .unwrap()
}

/// Runs a task to its end; a run that hangs fails the test.
pub(crate) async fn outcome(run: Run) -> Outcome {
    tokio::time::timeout(Duration::from_secs(30), run.outcome())
        .await
        .expect("the run hangs")
}

/// Reads all events and the outcome.
pub(crate) async fn watch(mut run: Run) -> (Vec<Event>, Outcome) {
    let mut events = Vec::new();
    let all = async {
        while let Some(event) = run.next().await {
            events.push(event);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), all)
        .await
        .expect("the run hangs");
    (events, outcome(run).await)
}

/// The results of tool calls in an outcome's history, in order.
pub(crate) fn results(outcome: &Outcome) -> Vec<(String, bool)> {
    let result = |message: &Message| match message {
        Message::Tool(result) => Some((result.content.text(), result.success)),
        _ => None,
    };
    outcome
        .history
        .iter()
        .filter_map(|message| result(message))
        .collect()
}
