//! One rate limit for all agents of a process.
//!
//! A [`RateLimiter`] is shared by all clients of one account. Calls wait for their turn in the order
//! in which they came. What may pass is
//!
//! - what was said: [requests](RateLimits::requests_per_minute) and
//!   [tokens](RateLimits::tokens_per_minute) per minute, spread over the minute; and
//! - what was learned. Where a provider refuses a request for its rate, everybody waits as long as it
//!   asks for, and then goes on at the rate that it took before, a little less. From there the rate
//!   grows again until the next refusal, so that a limit nobody told is found and kept to.
//!
//! A refused request waits for its turn again, up to [`RateLimits::max_refusals`] times, and tells
//! [`ChatEvent::Retrying`]. So give the wrapped client no retries of its own
//! (`max_retries(0)`), and put a [`Retry`](crate::retry::Retry) around the whole for what else may
//! pass by itself.
//!
//! Tokens are reserved as an estimate and corrected by the usage that comes back.

mod bucket;
mod learned;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_core::content::Content;
use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmError, LlmErrorKind, ModelInfo,
};
use cantle_core::message::{AssistantBlock, Message};
use futures_util::{StreamExt as _, stream};
use tokio::time::Instant;

use self::bucket::Bucket;
use self::learned::Learned;

/// What is waited after a refusal that does not say for how long.
const UNSAID: Duration = Duration::from_secs(1);

/// What a provider allows, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RateLimits {
    /// Requests per minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens per minute, input and output.
    pub tokens_per_minute: Option<u64>,
    /// How often one call may be refused for its rate before that is its failure. 10 by default.
    pub max_refusals: u32,
    /// The longest wait that a provider may ask for. 60 seconds by default; where it asks for more,
    /// that is the call's failure at once.
    pub longest_wait: Duration,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self {
            requests_per_minute: None,
            tokens_per_minute: None,
            max_refusals: 10,
            longest_wait: Duration::from_secs(60),
        }
    }
}

impl RateLimits {
    /// The same with so many requests per minute. 0 counts as 1.
    #[must_use]
    pub fn with_requests_per_minute(mut self, requests: u32) -> Self {
        self.requests_per_minute = Some(requests.max(1));
        self
    }

    /// The same with so many tokens per minute. 0 counts as 1.
    #[must_use]
    pub fn with_tokens_per_minute(mut self, tokens: u64) -> Self {
        self.tokens_per_minute = Some(tokens.max(1));
        self
    }

    /// The same with another number of refusals that one call takes.
    #[must_use]
    pub fn with_max_refusals(mut self, refusals: u32) -> Self {
        self.max_refusals = refusals;
        self
    }

    /// The same with another bound for waits that a provider asks for.
    #[must_use]
    pub fn with_longest_wait(mut self, longest_wait: Duration) -> Self {
        self.longest_wait = longest_wait;
        self
    }
}

/// A rate limit that is shared: clones are the same one.
#[derive(Clone, Debug)]
pub struct RateLimiter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: RateLimits,
    /// Held by the first of those who wait. It is given in the order in which it was asked for.
    turnstile: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
    learned: Learned,
}

/// Leave for one request.
#[derive(Clone, Copy, Debug)]
struct Leave {
    at: Instant,
    /// What was reserved.
    tokens: u64,
}

impl RateLimiter {
    /// A limiter for these limits. With none of them it only learns.
    #[must_use]
    pub fn new(limits: RateLimits) -> Self {
        let requests = limits.requests_per_minute.map(f64::from);
        // Token counts are far below 2^52, where the conversion is exact.
        let tokens = limits.tokens_per_minute.map(|tokens| tokens as f64);
        Self(Arc::new(Shared {
            limits,
            turnstile: tokio::sync::Mutex::new(()),
            state: Mutex::new(State {
                requests: requests.map(|per_minute| Bucket::new(per_minute / 60.0)),
                tokens: tokens.map(|per_minute| Bucket::new(per_minute / 60.0)),
                learned: Learned::default(),
            }),
        }))
    }

    /// Waits until a request with so many tokens may be sent. Dropped before, it takes nothing.
    async fn leave(&self, tokens: u64) -> Leave {
        let _first = self.0.turnstile.lock().await;
        loop {
            let now = Instant::now();
            let wait = self.state().take(now, tokens as f64);
            if wait.is_zero() {
                return Leave { at: now, tokens };
            }
            tokio::time::sleep(wait).await;
        }
    }

    /// A request was taken.
    fn taken(&self) {
        self.state().learned.taken(Instant::now());
    }

    /// A request was refused for its rate. Returns how long everybody waits.
    fn refused(&self, leave: Leave, asked: Option<Duration>) -> Duration {
        let wait = asked.unwrap_or(UNSAID);
        self.state().learned.refused(Instant::now(), leave.at, wait);
        wait
    }

