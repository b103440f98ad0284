//! Retries: a client that asks another one again.
//!
//! Only what may pass by itself is tried again (a limit of requests per time, a failing server, a
//! broken connection, a time-out), and only as long as nothing of an answer has been handed on:
//! after the first event somebody may have seen it. Waits grow and are random, so that a thousand
//! sessions that were refused together don't come back together; where the provider says how long to
//! wait, that is how long.

use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, ModelInfo};
use futures_util::{StreamExt as _, stream};

/// How often is tried again, and how long is waited before.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Attempts after the first one. 2 by default.
    pub max_retries: u32,
    /// The longest wait before the first retry; it doubles with each one. Half a second by default.
    /// The wait is random between nothing and that.
    pub base: Duration,
    /// What the doubling stops at. 8 seconds by default.
    pub cap: Duration,
    /// The longest wait that a provider may ask for. 60 seconds by default; where it asks for more,
    /// the error is returned at once and says so.
    pub longest_wait: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_retries: 2,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(8),
            longest_wait: Duration::from_secs(60),
        }
    }
}

impl RetryPolicy {
    /// The defaults with another number of retries; 0 tries once.
    #[must_use]
    pub fn new(max_retries: u32) -> Self {
        Self {
            max_retries,
            ..Self::default()
        }
    }

    /// The same with other waits: `base` before the first retry, doubled up to `cap`.
    #[must_use]
    pub fn with_backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap;
        self
    }

    /// The same with another bound for waits that a provider asks for.
    #[must_use]
    pub fn with_longest_wait(mut self, longest_wait: Duration) -> Self {
        self.longest_wait = longest_wait;
        self
    }

    /// How long to wait after the failure of `attempt`, counted from 1.
    ///
    /// # Errors
    /// `error` itself, saying why it was not tried again.
    fn wait(&self, attempt: u32, error: LlmError) -> Result<(Duration, LlmError), LlmError> {
        if !error.kind().is_transient() {
            return Err(error);
        }
        if attempt > self.max_retries {
            return Err(match attempt {
                1 => error,
                tries => error.with_more(&format!("given up after {tries} attempts")),
            });
        }
        match error.retry_after() {
            Some(asked) if asked > self.longest_wait => {
                let (asked, most) = (asked.as_secs_f64(), self.longest_wait.as_secs_f64());
                Err(error.with_more(&format!(
                    "it asks to wait {asked:.0} s, and no more than {most:.0} s are waited here"
                )))
            }
            Some(asked) => Ok((asked, error)),
            None => {
                let doubled = 2u32.saturating_pow(attempt - 1);
                let most = self.base.saturating_mul(doubled).min(self.cap);
                Ok((most.mul_f64(fastrand::f64()), error))
            }
        }
    }
}

/// A client that tries again what another client failed at.
///
/// Before each wait it tells [`ChatEvent::Retrying`].
#[derive(Clone, Debug)]
pub struct Retry<C> {
    client: Arc<C>,
    policy: RetryPolicy,
}

impl<C: LlmClient> Retry<C> {
    /// Wraps `client`.
    pub fn new(client: C, policy: RetryPolicy) -> Self {
        Self {
            client: Arc::new(client),
            policy,
        }
    }
}

impl<C: LlmClient> LlmClient for Retry<C> {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let client = Arc::clone(&self.client);
        retrying(self.policy.clone(), move || client.stream(request.clone()))
    }
}

/// Streams what `open` opens, and opens it again where it fails before its first event.
pub(crate) fn retrying(
    policy: RetryPolicy,
    open: impl FnMut() -> ChatStream + Send + 'static,
) -> ChatStream {
    let call = Call {
        policy,
        open,
        attempt: 1,
        wait: None,
        stream: None,
        state: State::Untold,
    };
    Box::pin(stream::unfold(call, |mut call| async {
        let event = call.next().await?;
        Some((event, call))
    }))
}

struct Call<F> {
    policy: RetryPolicy,
    open: F,
    attempt: u32,
    /// What is waited before the next attempt.
    wait: Option<Duration>,
    stream: Option<ChatStream>,
    state: State,
}

#[derive(PartialEq)]
enum State {
    /// Nothing of an answer has been handed on.
    Untold,
    Told,
    Over,
}

impl<F: FnMut() -> ChatStream + Send> Call<F> {
    async fn next(&mut self) -> Option<Result<ChatEvent, LlmError>> {
        if self.state == State::Over {
            return None;
        }
        if let Some(wait) = self.wait.take() {
            tokio::time::sleep(wait).await;
        }
        let stream = self.stream.get_or_insert_with(&mut self.open);
        match stream.next().await? {
            Ok(event) => {
                // A wrapped client may retry on its own; that is nothing of an answer.
                if !matches!(event, ChatEvent::Retrying { .. }) {
                    self.state = State::Told;
                }
                Some(Ok(event))
            }
            Err(error) => Some(self.after(error)),
        }
    }

    fn after(&mut self, error: LlmError) -> Result<ChatEvent, LlmError> {
        self.stream = None;
        let again = match self.state {
            State::Untold => self.policy.wait(self.attempt, error),
            State::Told | State::Over => Err(error),
        };
        match again {
            Ok((wait, error)) => {
                self.attempt += 1;
                self.wait = Some(wait);
                Ok(ChatEvent::Retrying {
                    attempt: self.attempt,
                    after: wait,
                    reason: error.to_string(),
                })
            }
            Err(error) => {
                self.state = State::Over;
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests;
