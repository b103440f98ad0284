//! What the model says: scripts, turns, tool calls and usage.

use std::fmt;
use std::ops::AddAssign;
use std::sync::Arc;
use std::time::Duration;

use super::fault::Fault;
use super::record::Request;

/// The turns of a model, in order, and what comes after the last.
///
/// Immutable once a server has it; cloning is cheap.
#[derive(Debug, Clone, Default)]
pub struct Script {
    turns: Vec<Arc<Turn>>,
    after: After,
    pub(super) style: Style,
}

/// Habits of a provider that change the form of a stream and not its content.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Style {
    pub(super) usage_in_choice: bool,
    pub(super) comments: bool,
}

#[derive(Clone, Default)]
enum After {
    #[default]
    Refuse,
    RepeatLast,
    Ask(Arc<dyn Fn(&Request) -> Turn + Send + Sync>),
}

impl fmt::Debug for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refuse => "Refuse",
            Self::RepeatLast => "RepeatLast",
            Self::Ask(_) => "Ask",
        })
    }
}

impl Script {
    /// No turn yet. A request for a turn that isn't there is answered with status 400 and a message
    /// that says so.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a turn.
    #[must_use]
    pub fn turn(self, turn: Turn) -> Self {
        self.turns(1, turn)
    }

    /// Adds the same turn `count` times.
    #[must_use]
    pub fn turns(mut self, count: usize, turn: Turn) -> Self {
        let turn = Arc::new(turn);
        self.turns.extend(std::iter::repeat_n(turn, count));
        self
    }

    /// After the last turn, answers with it again.
    #[must_use]
    pub fn repeat_last(mut self) -> Self {
        self.after = After::RepeatLast;
        self
    }

    /// After the last turn, or from the first where there is none, asks `turn` for the answer.
    #[must_use]
    pub fn then_with(mut self, turn: impl Fn(&Request) -> Turn + Send + Sync + 'static) -> Self {
        self.after = After::Ask(Arc::new(turn));
        self
    }

    /// Streams usage with a choice that holds an empty delta, as LiteLLM does, where OpenAI sends
    /// `"choices": []`.
    #[must_use]
    pub fn usage_in_choice(mut self) -> Self {
        self.style.usage_in_choice = true;
        self
    }

    /// Streams a comment line before each event, as a proxy does to keep a connection alive.
    #[must_use]
    pub fn comments(mut self) -> Self {
        self.style.comments = true;
        self
    }

    /// The turn for `request`; `None` past the end.
    pub(super) fn answer(&self, request: &Request) -> Option<Arc<Turn>> {
        let scripted = self.turns.get(request.turn);
        match (scripted, &self.after) {
            (Some(turn), _) => Some(Arc::clone(turn)),
            (None, After::Refuse) => None,
            (None, After::RepeatLast) => self.turns.last().cloned(),
            (None, After::Ask(turn)) => Some(Arc::new(turn(request))),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.turns.len()
    }
}

/// One answer of the model: reasoning, then text, then tool calls; usage; and what goes wrong on
/// the way.
#[derive(Debug, Clone)]
#[non_exhaustive]
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
    /// A turn that says `text`, which may be empty, with a usage of 10 tokens in and 5 out.
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

    /// A turn without text that makes one call.
    #[must_use]
    pub fn tool(call: ToolCall) -> Self {
        Self::text("").call(call)
    }

    /// Adds a tool call; several are parallel calls.
    #[must_use]
    pub fn call(mut self, call: ToolCall) -> Self {
        self.calls.push(call);
        self
    }

    /// What the model thinks first, sent as `reasoning_content`.
    #[must_use]
    pub fn reasoning(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = reasoning.into();
        self
    }

    /// The finish reason, where it isn't `tool_calls` for a turn with calls and `stop` for one
    /// without.
    #[must_use]
    pub fn finish_reason(mut self, reason: impl Into<String>) -> Self {
        self.finish_reason = Some(reason.into());
        self
    }

    /// The usage reported.
    #[must_use]
    pub fn usage(mut self, usage: Usage) -> Self {
        self.usage = Some(usage);
        self
    }

    /// Reports no usage, also where it is asked for.
    #[must_use]
    pub fn without_usage(mut self) -> Self {
        self.usage = None;
        self
    }

    /// Streams deltas of `chars` characters, where text and reasoning otherwise come by word and
    /// arguments by eight characters.
    #[must_use]
    pub fn delta_chars(mut self, chars: usize) -> Self {
        self.delta_chars = Some(chars);
        self
    }

    /// Waits before the response, on each attempt.
    #[must_use]
    pub fn latency(mut self, latency: Duration) -> Self {
        self.latency = latency;
        self
    }

    /// Goes wrong once: the first fault added meets the first attempt, the second the second, and
    /// so on.
    #[must_use]
    pub fn fault(mut self, fault: Fault) -> Self {
        self.faults.push(fault);
        self
    }

    /// Goes wrong on every attempt that [`Turn::fault`] has nothing for.
    #[must_use]
    pub fn fault_always(mut self, fault: Fault) -> Self {
        self.fault_always = Some(fault);
        self
    }

    pub(super) fn fault_on(&self, attempt: usize) -> Option<&Fault> {
        self.faults.get(attempt).or(self.fault_always.as_ref())
    }
}

/// A tool call, which nothing forces to be a good one.
#[derive(Debug, Clone)]
#[non_exhaustive]
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
    /// A call of `name` with the id `call_T_I`: the index of its turn, and its own index in the
    /// turn.
    ///
    /// `arguments` is sent as it prints: a [`serde_json::Value`] as JSON, a string as it is, which
    /// need not be JSON.
    pub fn new(name: impl Into<String>, arguments: impl fmt::Display) -> Self {
        Self {
            id: CallId::Numbered,
            name: name.into(),
            arguments: arguments.to_string(),
        }
    }

    /// With this id, which other calls may have too.
    #[must_use]
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = CallId::Given(id.into());
        self
    }

    /// Without an id.
    #[must_use]
    pub fn without_id(mut self) -> Self {
        self.id = CallId::Missing;
        self
    }
}

/// Token counts as the wire has them: `prompt` includes `cached`, and `completion` includes
/// `reasoning`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// `prompt_tokens`.
    pub prompt: u64,
    /// `completion_tokens`.
    pub completion: u64,
    /// `prompt_tokens_details.cached_tokens`; `None` leaves the details out.
    pub cached: Option<u64>,
    /// `completion_tokens_details.reasoning_tokens`; `None` leaves the details out.
    pub reasoning: Option<u64>,
}

impl Usage {
    /// Without details.
    #[must_use]
    pub fn new(prompt: u64, completion: u64) -> Self {
        Self {
            prompt,
            completion,
            cached: None,
            reasoning: None,
        }
    }

    /// With so many prompt tokens read from the provider's cache.
    #[must_use]
    pub fn cached(mut self, tokens: u64) -> Self {
        self.cached = Some(tokens);
        self
    }

    /// With so many completion tokens spent on reasoning.
    #[must_use]
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
