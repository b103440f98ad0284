//! Repetition of failed calls.
//!
//! A transient error (rate limit, failure of the server, broken connection or stream, timeout, empty
//! response) is an [attempt](ChatEvent::AttemptFailed) that failed, not the end of a call. Attempts are
//! repeated for a [period](RetryPolicy::period) of time. Delays grow exponentially with full jitter, so
//! that sessions that failed together do not retry together; a delay that the provider requests takes
//! precedence. Everything that a failed attempt emitted is void: readers drop it at the event.
//!
//! Calls of a client share a [rate limiter](crate::limit), so that one rate limit error slows them all. A
//! call that waits for its next attempt takes no place in the limiter's queue.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_core::estimate::context_tokens;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, FailedAttempt, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use futures_util::{TryStreamExt as _, stream};
use tokio::time::Instant;

use crate::limit::{Permit, RateLimiter};

/// Maximum pause of all calls after a rate limit error without a requested delay.
const DEFAULT_PAUSE: Duration = Duration::from_secs(1);

/// The longest period of repetition, so that the clock can represent the time of each attempt.
const MAX_PERIOD: Duration = Duration::from_secs(1 << 30);

/// How long failed calls are repeated, and the delays between attempts.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// Maximum time that failures of one call may take: attempts after the first failure, and the
    /// delays. 5 minutes by default; 0 means a single attempt. Time in the queue of a rate limiter does
    /// not count.
    pub period: Duration,
    /// The same for a server that cannot be reached and has not answered this client before, because
    /// its address is probably wrong. 10 seconds by default.
    pub first_contact: Duration,
    /// Maximum number of consecutive timeouts and broken responses, which may each cost the tokens of a
    /// whole call. 5 by default.
    pub max_broken: u32,
    /// Maximum delay before the second attempt, doubled for each further one. Half a second by default.
    /// The actual delay is random.
    pub base: Duration,
    /// Upper bound of the doubled delays. 20 seconds by default.
    pub cap: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            period: Duration::from_secs(300),
            first_contact: Duration::from_secs(10),
            max_broken: 5,
            base: Duration::from_millis(500),
            cap: Duration::from_secs(20),
        }
    }
}

impl RetryPolicy {
    /// Creates a policy with a single attempt.
    pub fn never() -> Self {
        Self::default().with_period(Duration::ZERO)
    }

    /// Sets the time for repeated attempts of one call.
    pub fn with_period(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// Sets the delays: `base` before the second attempt, doubled up to `cap`.
    pub fn with_backoff(mut self, base: Duration, cap: Duration) -> Self {
        self.base = base;
        self.cap = cap;
        self
    }

    /// Returns the delay before the next attempt.
    ///
    /// Fails with `error`, supplemented by the reason, if there is to be none.
    fn delay(
        &self,
        failures: &Failures,
        error: LlmError,
        has_answered: bool,
    ) -> Result<(Duration, LlmError), LlmError> {
        if !error.kind().is_transient() || self.period.is_zero() {
            return Err(error);
        }
        let (attempts, spent) = (failures.attempts, failures.time);
        if failures.broken >= self.max_broken {
            return Err(error.with_detail(&format!(
                "given up after {attempts} attempts: {} in a row were interrupted or timed out",
                failures.broken
            )));
        }
        let is_first_contact = error.kind() == LlmErrorKind::Unreachable && !has_answered;
        let period = match is_first_contact {
            true => self.period.min(self.first_contact),
            false => self.period,
        };
        let left = period.min(MAX_PERIOD).saturating_sub(spent);
        if let Some(requested) = error.retry_after()
            && requested > left
        {
            let (requested, left) = (requested.as_secs_f64(), left.as_secs_f64());
            return Err(error.with_detail(&format!(
                "the provider asks to wait {requested:.0} s, but only {left:.0} s are left for retries"
            )));
        }
        if left.is_zero() {
            let seconds = spent.as_secs_f64();
            let reason = match is_first_contact {
                true => " because the server has not answered before",
                false => "",
            };
            return Err(error.with_detail(&format!(
                "given up after {attempts} attempts in {seconds:.0} s{reason}"
            )));
        }
        let jitter = |max: Duration| max.mul_f64(fastrand::f64());
        let delay = match error.retry_after() {
            Some(requested) => requested + jitter(self.base),
            None => {
                let doubled = 2u32.saturating_pow(attempts.saturating_sub(1));
                jitter(self.base.saturating_mul(doubled).min(self.cap))
            }
        };
        Ok((delay.min(left), error))
    }
}

/// The failed attempts of one call.
#[derive(Debug, Default)]
struct Failures {
    attempts: u32,
    /// Consecutive ones that timed out or were interrupted.
    broken: u32,
    /// Time of the attempts after the first failure, and of the delays.
    time: Duration,
}

/// Repetition of the calls of one client. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retrier {
    pub(crate) policy: RetryPolicy,
    pub(crate) limiter: RateLimiter,
    /// Whether the client's server answered, if only with a transient error.
    has_answered: Arc<AtomicBool>,
}

impl Retrier {
    pub(crate) fn new(policy: RetryPolicy, limiter: RateLimiter) -> Self {
        Self {
            policy,
            limiter,
            has_answered: Arc::default(),
        }
    }

    /// Emits the events of the stream that `open` returns, which is called again for each attempt.
    pub(crate) fn stream(
        &self,
        request: ChatRequest,
        open: impl Fn(ChatRequest) -> ChatStream + Send + 'static,
    ) -> ChatStream {
        let tokens = match self.limiter.counts_tokens() {
            true => context_tokens(&request.messages),
            false => 0,
        };
        let call = RetriedCall {
            retrier: self.clone(),
            request,
            open,
            tokens,
            failures: Failures::default(),
            delay: Duration::ZERO,
            attempt: None,
        };
        Box::pin(stream::try_unfold(call, |mut call| async {
            let event = call.next().await?;
            Ok(event.map(|event| (event, call)))
        }))
    }
}

