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

use super::{Limited, RateLimiter, RateLimits};
use crate::scripted::{Scripted, done, done_with};

fn request(text: &str) -> ChatRequest {
    ChatRequest::new(vec![Message::user(text).into()], ToolSpecs::default())
}

fn refused(after: Option<Duration>) -> Result<ChatEvent, LlmError> {
    let error = LlmError::new(LlmErrorKind::RateLimited, "slow down").with_status(429);
    Err(error.with_retry_after(after))
}

/// Asks so often at once; when each was answered, and all that was told.
async fn ask(client: &dyn LlmClient, count: usize) -> Vec<(Duration, Vec<ChatEvent>)> {
    let start = Instant::now();
    join_all((0..count).map(async |_| {
        let events = client.stream(request("Hi")).map(Result::unwrap).collect();
        let events: Vec<_> = events.await;
        (start.elapsed(), events)
    }))
    .await
}

#[tokio::test(start_paused = true)]
async fn without_limits_nobody_waits() {
    let client = Limited::new(
        Scripted::always(done),
        RateLimiter::new(RateLimits::default()),
    );
    let answered = ask(&client, 100).await;
    assert!(answered.iter().all(|(at, _)| at.is_zero()));
}

#[tokio::test(start_paused = true)]
async fn requests_are_spread_over_the_minute_in_their_order() {
    let limits = RateLimits::default().with_requests_per_minute(120);
    let client = Limited::new(Scripted::always(done), RateLimiter::new(limits));
    let answered = ask(&client, 5).await;
    let at: Vec<_> = answered
        .iter()
        .map(|(at, _)| at.as_millis() / 100)
        .collect();
    assert_eq!(at, [0, 5, 10, 15, 20]);
}

