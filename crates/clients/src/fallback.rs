//! Fallback to another model.
//!
//! The next model is called if the previous one or its provider is at fault: rate limit, server
//! failure, connection failure, unknown model, missing permission, content that the model does not
//! support. Errors of the request itself would recur with every model, and the agent's loop handles
//! context overflows. A model other than the last one has 10 seconds after its first failure for
//! [retries](crate::retry). Models that share configured rate limits need a
//! [limiter](crate::limit::RateLimiter::for_other_model) each, or a rate limit error of one also delays
//! the next.
//!
//! A turn of another model names it in [`TurnEnd::served_by`], and the next turn starts with the first
//! model again. Histories with provider-specific content, such as signed reasoning, cannot be continued
//! by another provider, which then returns an error.
//!
//! [`TurnEnd::served_by`]: cantle_core::llm::TurnEnd::served_by

use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, FailedAttempt, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use futures_util::{TryStreamExt as _, stream};
use tokio::time::Instant;

/// Time for retries of a model before the next one is called.
const PERIOD: Duration = Duration::from_secs(10);

/// A model with substitutes.
#[derive(Clone, Debug)]
pub struct Fallback {
    first: Arc<dyn LlmClient>,
    model: ModelInfo,
    others: Vec<Arc<dyn LlmClient>>,
}

impl Fallback {
    /// Creates a client that calls `first`, and on failure `others` in order.
    pub fn new(first: Arc<dyn LlmClient>, others: Vec<Arc<dyn LlmClient>>) -> Self {
        let mut model = first.model().clone();
        let others_info = others.iter().map(|client| client.model().clone());
        model.fallbacks.extend(others_info);
        Self {
            first,
            model,
            others,
        }
    }
}

