//! Fall-back: a client that asks another model where one can't be had.
//!
//! The next model is asked where the fault lies with the one before or with its provider: a limit, a
//! failure, no connection, no such model, no permission. What is wrong with the request itself is
//! wrong everywhere, and a conversation that is too long is for the loop to mend. As with retries,
//! nothing is asked again once a part of an answer has been handed on.
//!
//! A turn that another model took says so ([`TurnEnd::served_by`]), and the next turn asks the first
//! one again. A history that holds what only one provider understands (signed reasoning) can't be
//! carried on by another; its refusal is told then.
//!
//! [`TurnEnd::served_by`]: cantle_core::llm::TurnEnd::served_by

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use futures_util::{StreamExt as _, stream};

/// A model, and others in its place.
#[derive(Clone, Debug)]
pub struct Fallback {
    first: Arc<dyn LlmClient>,
    others: Vec<Arc<dyn LlmClient>>,
}

impl Fallback {
    /// Asks `first`, and `others` in their order where it can't answer. Each tries again as often as
    /// it does by itself before the next is asked.
    pub fn new(first: Arc<dyn LlmClient>, others: Vec<Arc<dyn LlmClient>>) -> Self {
        Self { first, others }
    }
}

impl LlmClient for Fallback {
    /// The first one's.
    fn model(&self) -> &ModelInfo {
        self.first.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let call = Call {
            stream: self.first.stream(request.clone()),
            request,
            other: None,
            others: self.others.iter().cloned().collect(),
            attempt: 1,
            told: false,
        };
        Box::pin(stream::unfold(Some(call), |call| async {
            let mut call = call?;
            let event = call.next().await?;
            let over = event.is_err();
            Some((event, (!over).then_some(call)))
        }))
    }
}

struct Call {
    request: ChatRequest,
    stream: ChatStream,
    /// The model that is asked, where it is not the first.
    other: Option<String>,
    others: VecDeque<Arc<dyn LlmClient>>,
    /// Counted over all models.
    attempt: u32,
    /// Whether something of an answer has been handed on.
    told: bool,
}

impl Call {
    async fn next(&mut self) -> Option<Result<ChatEvent, LlmError>> {
        match self.stream.next().await? {
            Ok(ChatEvent::Retrying { after, reason, .. }) => Some(Ok(self.retrying(after, reason))),
            Ok(mut event) => {
                self.told = true;
                if let (ChatEvent::Finished(end), Some(other)) = (&mut event, &self.other) {
                    end.served_by.get_or_insert_with(|| other.clone());
                }
                Some(Ok(event))
            }
            Err(error) if self.told || !is_for_another(error.kind()) => Some(Err(error)),
            Err(error) => Some(self.another(error)),
        }
    }

    fn another(&mut self, error: LlmError) -> Result<ChatEvent, LlmError> {
        let Some(client) = self.others.pop_front() else {
            return Err(match &self.other {
                Some(_) => error.with_more("no other model is left to ask"),
                None => error,
            });
        };
        let slug = client.model().slug.clone();
        let reason = format!("{error}; `{slug}` is asked instead");
        self.stream = client.stream(self.request.clone());
        self.other = Some(slug);
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

/// Whether another model may do better.
fn is_for_another(kind: LlmErrorKind) -> bool {
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
    use crate::scripted::{Scripted, done, failed};

    async fn told(models: [Scripted; 2]) -> (Vec<ChatEvent>, Option<LlmError>) {
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

    fn failing(slug: &str, kind: LlmErrorKind) -> Scripted {
        Scripted::new(slug, move |_| vec![failed(kind)])
    }

    #[tokio::test]
    async fn the_next_model_answers_and_says_so() {
        for kind in [
            LlmErrorKind::RateLimited,
            LlmErrorKind::Server,
            LlmErrorKind::Connection,
            LlmErrorKind::NotFound,
            LlmErrorKind::Permission,
        ] {
            let second = Scripted::new("two", |_| vec![done()]);
            let (events, error) = told([failing("one", kind), second]).await;
            let mut end = TurnEnd::new(StopReason::EndTurn, None);
            end.served_by = Some("two".to_owned());
            let retrying = ChatEvent::Retrying {
                attempt: 2,
                after: Duration::ZERO,
                reason: "no luck; `two` is asked instead".to_owned(),
            };
            assert_eq!(events, [retrying, ChatEvent::Finished(end)]);
            assert!(error.is_none());
        }
    }

    #[tokio::test]
    async fn what_is_wrong_with_the_request_is_told_at_once() {
        for kind in [
            LlmErrorKind::ContextOverflow,
            LlmErrorKind::InvalidRequest,
            LlmErrorKind::Unsupported,
            LlmErrorKind::Authentication,
        ] {
            let second = Scripted::new("two", |_| vec![done()]);
            let (events, error) = told([failing("one", kind), second.clone()]).await;
            assert_eq!((events.len(), second.attempts()), (0, 0));
            assert_eq!(error.unwrap().kind(), kind);
        }
    }

    #[tokio::test]
    async fn nothing_is_asked_again_once_something_was_told() {
        let first = Scripted::new("one", |_| {
            let piece = ChatEvent::TextDelta("Hel".to_owned());
            vec![Ok(piece), failed(LlmErrorKind::Interrupted)]
        });
        let second = Scripted::new("two", |_| vec![done()]);
        let (events, error) = told([first, second.clone()]).await;
        assert_eq!((events.len(), second.attempts()), (1, 0));
        assert_eq!(error.unwrap().kind(), LlmErrorKind::Interrupted);
    }

    #[tokio::test]
    async fn where_all_fail_the_last_failure_is_told() {
        let models = [
            failing("one", LlmErrorKind::Server),
            failing("two", LlmErrorKind::Timeout),
        ];
        let (events, error) = told(models).await;
        assert_eq!(events.len(), 1);
        let error = error.unwrap();
        assert_eq!(error.kind(), LlmErrorKind::Timeout);
        assert_eq!(error.to_string(), "no luck; no other model is left to ask");
    }
}
