//! A model that follows a script, without a network.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantle_agent::{Agent, AgentBuilder, Outcome, Run, Session, SessionOptions};
use cantle_core::event::Event;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, ModelInfo, Prices, StopReason, TurnEnd,
};
use cantle_core::message::{AssistantBlock, Message, SharedMessage, ToolCall, environment};
use cantle_core::tool::{DynTool, ToolContext, ToolError, ToolOutput, ToolSpec};
use cantle_core::usage::TokenUsage;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

/// The stream of one answer.
pub(crate) type Events = Vec<Result<ChatEvent, LlmError>>;

type Wait = dyn Fn(usize) -> BoxFuture<'static, ()> + Send + Sync;
type Answer = dyn Fn(usize, &ChatRequest) -> Vec<Result<ChatEvent, LlmError>> + Send + Sync;

/// Answers by the number of model turns in the request.
#[derive(Clone)]
pub(crate) struct Scripted {
    pub(crate) model: ModelInfo,
    answer: Arc<Answer>,
    wait: Option<Arc<Wait>>,
    requests: Arc<Mutex<Vec<ChatRequest>>>,
}

impl Scripted {
    pub(crate) fn new<F>(answer: F) -> Self
    where
        F: Fn(usize, &ChatRequest) -> Vec<Result<ChatEvent, LlmError>> + Send + Sync + 'static,
    {
        let mut model = ModelInfo::new("scripted");
        model.reports_cost = Some(true);
        Self {
            model,
            answer: Arc::new(answer),
            wait: None,
            requests: Arc::default(),
        }
    }

    /// The same as another model.
    pub(crate) fn named(mut self, slug: &str) -> Self {
        self.model.slug = slug.to_owned();
        self
    }

    /// Sets the context window, in tokens.
    pub(crate) fn with_window(mut self, tokens: u64) -> Self {
        self.model.context_window = Some(tokens);
        self
    }

    /// Sets whether it reports the cost of calls; it does by default.
    pub(crate) fn reporting_cost(mut self, yes: bool) -> Self {
        self.model.reports_cost = Some(yes);
        self
    }

    /// Sets the prices, in dollars per million tokens.
    pub(crate) fn priced(mut self, input: f64, output: f64) -> Self {
        self.model.prices = Some(Prices::per_million(input, output));
        self
    }

    /// The same, waiting before it answers a request (counted from 0).
    pub(crate) fn waiting<F, Fut>(mut self, wait: F) -> Self
    where
        F: Fn(usize) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.wait = Some(Arc::new(move |number| Box::pin(wait(number))));
        self
    }

    pub(crate) fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }

    /// Returns its requests, in order.
    pub(crate) fn asked(&self) -> Vec<ChatRequest> {
        self.requests.lock().unwrap().clone()
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
        let number = {
            let mut requests = self.requests.lock().unwrap();
            requests.push(request.clone());
            requests.len() - 1
        };
        let turn = request
            .messages
            .iter()
            .filter(|m| matches!(&***m, Message::Assistant(_)));
        let answer = stream::iter((self.answer)(turn.count(), &request));
        match &self.wait {
            None => Box::pin(answer),
            Some(wait) => {
                let mut answer = Some(answer);
                let answer = move |()| answer.take().unwrap_or_else(|| stream::iter(Vec::new()));
                Box::pin(stream::once(wait(number)).flat_map(answer))
            }
        }
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
    tokio::time::timeout(Duration::from_secs(120), run.outcome())
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
    tokio::time::timeout(Duration::from_secs(120), all)
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

/// The same answer, for which the provider counted this many tokens.
pub(crate) fn of_tokens(
    mut events: Vec<Result<ChatEvent, LlmError>>,
    tokens: u64,
) -> Vec<Result<ChatEvent, LlmError>> {
    if let Some(Ok(ChatEvent::Finished(end))) = events.last_mut() {
        end.usage = Some(TokenUsage {
            input: tokens,
            ..TokenUsage::default()
        });
    }
    events
}

/// The same answer, stopped for this reason.
pub(crate) fn stopped(
    mut events: Vec<Result<ChatEvent, LlmError>>,
    stop: StopReason,
) -> Vec<Result<ChatEvent, LlmError>> {
    if let Some(Ok(ChatEvent::Finished(end))) = events.last_mut() {
        end.stop = stop;
    }
    events
}

/// A tool with one argument, `n`, that it does not look at.
pub(crate) fn bare<F, Fut>(name: &str, call: F) -> DynTool
where
    F: Fn(ToolContext) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<ToolOutput, ToolError>> + Send + 'static,
{
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    DynTool::from_schema(ToolSpec::new(name, "A test.", schema), move |_, cx| {
        call(cx)
    })
}

/// A tool that says the arguments it got.
pub(crate) fn echo(name: &str) -> DynTool {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer"},
        "text": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
    }});
    let spec = ToolSpec::new(name, "Says its arguments.", schema);
    DynTool::from_schema(spec, |arguments, _| async move {
        Ok(ToolOutput::text(arguments.to_string()))
    })
}

/// The texts in the user's role in a history, in order, without the description of the environment.
pub(crate) fn user_messages(history: &[SharedMessage]) -> Vec<String> {
    let user_messages = |message: &Message| match message {
        Message::User(message) => Some(environment::strip(&message.content.text()).to_owned()),
        _ => None,
    };
    history
        .iter()
        .filter_map(|message| user_messages(message))
        .collect()
}