impl LlmClient for Fallback {
    /// Returns the first model, with the others as its fallbacks.
    fn model(&self) -> &ModelInfo {
        &self.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let call = FallbackCall {
            stream: self.first.stream(request.clone()),
            request,
            substitute: None,
            others: self.others.clone().into_iter(),
            attempts: 0,
            failing_since: None,
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
    /// Failed attempts of all models.
    attempts: u32,
    /// The first failure of the current model.
    failing_since: Option<Instant>,
}

impl FallbackCall {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        match self.stream.try_next().await {
            Ok(Some(ChatEvent::AttemptFailed(failed))) => Ok(Some(self.attempt_failed(failed))),
            Ok(mut event) => {
                if let (Some(ChatEvent::Finished(end)), Some(model)) =
                    (&mut event, &self.substitute)
                {
                    end.served_by.get_or_insert_with(|| model.clone());
                    end.model.get_or_insert_with(|| model.clone());
                }
                Ok(event)
            }
            Err(error) if !allows_fallback(error.kind()) => Err(error),
            Err(error) if self.others.len() == 0 => Err(match &self.substitute {
                Some(_) => error.with_detail("no other model is left"),
                None => error,
            }),
            Err(error) => {
                let failed = FailedAttempt::new(0, &error, Duration::ZERO);
                Ok(Some(self.call_next_model(failed)))
            }
        }
    }

    /// Lets the current model try again within its time, and calls the next one after it.
    fn attempt_failed(&mut self, failed: FailedAttempt) -> ChatEvent {
        let since = *self.failing_since.get_or_insert_with(Instant::now);
        if since.elapsed() + failed.delay > PERIOD && self.others.len() > 0 {
            return self.call_next_model(failed);
        }
        self.failed(failed)
    }

    fn call_next_model(&mut self, mut failed: FailedAttempt) -> ChatEvent {
        let Some(client) = self.others.next() else {
            return self.failed(failed);
        };
        let slug = client.model().slug.clone();
        failed.reason = format!("{}; falling back to `{slug}`", failed.reason);
        failed.delay = Duration::ZERO;
        failed.next_model = Some(slug.clone());
        self.stream = client.stream(self.request.clone());
        self.failing_since = None;
        self.substitute = Some(slug);
        self.failed(failed)
    }

    fn failed(&mut self, mut failed: FailedAttempt) -> ChatEvent {
        self.attempts += 1;
        failed.attempt = self.attempts;
        failed.next_model = failed.next_model.or_else(|| self.substitute.clone());
        ChatEvent::AttemptFailed(failed)
    }
}

/// Returns whether another model may succeed.
fn allows_fallback(kind: LlmErrorKind) -> bool {
    use LlmErrorKind::{NotFound, Permission, Tls, Unsupported};
    kind.is_transient() || matches!(kind, NotFound | Permission | Tls | Unsupported)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use cantle_core::llm::{
        ChatEvent, ChatRequest, LlmClient, LlmClientExt as _, LlmError, LlmErrorKind, StopReason,
        ToolSpecs, TurnEnd,
    };
    use cantle_core::message::AssistantBlock;
    use futures_util::StreamExt as _;
    use tokio::time::Instant;

    use super::Fallback;
    use crate::limit::{RateLimiter, RateLimits};
    use crate::retry::{Retry, RetryPolicy};
    use crate::scripted::{ScriptedClient, done, failed};

    async fn call(models: [ScriptedClient; 2]) -> (Vec<ChatEvent>, Option<LlmError>) {
        let [first, second] = models;
        let first = Retry::new(first, RetryPolicy::default());
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
            LlmErrorKind::NotFound,
            LlmErrorKind::Permission,
            LlmErrorKind::Tls,
            LlmErrorKind::Unsupported,
        ] {
            let second = ScriptedClient::new("two", |_| vec![done()]);
            let (events, error) = call([failing("one", kind), second]).await;
            let mut end = TurnEnd::new(StopReason::EndTurn, None);
            end.served_by = Some("two".to_owned());
            end.model = Some("two".to_owned());
            let [ChatEvent::AttemptFailed(failed), ended] = &events[..] else {
                panic!("{events:?}");
            };
            assert_eq!((failed.attempt, failed.kind), (1, kind));
            assert_eq!(failed.next_model.as_deref(), Some("two"));
            assert_eq!(failed.reason, "scripted failure; falling back to `two`");
            assert_eq!(*ended, ChatEvent::Finished(end));
            assert!(error.is_none());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_model_other_than_the_last_has_ten_seconds() {
        for kind in [
            LlmErrorKind::RateLimited,
            LlmErrorKind::Server,
            LlmErrorKind::Unreachable,
            LlmErrorKind::Connection,
        ] {
            let begun = Instant::now();
            let first = failing("one", kind);
            let second = ScriptedClient::new("two", |_| vec![done()]);
            let (events, error) = call([first.clone(), second]).await;
            assert!(error.is_none());
            assert!(first.attempts() > 2);
            assert_eq!(events.len(), first.attempts() + 1);
            assert!(
                begun.elapsed() <= Duration::from_secs(12),
                "{:?}",
                begun.elapsed()
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_limit_error_does_not_delay_the_next_model_beyond_the_configured_limit() {
        fn rejected() -> Result<ChatEvent, LlmError> {
            let error = LlmError::new(LlmErrorKind::RateLimited, "slow down");
            Err(error.with_retry_after(Some(Duration::from_secs(60))))
        }
        let limits = RateLimits::default().with_requests_per_minute(60);
        let limiter = RateLimiter::new(limits);
        let first = Retry::new(ScriptedClient::always(rejected), RetryPolicy::default());
        let second = Retry::new(ScriptedClient::always(done), RetryPolicy::default())
            .with_limiter(limiter.for_other_model());
        let first = Arc::new(first.with_limiter(limiter));
        let client = Fallback::new(first, vec![Arc::new(second)]);
        let begun = Instant::now();
        let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
        client.complete(request).await.unwrap();
        assert_eq!(begun.elapsed().as_millis() / 100, 10);
    }

    #[tokio::test]
    async fn errors_of_the_request_are_returned_at_once() {
        for kind in [
            LlmErrorKind::ContextOverflow,
            LlmErrorKind::InvalidRequest,
            LlmErrorKind::Authentication,
        ] {
            let second = ScriptedClient::new("two", |_| vec![done()]);
            let (events, error) = call([failing("one", kind), second.clone()]).await;
            assert_eq!((events.len(), second.attempts()), (0, 0));
            assert_eq!(error.unwrap().kind(), kind);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_partial_answer_of_the_first_model_is_dropped() {
        let first = ScriptedClient::new("one", |_| {
            let text = AssistantBlock::text("Hel");
            vec![
                Ok(ChatEvent::Block(text)),
                failed(LlmErrorKind::Interrupted),
            ]
        });
        let second = ScriptedClient::new("two", |_| {
            vec![Ok(ChatEvent::Block(AssistantBlock::text("Bye"))), done()]
        });
        let first = Retry::new(first, RetryPolicy::default());
        let client = Fallback::new(Arc::new(first), vec![Arc::new(second)]);
        let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
        let completion = client.complete(request).await.unwrap();
        assert_eq!(completion.message.text(), "Bye");
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_error_is_returned_if_all_models_fail() {
        let models = [
            failing("one", LlmErrorKind::Server),
            failing("two", LlmErrorKind::Timeout),
        ];
        let (events, error) = call(models).await;
        assert!(events.len() > 1);
        let error = error.unwrap();
        assert_eq!(error.kind(), LlmErrorKind::Timeout);
        assert_eq!(
            error.to_string(),
            "scripted failure; no other model is left"
        );
    }
}