#[tokio::test(start_paused = true)]
async fn clients_of_one_account_share_its_limit() {
    let account = RateLimiter::new(RateLimits::default().with_requests_per_minute(60));
    let one = Limited::new(Scripted::always(done), account.clone());
    let two = Limited::new(Scripted::always(done), account);
    ask(&one, 1).await;
    let answered = ask(&two, 1).await;
    assert_eq!(answered[0].0.as_millis() / 100, 10);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_paid_as_they_were_used() {
    let used = || {
        let usage = TokenUsage {
            input: 1_900,
            answer: 100,
            ..TokenUsage::default()
        };
        done_with(TurnEnd::new(StopReason::EndTurn, Some(usage)))
    };
    let limits = RateLimits::default().with_tokens_per_minute(60_000);
    let client = Limited::new(Scripted::always(used), RateLimiter::new(limits));
    let start = Instant::now();
    for _ in 0..4 {
        client.complete(request("Hi")).await.unwrap();
    }
    // 2000 tokens are two seconds' worth; the first has none before it, and a little is saved up.
    let took = start.elapsed().as_secs_f64();
    assert!((5.5..=6.1).contains(&took), "{took}");
}

#[tokio::test(start_paused = true)]
async fn a_refusal_is_waited_out_by_everybody_and_told() {
    let second = Duration::from_secs(7);
    let script = move |attempt| match attempt {
        0 => vec![refused(Some(second))],
        _ => vec![done()],
    };
    let limiter = RateLimiter::new(RateLimits::default());
    let client = Limited::new(Scripted::new("m", script), limiter.clone());
    let start = Instant::now();
    let events: Vec<_> = client
        .stream(request("Hi"))
        .map(Result::unwrap)
        .collect()
        .await;
    let expected = ChatEvent::Retrying {
        attempt: 2,
        after: second,
        reason: "slow down (HTTP 429)".to_owned(),
    };
    assert_eq!((events.len(), &events[0]), (2, &expected));
    assert!(start.elapsed() >= second);
}

#[tokio::test(start_paused = true)]
async fn who_is_always_refused_is_told_in_the_end() {
    let client = Scripted::always(|| refused(Some(Duration::from_millis(1))));
    let limits = RateLimits::default().with_max_refusals(3);
    let limited = Limited::new(client.clone(), RateLimiter::new(limits));
    let error = limited.complete(request("Hi")).await.unwrap_err();
    assert_eq!(client.attempts(), 4);
    assert_eq!(
        error.to_string(),
        "slow down; given up after 4 attempts (HTTP 429)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_too_long_is_an_error_at_once() {
    let client = Scripted::always(|| refused(Some(Duration::from_secs(3600))));
    let limited = Limited::new(client.clone(), RateLimiter::new(RateLimits::default()));
    let start = Instant::now();
    let error = limited.complete(request("Hi")).await.unwrap_err();
    assert_eq!((client.attempts(), start.elapsed()), (1, Duration::ZERO));
    assert!(
        error.to_string().contains("it asks to wait 3600 s"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_waiting_takes_nothing() {
    let limits = RateLimits::default().with_requests_per_minute(60);
    let client = Limited::new(Scripted::always(done), RateLimiter::new(limits));
    ask(&client, 1).await;
    let patience = Duration::from_millis(300);
    let given_up = tokio::time::timeout(patience, client.complete(request("Hi"))).await;
    assert!(given_up.is_err());
    let answered = ask(&client, 1).await;
    assert_eq!(answered[0].0.as_millis() / 100, 7);
}

/// A provider's bucket.
struct Provider {
    rate: f64,
    burst: f64,
    level: f64,
    at: Instant,
}

impl Provider {
    fn answer(&mut self) -> Result<ChatEvent, LlmError> {
        let now = Instant::now();
        let passed = (now - self.at).as_secs_f64();
        (self.level, self.at) = ((self.level + passed * self.rate).min(self.burst), now);
        if self.level >= 1.0 {
            self.level -= 1.0;
            return done();
        }
        let missing = (1.0 - self.level) / self.rate;
        refused(Some(Duration::from_secs_f64(missing)))
    }
}

/// A client that takes a while to be refused, and a while to be answered.
#[derive(Debug)]
struct Far {
    client: Scripted,
    latency: Duration,
}

impl LlmClient for Far {
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

/// Asks a provider with a bucket of this size and rate from many agents at once: the attempts for
/// each request, and how much of what the provider allows was used.
async fn crowded(rate: f64, burst: f64, latency: Duration, turns: usize) -> (f64, f64) {
    const AGENTS: usize = 200;
    let provider = Mutex::new(Provider {
        rate,
        burst,
        level: burst,
        at: Instant::now(),
    });
    let provider = Arc::new(provider);
    let asked = Scripted::new("m", move |_| vec![provider.lock().unwrap().answer()]);
    let far = Far {
        client: asked.clone(),
        latency,
    };
    let client = Limited::new(far, RateLimiter::new(RateLimits::default()));
    let start = Instant::now();
    join_all((0..AGENTS).map(async |_| {
        for _ in 0..turns {
            client.complete(request("Hi")).await.unwrap();
        }
    }))
    .await;
    let least = AGENTS * turns;
    let best = (least as f64 - burst) / rate;
    (
        asked.attempts() as f64 / least as f64,
        best / start.elapsed().as_secs_f64(),
    )
}

#[tokio::test(start_paused = true)]
async fn a_limit_that_nobody_told_is_found_and_kept_to() {
    for (rate, burst) in [(10.0, 10.0), (50.0, 20.0), (200.0, 40.0)] {
        for latency in [0, 5, 50, 500] {
            let latency = Duration::from_millis(latency);
            let (attempts, used) = crowded(rate, burst, latency, 20).await;
            let case = format!("{rate}/s, {burst} at once, answers after {latency:?}");
            assert!(attempts <= 1.2, "{case}: {attempts} attempts");
            assert!(used >= 0.9, "{case}: {used} of what is allowed");
        }
    }
}
