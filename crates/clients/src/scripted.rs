//! A client for the tests of wrappers: each attempt plays the next script.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo, StopReason,
    TurnEnd,
};
use futures_util::stream;

type Events = Vec<Result<ChatEvent, LlmError>>;

#[derive(Clone)]
pub(crate) struct Scripted {
    model: ModelInfo,
    pub(crate) attempts: Arc<AtomicUsize>,
    script: Arc<dyn Fn(usize) -> Events + Send + Sync>,
}

impl Scripted {
    /// What comes of each attempt, counted from 0.
    pub(crate) fn new(
        slug: &str,
        script: impl Fn(usize) -> Events + Send + Sync + 'static,
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

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl LlmClient for Scripted {
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, _: ChatRequest) -> ChatStream {
        let (attempts, script) = (Arc::clone(&self.attempts), Arc::clone(&self.script));
        // As a real client: nothing happens until it is polled.
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
    Err(LlmError::new(kind, "no luck"))
}