    /// A request has used so many tokens.
    fn used(&self, leave: Leave, tokens: u64) {
        if let Some(bucket) = &mut self.state().tokens {
            bucket.correct(leave.tokens as f64 - tokens as f64);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes what a request needs, or says how long to wait before asking again.
    fn take(&mut self, now: Instant, tokens: f64) -> Duration {
        let mut wait = self.learned.wait(now);
        if let Some(bucket) = &mut self.requests {
            wait = wait.max(bucket.wait(now, 1.0));
        }
        if let Some(bucket) = &mut self.tokens {
            wait = wait.max(bucket.wait(now, tokens));
        }
        if wait.is_zero() {
            self.learned.take();
            if let Some(bucket) = &mut self.requests {
                bucket.take(1.0);
            }
            if let Some(bucket) = &mut self.tokens {
                bucket.take(tokens);
            }
        }
        wait
    }
}

/// A client whose calls keep to a shared rate limit.
///
/// ```
/// use cantle_clients::limit::{Limited, RateLimiter, RateLimits};
/// use cantle_clients::replay::ReplayClient;
///
/// let account = RateLimiter::new(RateLimits::default().with_requests_per_minute(500));
/// let one = Limited::new(ReplayClient::new("one", vec![]), account.clone());
/// let other = Limited::new(ReplayClient::new("other", vec![]), account);
/// # let _ = (one, other);
/// ```
#[derive(Clone, Debug)]
pub struct Limited<C> {
    client: Arc<C>,
    limiter: RateLimiter,
}

impl<C: LlmClient> Limited<C> {
    /// Wraps `client`.
    pub fn new(client: C, limiter: RateLimiter) -> Self {
        Self {
            client: Arc::new(client),
            limiter,
        }
    }
}

impl<C: LlmClient> LlmClient for Limited<C> {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let call = Call {
            tokens: estimate(&request),
            client: Arc::clone(&self.client),
            request,
            limiter: self.limiter.clone(),
            refusals: 0,
            under_way: None,
        };
        Box::pin(stream::unfold(Some(call), |call| async {
            let mut call = call?;
            let event = call.next().await?;
            let over = event.is_err();
            Some((event, (!over).then_some(call)))
        }))
    }
}

struct Call<C> {
    client: Arc<C>,
    request: ChatRequest,
    /// What it is taken to need.
    tokens: u64,
    limiter: RateLimiter,
    refusals: u32,
    under_way: Option<UnderWay>,
}

struct UnderWay {
    stream: ChatStream,
    leave: Leave,
    /// Whether something of an answer has come.
    taken: bool,
}

impl<C: LlmClient> Call<C> {
    async fn next(&mut self) -> Option<Result<ChatEvent, LlmError>> {
        if self.under_way.is_none() {
            let leave = self.limiter.leave(self.tokens).await;
            self.under_way = Some(UnderWay {
                stream: self.client.stream(self.request.clone()),
                leave,
                taken: false,
            });
        }
        let under_way = self.under_way.as_mut()?;
        let event = match under_way.stream.next().await? {
            Ok(event) => event,
            Err(error) if error.kind() == LlmErrorKind::RateLimited && !under_way.taken => {
                let leave = under_way.leave;
                return Some(self.refused(leave, error));
            }
            Err(error) => return Some(Err(error)),
        };
        if !under_way.taken && !matches!(event, ChatEvent::Retrying { .. }) {
            under_way.taken = true;
            self.limiter.taken();
        }
        if let ChatEvent::Finished(end) = &event
            && let Some(usage) = end.usage
        {
            self.limiter.used(under_way.leave, usage.total());
        }
        Some(Ok(event))
    }

    fn refused(&mut self, leave: Leave, error: LlmError) -> Result<ChatEvent, LlmError> {
        let limits = &self.limiter.0.limits;
        let asked = error.retry_after();
        if let Some(asked) = asked
            && asked > limits.longest_wait
        {
            let (asked, most) = (asked.as_secs_f64(), limits.longest_wait.as_secs_f64());
            return Err(error.with_more(&format!(
                "it asks to wait {asked:.0} s, and no more than {most:.0} s are waited here"
            )));
        }
        let after = self.limiter.refused(leave, asked);
        if self.refusals >= limits.max_refusals {
            let refusals = self.refusals + 1;
            return Err(error.with_more(&format!("given up after {refusals} attempts")));
        }
        self.refusals += 1;
        self.under_way = None;
        Ok(ChatEvent::Retrying {
            attempt: self.refusals + 1,
            after,
            reason: error.to_string(),
        })
    }
}

/// The tokens of a request, roughly: what the provider counted for the latest turn, and four bytes
/// for a token after that.
fn estimate(request: &ChatRequest) -> u64 {
    let mut bytes = 0;
    for message in request.messages.iter().rev() {
        bytes += match &**message {
            Message::System(message) => length(&message.content),
            Message::User(message) => length(&message.content),
            Message::Tool(message) => length(&message.content),
            Message::Assistant(turn) if turn.token_usage.total() > 0 => {
                return turn.token_usage.total() + bytes / 4;
            }
            Message::Assistant(turn) => turn.blocks.iter().map(block_length).sum(),
        };
    }
    bytes / 4
}

fn length(content: &Content) -> u64 {
    content.text().len() as u64
}

fn block_length(block: &AssistantBlock) -> u64 {
    match block {
        AssistantBlock::Text { text, .. } => text.len() as u64,
        AssistantBlock::ToolCall(call) => call.arguments.len() as u64,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;
