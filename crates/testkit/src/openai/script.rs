//! Scripts: turns, tool calls and usage of the scripted model.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::request::Request;

/// Turns of a model, in order, and the behaviour after the last one.
///
/// Cloning is cheap.
#[derive(Debug, Clone, Default)]
#[must_use]
pub struct Script {
    turns: Vec<Arc<Turn>>,
    after: AfterLastTurn,
    pub(super) style: Style,
}

/// Provider quirks that change a stream's form but not its content.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    pub(super) usage_in_choice: bool,
    pub(super) comments: bool,
}

#[derive(Clone, Default)]
enum AfterLastTurn {
    #[default]
    Refuse,
    RepeatLast,
    Compute(Arc<dyn Fn(&Request) -> Turn + Send + Sync>),
}

impl fmt::Debug for AfterLastTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "Refuse",
            Self::RepeatLast => "RepeatLast",
            Self::Compute(_) => "Compute",
        })
    }
}

impl Script {
    /// Creates a script without turns. A request for a missing turn is answered with status 400.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a turn.
    pub fn turn(self, turn: Turn) -> Self {
        self.turns(1, turn)
    }

    /// Adds the same turn `count` times.
    pub fn turns(mut self, count: usize, turn: Turn) -> Self {
        let turn = Arc::new(turn);
        self.turns.extend(std::iter::repeat_n(turn, count));
        self
    }

    /// Repeats the last turn.
    pub fn repeat_last(mut self) -> Self {
        self.after = AfterLastTurn::RepeatLast;
        self
    }

    /// Computes the turns after the last one with `turn`.
    pub fn then_with(mut self, turn: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        self.after = AfterLastTurn::Compute(Arc::new(turn));
        self
    }

    /// Streams usage with a choice that holds an empty delta, as LiteLLM does, where OpenAI sends
    /// `"choices": []`.
    pub fn usage_in_choice(mut self) -> Self {
        self.style.usage_in_choice = true;
        self
    }

    /// Streams a comment line before each event, as a proxy does to keep a connection alive.
    pub fn comments(mut self) -> Self {
        self.style.comments = true;
        self
    }

    /// Returns the turn for `request`, or `None` past the end.
    pub(super) fn answer(&self, request: &Request) -> Option<Arc<Turn>> {
        let scripted = self.turns.get(request.turn);
        match (scripted, &self.after) {
            (Some(turn), _) => Some(Arc::clone(turn)),
            (None, AfterLastTurn::Refuse) => None,
            (None, AfterLastTurn::RepeatLast) => self.turns.last().cloned(),
            (None, AfterLastTurn::Compute(turn)) => Some(Arc::new(turn(request))),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }
}

/// One answer of the model: reasoning, text, tool calls and usage, with its faults.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct Turn {
    pub(super) text: String,
    pub(super) reasoning: String,
    pub(super) calls: Vec<ToolCall>,
    pub(super) finish_reason: Option<String>,
    pub(super) usage: Option<Usage>,
    pub(super) delta_chars: Option<usize>,
    pub(super) latency: Duration,
    faults: Vec<Fault>,
    fault_always: Option<Fault>,
}

impl Turn {
    /// Creates a turn with `text`, which may be empty, and a usage of 10 input and 5 output tokens.
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            reasoning: String::new(),
            calls: Vec::new(),
            finish_reason: None,
            usage: Some(Usage::new(10, 5)),
            delta_chars: None,
            latency: Duration::ZERO,
            faults: Vec::new(),
            fault_always: None,
        }
    }

    /// Creates a turn with one call and no text.
    pub fn tool(call: ToolCall) -> Self {
        Self::text("").call(call)
    }

    /// Adds a tool call; several are parallel calls.
    pub fn call(mut self, call: ToolCall) -> Self {
        self.calls.push(call);
        self
    }

    /// Sets the reasoning, which precedes the text.
    pub fn reasoning(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = reasoning.into();
        self
    }

    /// Sets the finish reason. The default is `tool_calls` with calls and `stop` without.
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = Some(reason.into());
        self
    }

    /// Sets the reported usage.
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Reports no usage, even if requested.
    pub fn without_usage(mut self) -> Self {
        self.usage = None;
        self
    }

    /// Sets the size of deltas. By default, text and reasoning are split by word and arguments every
    /// eight characters.
    pub fn delta_chars(mut self, chars: usize) -> Self {
        self.delta_chars = Some(chars);
        self
    }

    /// Sets the delay before each response.
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Adds a fault for one attempt: the first for the first attempt, and so on.
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Sets the fault of all attempts without one from [`Turn::fault`].
    pub fn fault_always(mut self, fault: Fault) -> Self {
        self.fault_always = Some(fault);
        self
    }

    pub(super) fn fault_on(&self, attempt: usize) -> Option<&Fault> {
        self.faults.get(attempt).or(self.fault_always.as_ref())
    }
}

/// Tool call, not necessarily valid.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[must_use]
pub struct ToolCall {
    pub(super) id: CallId,
    pub(super) name: String,
    pub(super) arguments: String,
}

#[derive(Debug, Clone)]
pub(super) enum CallId {
    Numbered,
    Given(String),
    Missing,
}

impl ToolCall {
    /// Creates a call of `name` with the id `call_T_I`, where `T` is the turn's index and `I` the
    /// call's index in the turn.
    ///
    /// `arguments` is sent as formatted: a [`serde_json::Value`] as JSON, a string unchanged.
    pub fn new(name: impl Into<String>, arguments: impl fmt::Display) -> Self {
        Self {
            id: CallId::Numbered,
            name: name.into(),
            arguments: arguments.to_string(),
        }
    }

    /// Sets the id, which need not be unique.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = CallId::Given(id.into());
        self
    }

    /// Omits the id.
    pub fn without_id(mut self) -> Self {
        self.id = CallId::Missing;
        self
    }
}

/// Token counts of the wire format: `prompt` includes `cached`, and `completion` includes
/// `reasoning`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use]
pub struct Usage {
    /// `prompt_tokens`.
    pub prompt: u64,
    /// `completion_tokens`.
    pub completion: u64,
    /// `prompt_tokens_details.cached_tokens`; `None` omits the details.
    pub cached: Option<u64>,
    /// `completion_tokens_details.reasoning_tokens`; `None` omits the details.
    pub reasoning: Option<u64>,
}

impl Usage {
    /// Creates a usage without details.
    pub fn new(prompt: u64, completion: u64) -> Self {
        Self {
            prompt,
            completion,
            cached: None,
            reasoning: None,
        }
    }

    /// Sets the prompt tokens read from the provider's cache.
    pub fn cached(mut self, tokens: u64) -> Self {
        self.cached = Some(tokens);
        self
    }

    /// Sets the completion tokens spent on reasoning.
    pub fn reasoning(mut self, tokens: u64) -> Self {
        self.reasoning = Some(tokens);
        self
    }
}

impl AddAssign for Usage {
    fn add_assign(&mut self, other: Self) {
        let add = |a: Option<u64>, b: Option<u64>| a.map_or(b, |a| Some(a + b.unwrap_or(0)));
        self.prompt += other.prompt;
        self.completion += other.completion;
        self.cached = add(self.cached, other.cached);
        self.reasoning = add(self.reasoning, other.reasoning);
    }
}
