use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, ChatStream, LlmClient, LlmClientExt as _, LlmError, LlmErrorKind,
    ModelInfo, StopReason, ToolSpecs, TurnEnd,
};
use cantle_core::message::Message;
use cantle_core::usage::TokenUsage;
use futures_util::StreamExt as _;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::{RateLimiter, RateLimits};
use crate::retry::{Retry, RetryPolicy};
use crate::scripted::{ScriptedClient, done, done_with, failed};

fn limited<C: LlmClient>(client: C, limiter: RateLimiter) -> Retry<C> {
    Retry::new(client, RetryPolicy::default()).with_limiter(limiter)
}

fn request(text: &str) -> ChatRequest {
    ChatRequest::new(vec![Message::user(text).into()], ToolSpecs::default())
}

fn rejected(after: Option<Duration>) -> Result<ChatEvent, LlmError> {
    let error = LlmError::new(LlmErrorKind::RateLimited, "slow down").with_status(429);
    Err(error.with_retry_after(after))
}

/// Makes concurrent calls. Returns the time of each answer, and its events.
async fn call(client: &dyn LlmClient, count: usize) -> Vec<(Duration, Vec<ChatEvent>)> {
    let start = Instant::now();
    join_all((0..count).map(async |_| {
        let events = client.stream(request("Hi")).map(Result::unwrap).collect();
        let events: Vec<_> = events.await;
        (start.elapsed(), events)
    }))
    .await
}

#[tokio::test(start_paused = true)]
async fn without_limits_calls_do_not_wait() {
    let client = limited(
        ScriptedClient::always(done),
        RateLimiter::new(RateLimits::default()),
    );
    let answered = call(&client, 100).await;
    assert!(answered.iter().all(|(at, _)| at.is_zero()));
}

#[tokio::test(start_paused = true)]
async fn requests_are_spread_over_the_minute_in_order() {
    let limits = RateLimits::default().with_requests_per_minute(120);
    let client = limited(ScriptedClient::always(done), RateLimiter::new(limits));
    let answered = call(&client, 5).await;
    let at: Vec<_> = answered
        .iter()
        .map(|(at, _)| at.as_millis() / 100)
        .collect();
    assert_eq!(at, [0, 5, 10, 15, 20]);
}

#[tokio::test(start_paused = true)]
async fn clients_share_a_limit() {
    let account = RateLimiter::new(RateLimits::default().with_requests_per_minute(60));
    let one = limited(ScriptedClient::always(done), account.clone());
    let two = limited(ScriptedClient::always(done), account);
    call(&one, 1).await;
    let answered = call(&two, 1).await;
    assert_eq!(answered[0].0.as_millis() / 100, 10);
}