/// A client that repeats the failed calls of another one.
///
/// ```
/// use std::time::Duration;
/// use cantle_clients::limit::{RateLimiter, RateLimits};
/// use cantle_clients::replay::ReplayClient;
/// use cantle_clients::retry::{Retry, RetryPolicy};
///
/// let account = RateLimiter::new(RateLimits::default().with_requests_per_minute(500));
/// let policy = RetryPolicy::default().with_period(Duration::from_secs(60));
/// let one = Retry::new(ReplayClient::new("one", vec![]), policy.clone());
/// let other = Retry::new(ReplayClient::new("other", vec![]), policy);
/// let both = (one.with_limiter(account.clone()), other.with_limiter(account));
/// # let _ = both;
/// ```
#[derive(Clone)]
pub struct Retry<C> {
    client: Arc<C>,
    retrier: Retrier,
}

impl<C: LlmClient> Retry<C> {
    /// Wraps `client`.
    pub fn new(client: C, policy: RetryPolicy) -> Self {
        Self {
            client: Arc::new(client),
            retrier: Retrier::new(policy, RateLimiter::default()),
        }
    }

    /// Shares a rate limiter with other clients of the same account.
    #[must_use]
    pub fn with_limiter(mut self, limiter: RateLimiter) -> Self {
        self.retrier.limiter = limiter;
        self
    }
}

impl<C: LlmClient> fmt::Debug for Retry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retry")
            .field("client", &self.client)
            .field("policy", &self.retrier.policy)
            .finish_non_exhaustive()
    }
}

impl<C: LlmClient> LlmClient for Retry<C> {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let client = Arc::clone(&self.client);
        self.retrier
            .stream(request, move |request| client.stream(request))
    }
}

struct RetriedCall<F> {
    retrier: Retrier,
    request: ChatRequest,
    open: F,
    /// Estimated tokens of the request.
    tokens: u64,
    failures: Failures,
    /// Delay before the next attempt.
    delay: Duration,
    attempt: Option<Attempt>,
}

struct Attempt {
    stream: ChatStream,
    permit: Permit,
    started: Instant,
    /// Whether an event of an answer was received.
    has_started: bool,
}

impl<F: Fn(ChatRequest) -> ChatStream + Send> RetriedCall<F> {
    async fn next(&mut self) -> Result<Option<ChatEvent>, LlmError> {
        let delay = std::mem::take(&mut self.delay);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        let limiter = &self.retrier.limiter;
        let attempt = match &mut self.attempt {
            Some(attempt) => attempt,
            None => {
                let permit = limiter.acquire(self.tokens).await;
                self.attempt.insert(Attempt {
                    stream: (self.open)(self.request.clone()),
                    permit,
                    started: Instant::now(),
                    has_started: false,
                })
            }
        };
        let mut event = match attempt.stream.try_next().await {
            Ok(Some(event)) => event,
            Ok(None) => return Ok(None),
            Err(error) => return self.failed(error).map(Some),
        };
        match &mut event {
            // The wrapped client repeats calls by itself.
            ChatEvent::AttemptFailed(failed) => {
                self.failures.attempts += 1;
                failed.attempt = self.failures.attempts;
            }
            _ if !attempt.has_started => {
                attempt.has_started = true;
                limiter.accepted();
                self.retrier.has_answered.store(true, Ordering::Relaxed);
            }
            _ => {}
        }
        if let ChatEvent::Finished(end) = &event
            && let Some(usage) = end.usage
        {
            limiter.used(attempt.permit, usage.total());
        }
        Ok(Some(event))
    }

    fn failed(&mut self, error: LlmError) -> Result<ChatEvent, LlmError> {
        let attempt = self.attempt.take();
        let (elapsed, permit) = match &attempt {
            Some(attempt) => (attempt.started.elapsed(), Some(attempt.permit)),
            None => (Duration::ZERO, None),
        };
        // Nothing was sent that the provider could have counted.
        if let Some(permit) = permit
            && matches!(error.kind(), LlmErrorKind::Unreachable | LlmErrorKind::Tls)
        {
            self.retrier.limiter.used(permit, 0);
        }
        let failures = &mut self.failures;
        if failures.attempts > 0 {
            failures.time += elapsed;
        }
        failures.attempts += 1;
        failures.broken = match error.kind() {
            LlmErrorKind::Timeout | LlmErrorKind::Interrupted => failures.broken + 1,
            _ => 0,
        };
        // A server that is overloaded or restarted has the right address.
        if error.status().is_some() && error.kind().is_transient() {
            self.retrier.has_answered.store(true, Ordering::Relaxed);
        }
        let is_rate_limit = error.kind() == LlmErrorKind::RateLimited;
        let requested = error.retry_after();
        let has_answered = self.retrier.has_answered.load(Ordering::Relaxed);
        let (delay, error) = self.retrier.policy.delay(failures, error, has_answered)?;
        failures.time += delay;
        self.delay = delay;
        if is_rate_limit && let Some(permit) = permit {
            // A delay that the provider requests holds for all calls: they wait in the limiter's queue.
            if requested.is_some() {
                self.delay = Duration::ZERO;
            }
            let pause = requested.unwrap_or_else(|| delay.min(DEFAULT_PAUSE));
            self.retrier.limiter.rejected(permit, pause);
        }
        let failed = FailedAttempt::new(failures.attempts, &error, delay);
        Ok(ChatEvent::AttemptFailed(failed))
    }
}

#[cfg(test)]
mod tests;
