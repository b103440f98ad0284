//! Fallback to another model.
//!
//! The next model is called if the previous one or its provider is at fault: rate limit, server
//! failure, connection failure, unknown model, missing permission. Errors of the request itself would
//! recur with every model, and the agent's loop handles context overflows. As with retries, there is no
//! fallback after the first event of an answer.
//!
//! A turn of another model names it in [`TurnEnd::served_by`], and the next turn starts with the first
//! model again. Histories with provider-specific content, such as signed reasoning, cannot be continued
//! by another provider, which then returns an error.
//!
//! [`TurnEnd::served_by`]: cantle_core::llm::TurnEnd::served_by

use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use futures_util::{TryStreamExt as _, stream};

/// A model with substitutes.
#[derive(Clone, Debug)]
pub struct Fallback {
    first: Arc<dyn LlmClient>,
    others: Vec<Arc<dyn LlmClient>>,
}

impl Fallback {
    /// Creates a client that calls `first`, and on failure `others` in order.
    ///
    /// The retries of each client are exhausted before the next one is called.
    pub fn new(first: Arc<dyn LlmClient>, others: Vec<Arc<dyn LlmClient>>) -> Self {
        Self { first, others }
    }
}

impl LlmClient for Fallback {
    /// Returns the first model.
    fn model(&self) -> &ModelInfo {
        self.first.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let call = FallbackCall {
            stream: self.first.stream(request.clone()),
            request,
            substitute: None,
            others: self.others.clone().into_iter(),
            attempt: 1,
            has_started: false,
        };
        Box::pin(stream::try_unfold(call, |mut call| async {
            let event = call.next().await?;
            Ok(event.map(|event| (event, call)))
        }))
    }
}

struct FallbackCall {
    request: ChatRequest,
    stream: ChatStream,
    /// The current model's name unless it is the first one.
    substitute: Option<String>,
    others: std::vec::IntoIter<Arc<dyn LlmClient>>,
    /// Counts the attempts of all models.
    attempt: u32,
    /// Whether an event of an answer was emitted.
    has_started: bool,
}

impl FallbackCall {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        match self.stream.try_next().await {
            Ok(Some(ChatEvent::Retrying { after, reason, .. })) => {
                Ok(Some(self.retrying(after, reason)))
            }
            Ok(mut event) => {
                self.has_started = true;
                if let (Some(ChatEvent::Finished(end)), Some(model)) =
                    (&mut event, &self.substitute)
                {
                    end.served_by.get_or_insert_with(|| model.clone());
                }
                Ok(event)
            }
            Err(error) if self.has_started || !allows_fallback(error.kind()) => Err(error),
            Err(error) => self.call_next_model(error).map(Some),
        }
    }

    fn call_next_model(&mut self, error: LlmError) -> Result<ChatEvent, LlmError> {
        let Some(client) = self.others.next() else {
            return Err(match &self.substitute {
                Some(_) => error.with_detail("no other model is left"),
                None => error,
            });
        };
        let slug = client.model().slug.clone();
        let reason = format!("{error}; falling back to `{slug}`");
        self.stream = client.stream(self.request.clone());
        self.substitute = Some(slug);
        Ok(self.retrying(Duration::ZERO, reason))
    }

    fn retrying(&mut self, after: Duration, reason: String) -> ChatEvent {
        self.attempt += 1;
        ChatEvent::Retrying {
            attempt: self.attempt,
            after,
            reason,
        }
    }
}

/// Returns whether another model may succeed.
fn allows_fallback(kind: LlmErrorKind) -> bool {
    kind.is_transient() || matches!(kind, LlmErrorKind::NotFound | LlmErrorKind::Permission)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use cantle_core::llm::{
        ChatEvent, ChatRequest, LlmClient, LlmError, LlmErrorKind, StopReason, ToolSpecs, TurnEnd,
    };
    use futures_util::StreamExt as _;

    use super::Fallback;
    use crate::scripted::{ScriptedClient, done, failed};

    async fn call(models: [ScriptedClient; 2]) -> (Vec<ChatEvent>, Option<LlmError>) {
        let [first, second] = models;
        let client = Fallback::new(Arc::new(first), vec![Arc::new(second)]);
        assert_eq!(client.model().slug, "one");
        let mut stream = client.stream(ChatRequest::new(Vec::new(), ToolSpecs::default()));
        let (mut events, mut error) = (Vec::new(), None);
        while let Some(event) = stream.next().await {
            match event {
                Ok(event) => events.push(event),
                Err(failure) => error = Some(failure),
            }
        }
        (events, error)
    }

    fn failing(slug: &str, kind: LlmErrorKind) -> ScriptedClient {
        ScriptedClient::new(slug, move |_| vec![failed(kind)])
    }

    #[tokio::test]
    async fn the_next_model_answers_and_is_named() {
        for kind in [
            LlmErrorKind::RateLimited,
            LlmErrorKind::Server,
            LlmErrorKind::Connection,
            LlmErrorKind::NotFound,
            LlmErrorKind::Permission,
        ] {
            let second = ScriptedClient::new("two", |_| vec![done()]);
            let (events, error) = call([failing("one", kind), second]).await;
            let mut end = TurnEnd::new(StopReason::EndTurn, None);
            end.served_by = Some("two".to_owned());
            let retrying = ChatEvent::Retrying {
                attempt: 2,
                after: Duration::ZERO,
                reason: "scripted failure; falling back to `two`".to_owned(),
            };
            assert_eq!(events, [retrying, ChatEvent::Finished(end)]);
            assert!(error.is_none());
        }
    }

    #[tokio::test]
    async fn errors_of_the_request_are_returned_at_once() {
        for kind in [
            LlmErrorKind::ContextOverflow,
            LlmErrorKind::InvalidRequest,
            LlmErrorKind::Unsupported,
            LlmErrorKind::Authentication,
        ] {
            let second = ScriptedClient::new("two", |_| vec![done()]);
            let (events, error) = call([failing("one", kind), second.clone()]).await;
            assert_eq!((events.len(), second.attempts()), (0, 0));
            assert_eq!(error.unwrap().kind(), kind);
        }
    }

    #[tokio::test]
    async fn there_is_no_fallback_after_the_first_event() {
        let first = ScriptedClient::new("one", |_| {
            let delta = ChatEvent::TextDelta("Hel".to_owned());
            vec![Ok(delta), failed(LlmErrorKind::Interrupted)]
        });
        let second = ScriptedClient::new("two", |_| vec![done()]);
        let (events, error) = call([first, second.clone()]).await;
        assert_eq!((events.len(), second.attempts()), (1, 0));
        assert_eq!(error.unwrap().kind(), LlmErrorKind::Interrupted);
    }

    #[tokio::test]
    async fn the_last_error_is_returned_if_all_models_fail() {
        let models = [
            failing("one", LlmErrorKind::Server),
            failing("two", LlmErrorKind::Timeout),
        ];
        let (events, error) = call(models).await;
        assert_eq!(events.len(), 1);
        let error = error.unwrap();
        assert_eq!(error.kind(), LlmErrorKind::Timeout);
        assert_eq!(
            error.to_string(),
            "scripted failure; no other model is left"
        );
    }
}