#[tokio::test(start_paused = true)]
async fn reserved_tokens_are_corrected_by_usage() {
    let used = || {
        let usage = TokenUsage {
            input: 1_900,
            answer: 100,
            ..TokenUsage::default()
        };
        done_with(TurnEnd::new(StopReason::EndTurn, Some(usage)))
    };
    let limits = RateLimits::default().with_tokens_per_minute(60_000);
    let client = limited(ScriptedClient::always(used), RateLimiter::new(limits));
    let start = Instant::now();
    for _ in 0..4 {
        client.complete(request("Hi")).await.unwrap();
    }
    // 2000 tokens take two seconds; the first call does not wait, and the bucket starts full.
    let seconds = start.elapsed().as_secs_f64();
    assert!((5.5..=6.1).contains(&seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn attempts_that_sent_nothing_release_their_tokens() {
    // A call reserves 1000 tokens, which take ten seconds.
    let limits = RateLimits::default().with_tokens_per_minute(6_000);
    let large = || request(&"x".repeat(4_000));
    let fails = |times: usize, kind: LlmErrorKind| {
        let script = move |attempt: usize| match attempt < times {
            true => vec![failed(kind)],
            false => vec![done()],
        };
        limited(ScriptedClient::new("m", script), RateLimiter::new(limits))
    };
    for (kind, min, max) in [
        (LlmErrorKind::Unreachable, 0.0, 4.0),
        (LlmErrorKind::Server, 29.0, 31.0),
    ] {
        let client = fails(3, kind);
        let start = Instant::now();
        client.complete(large()).await.unwrap();
        let waited = start.elapsed().as_secs_f64();
        assert!((min..max).contains(&waited), "{kind:?}: {waited}");
    }

    // It is not retried.
    let client = fails(1, LlmErrorKind::Tls);
    let start = Instant::now();
    client.complete(large()).await.unwrap_err();
    client.complete(large()).await.unwrap();
    assert!(start.elapsed().is_zero());
}

#[tokio::test(start_paused = true)]
async fn a_rejected_call_waits_and_emits_an_event() {
    let second = Duration::from_secs(7);
    let script = move |attempt| match attempt {
        0 => vec![rejected(Some(second))],
        _ => vec![done()],
    };
    let limiter = RateLimiter::new(RateLimits::default());
    let client = limited(ScriptedClient::new("m", script), limiter.clone());
    let start = Instant::now();
    let events: Vec<_> = client
        .stream(request("Hi"))
        .map(Result::unwrap)
        .collect()
        .await;
    let ChatEvent::AttemptFailed(failed) = &events[0] else {
        panic!("{events:?}");
    };
    assert_eq!((events.len(), &*failed.reason), (2, "slow down (HTTP 429)"));
    assert!(start.elapsed() >= second);
}

#[tokio::test(start_paused = true)]
async fn a_rate_limit_error_pauses_all_calls() {
    let script = |attempt| match attempt {
        0 => vec![rejected(Some(Duration::from_secs(7)))],
        _ => vec![done()],
    };
    let scripted = ScriptedClient::new("m", script);
    let client = limited(scripted.clone(), RateLimiter::default());
    let first = client.complete(request("Hi"));
    let other = async {
        while scripted.attempts() == 0 {
            tokio::task::yield_now().await;
        }
        let start = Instant::now();
        client.complete(request("Hi")).await.unwrap();
        start.elapsed()
    };
    let (first, waited) = tokio::join!(first, other);
    assert!(
        first.is_ok() && waited >= Duration::from_secs(7),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_takes_no_permit() {
    let limits = RateLimits::default().with_requests_per_minute(60);
    let client = limited(ScriptedClient::always(done), RateLimiter::new(limits));
    call(&client, 1).await;
    let limit = Duration::from_millis(300);
    let cancelled = tokio::time::timeout(limit, client.complete(request("Hi"))).await;
    assert!(cancelled.is_err());
    let answered = call(&client, 1).await;
    assert_eq!(answered[0].0.as_millis() / 100, 7);
}

/// The token bucket of a provider.
struct ProviderLimit {
    rate: f64,
    burst: f64,
    level: f64,
    at: Instant,
}

impl ProviderLimit {
    fn answer(&mut self) -> Result<ChatEvent, LlmError> {
        let now = Instant::now();
        let passed = (now - self.at).as_secs_f64();
        (self.level, self.at) = ((self.level + passed * self.rate).min(self.burst), now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return done();
        }
        let missing = (1.0 - self.level) / self.rate;
        rejected(Some(Duration::from_secs_f64(missing)))
    }
}

/// A client whose answers and errors are delayed.
#[derive(Debug)]
struct DelayedClient {
    client: ScriptedClient,
    latency: Duration,
}

impl LlmClient for DelayedClient {
    fn model(&self) -> &ModelInfo {
        self.client.model()
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let (client, latency) = (self.client.clone(), self.latency);
        let events = futures_util::stream::once(async move {
            tokio::time::sleep(latency).await;
            client.stream(request)
        });
        Box::pin(events.flatten())
    }
}

/// Calls a rate-limited provider from many agents. Returns the attempts per request, and the ratio of
/// the throughput to the provider's limit.
async fn throughput(rate: f64, burst: f64, latency: Duration, turns: usize) -> (f64, f64) {
    const AGENTS: usize = 200;
    let provider = Mutex::new(ProviderLimit {
        rate,
        burst,
        level: burst,
        at: Instant::now(),
    });
    let provider = Arc::new(provider);
    let scripted = ScriptedClient::new("m", move |_| vec![provider.lock().unwrap().answer()]);
    let delayed = DelayedClient {
        client: scripted.clone(),
        latency,
    };
    let client = limited(delayed, RateLimiter::new(RateLimits::default()));
    let start = Instant::now();
    join_all((0..AGENTS).map(async |_| {
        for _ in 0..turns {
            client.complete(request("Hi")).await.unwrap();
        }
    }))
    .await;
    let requests = AGENTS * turns;
    let shortest = (requests as f64 - burst) / rate;
    (
        scripted.attempts() as f64 / requests as f64,
        shortest / start.elapsed().as_secs_f64(),
    )
}

#[tokio::test(start_paused = true)]
async fn an_unknown_limit_is_found_and_respected() {
    for (rate, burst) in [(10.0, 10.0), (50.0, 20.0), (200.0, 40.0)] {
        for latency in [0, 5, 50, 500] {
            let latency = Duration::from_millis(latency);
            let (attempts, used) = throughput(rate, burst, latency, 20).await;
            let case = format!("{rate}/s, burst {burst}, latency {latency:?}");
            assert!(attempts <= 1.2, "{case}: {attempts} attempts");
            assert!(used >= 0.9, "{case}: {used} of what is allowed");
        }
    }
}
