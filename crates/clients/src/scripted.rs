//! A client with scripted events, for the tests of wrappers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo, StopReason,
    TurnEnd,
};
use futures_util::stream;

type Script = Vec<Result<ChatEvent, LlmError>>;

/// A client whose events are a function of the attempt.
#[derive(Clone)]
pub(crate) struct ScriptedClient {
    model: ModelInfo,
    pub(crate) attempts: Arc<AtomicUsize>,
    script: Arc<dyn Fn(usize) -> Script + Send + Sync>,
}

impl ScriptedClient {
    /// Creates a client; `script` returns the events of an attempt, counted from 0.
    pub(crate) fn new(
        slug: &str,
        script: impl Fn(usize) -> Script + Send + Sync + 'static,
    ) -> Self {
        Self {
            model: ModelInfo::new(slug),
            attempts: Arc::default(),
            script: Arc::new(script),
        }
    }

    pub(crate) fn always(
        event: impl Fn() -> Result<ChatEvent, LlmError> + Send + Sync + 'static,
    ) -> Self {
        Self::new("m", move |_| vec![event()])
    }

    pub(crate) fn attempts(&self) -> usize {
        self.attempts.load(Ordering::SeqCst)
    }
}

impl fmt::Debug for ScriptedClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScriptedClient")
    }
}

impl LlmClient for ScriptedClient {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, _: ChatRequest) -> ChatStream {
        let (attempts, script) = (Arc::clone(&self.attempts), Arc::clone(&self.script));
        // Lazy, like a real client.
        let events = stream::once(async move {
            let attempt = attempts.fetch_add(1, Ordering::SeqCst);
            stream::iter(script(attempt))
        });
        Box::pin(futures_util::StreamExt::flatten(events))
    }
}

pub(crate) fn done_with(end: TurnEnd) -> Result<ChatEvent, LlmError> {
    Ok(ChatEvent::Finished(end))
}

pub(crate) fn done() -> Result<ChatEvent, LlmError> {
    done_with(TurnEnd::new(StopReason::EndTurn, None))
}

pub(crate) fn failed(kind: LlmErrorKind) -> Result<ChatEvent, LlmError> {
    Err(LlmError::new(kind, "scripted failure"))
}
