use std::time::Duration;

use cantle_core::llm::{
    ChatEvent, ChatRequest, FailedAttempt, LlmClient, LlmClientExt as _, LlmError, LlmErrorKind,
    ToolSpecs,
};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::{Retry, RetryPolicy};
use crate::limit::{RateLimiter, RateLimits};
use crate::scripted::{ScriptedClient, done, failed};

struct CallOutcome {
    events: Vec<ChatEvent>,
    error: Option<LlmError>,
    attempts: usize,
    waited: Duration,
}

async fn run(
    policy: RetryPolicy,
    script: fn(usize) -> Vec<Result<ChatEvent, LlmError>>,
) -> CallOutcome {
    let client = ScriptedClient::new("m", script);
    let retry = Retry::new(client.clone(), policy);
    let mut stream = retry.stream(ChatRequest::new(Vec::new(), ToolSpecs::default()));
    let start = Instant::now();
    let mut outcome = CallOutcome {
        events: Vec::new(),
        error: None,
        attempts: 0,
        waited: Duration::ZERO,
    };
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => outcome.events.push(event),
            Err(error) => outcome.error = Some(error),
        }
    }
    outcome.attempts = client.attempts();
    outcome.waited = start.elapsed();
    outcome
}

const SERVER: fn(usize) -> Vec<Result<ChatEvent, LlmError>> =
    |_| vec![failed(LlmErrorKind::Server)];

fn attempts(outcome: &CallOutcome) -> Vec<&FailedAttempt> {
    let failed = outcome.events.iter().filter_map(|event| match event {
        ChatEvent::AttemptFailed(failed) => Some(failed),
        _ => None,
    });
    failed.collect()
}

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried_with_an_event() {
    let outcome = run(RetryPolicy::default(), |attempt| match attempt {
        0 => vec![failed(LlmErrorKind::Server)],
        1 => vec![failed(LlmErrorKind::Connection)],
        _ => vec![done()],
    })
    .await;
    let [first, second] = attempts(&outcome)[..] else {
        panic!("{:?}", outcome.events);
    };
    assert_eq!((first.attempt, second.attempt), (1, 2));
    assert_eq!(
        (first.kind, &*first.reason),
        (LlmErrorKind::Server, "scripted failure")
    );
    assert!(first.delay <= Duration::from_millis(500) && second.delay <= Duration::from_secs(1));
    assert!(outcome.waited >= first.delay + second.delay);
    assert_eq!(outcome.attempts, 3);
    assert!(matches!(outcome.events[2], ChatEvent::Finished(_)));
}

#[tokio::test(start_paused = true)]
async fn retries_end_after_the_period() {
    let outcome = run(RetryPolicy::default(), SERVER).await;
    let waited = outcome.waited.as_secs_f64();
    assert!((299.9..300.5).contains(&waited), "{waited}");
    assert!(
        (15..100).contains(&outcome.attempts),
        "{}",
        outcome.attempts
    );
    let expected = format!(
        "scripted failure; given up after {} attempts in 300 s",
        outcome.attempts
    );
    assert_eq!(outcome.error.unwrap().to_string(), expected);
}

#[tokio::test(start_paused = true)]
async fn an_overload_of_three_minutes_is_survived() {
    let begun = Instant::now();
    let client = ScriptedClient::new("m", move |_| {
        match begun.elapsed() < Duration::from_secs(180) {
            true => vec![failed(LlmErrorKind::Server)],
            false => vec![done()],
        }
    });
    let retry = Retry::new(client, RetryPolicy::default());
    let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
    assert!(retry.complete(request).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_server_that_never_answered_is_given_up_early() {
    let first = run(RetryPolicy::default(), |_| {
        vec![failed(LlmErrorKind::Unreachable)]
    })
    .await;
    let waited = first.waited.as_secs_f64();
    assert!((9.9..10.5).contains(&waited), "{waited}");
    let error = first.error.unwrap().to_string();
    assert!(
        error.contains("in 10 s because the server has not answered before"),
        "{error}"
    );

    // The second call of a client whose server answered the first.
    let client = ScriptedClient::new("m", |attempt| match attempt {
        0 => vec![done()],
        _ => vec![failed(LlmErrorKind::Unreachable)],
    });
    let retry = Retry::new(client, RetryPolicy::default());
    let request = || ChatRequest::new(Vec::new(), ToolSpecs::default());
    retry.complete(request()).await.unwrap();
    let begun = Instant::now();
    retry.complete(request()).await.unwrap_err();
    assert!(begun.elapsed() >= Duration::from_secs(299));

    // A server that reports an overload and is restarted.
    let restarted = run(RetryPolicy::default(), |attempt| match attempt {
        0 => vec![Err(
            LlmError::new(LlmErrorKind::Server, "scripted failure").with_status(503)
        )],
        _ => vec![failed(LlmErrorKind::Unreachable)],
    })
    .await;
    assert!(restarted.waited >= Duration::from_secs(299));
}

#[tokio::test(start_paused = true)]
async fn five_broken_answers_in_a_row_end_the_call() {
    for kind in [LlmErrorKind::Timeout, LlmErrorKind::Interrupted] {
        let client = ScriptedClient::new("m", move |attempt| match attempt {
            // Not in a row.
            4 => vec![failed(LlmErrorKind::Server)],
            _ => vec![Ok(ChatEvent::TextDelta("Hel".to_owned())), failed(kind)],
        });
        let retry = Retry::new(client.clone(), RetryPolicy::default());
        let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
        let error = retry.complete(request).await.unwrap_err();
        assert_eq!(client.attempts(), 10);
        assert_eq!(
            error.to_string(),
            "scripted failure; given up after 10 attempts: 5 in a row were interrupted or timed out"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_retried() {
    for kind in [
        LlmErrorKind::InvalidRequest,
        LlmErrorKind::Authentication,
        LlmErrorKind::Permission,
        LlmErrorKind::NotFound,
        LlmErrorKind::ContextOverflow,
        LlmErrorKind::Protocol,
        LlmErrorKind::Unsupported,
        LlmErrorKind::Tls,
    ] {
        let client = ScriptedClient::new("m", move |_| vec![failed(kind)]);
        let retry = Retry::new(client.clone(), RetryPolicy::default());
        let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
        let error = retry.complete(request).await.unwrap_err();
        assert_eq!(
            (client.attempts(), &*error.to_string()),
            (1, "scripted failure")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn without_retries_the_error_is_returned_unchanged() {
    let outcome = run(RetryPolicy::never(), SERVER).await;
    assert_eq!(outcome.attempts, 1);
    assert_eq!(outcome.error.unwrap().to_string(), "scripted failure");
}

fn limited(seconds: u64) -> Result<ChatEvent, LlmError> {
    let requested = Some(Duration::from_secs(seconds));
    Err(LlmError::new(LlmErrorKind::RateLimited, "slow down")
        .with_status(429)
        .with_retry_after(requested))
}

#[tokio::test(start_paused = true)]
async fn a_requested_delay_takes_precedence() {
    let outcome = run(RetryPolicy::default(), |attempt| match attempt {
        0 => vec![limited(42)],
        _ => vec![done()],
    })
    .await;
    let [failed] = attempts(&outcome)[..] else {
        panic!("{:?}", outcome.events);
    };
    assert_eq!(failed.reason, "slow down (HTTP 429)");
    let delay = failed.delay.as_secs_f64();
    assert!((42.0..=42.5).contains(&delay), "{delay}");
    assert!(outcome.waited >= Duration::from_secs(42));
}

#[tokio::test(start_paused = true)]
async fn a_requested_delay_beyond_the_period_fails_at_once() {
    let policy = RetryPolicy::default().with_period(Duration::from_secs(5));
    let outcome = run(policy, |_| vec![limited(3600)]).await;
    assert_eq!((outcome.attempts, outcome.waited), (1, Duration::ZERO));
    let error = outcome.error.unwrap();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(
        error.to_string(),
        "slow down; the provider asks to wait 3600 s, but only 5 s are left for retries (HTTP 429)"
    );
}

#[tokio::test(start_paused = true)]
async fn a_requested_delay_beyond_the_clock_fails_at_once() {
    let policy = RetryPolicy::default().with_period(Duration::MAX);
    let outcome = run(policy, |attempt| match attempt {
        0 => vec![limited(u64::MAX)],
        _ => vec![done()],
    })
    .await;
    assert_eq!((outcome.attempts, outcome.waited), (1, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn delays_grow_up_to_the_cap() {
    let policy = RetryPolicy::default()
        .with_period(Duration::from_secs(20))
        .with_backoff(Duration::from_millis(100), Duration::from_millis(700));
    let outcome = run(policy, SERVER).await;
    let bounds = [100, 200, 400].into_iter().chain(std::iter::repeat(700));
    let failed = attempts(&outcome);
    assert!(failed.len() > 20);
    for (failed, bound) in failed.into_iter().zip(bounds) {
        assert!(
            failed.delay <= Duration::from_millis(bound),
            "{failed:?} {bound}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn time_in_the_queue_of_the_limiter_is_no_time_for_retries() {
    let client = ScriptedClient::new("m", |attempt| match attempt {
        0..3 => vec![failed(LlmErrorKind::Server)],
        _ => vec![done()],
    });
    let limits = RateLimits::default().with_requests_per_minute(1);
    let policy = RetryPolicy::default().with_period(Duration::from_secs(30));
    let retry = Retry::new(client, policy).with_limiter(RateLimiter::new(limits));
    let begun = Instant::now();
    let request = ChatRequest::new(Vec::new(), ToolSpecs::default());
    assert!(retry.complete(request).await.is_ok());
    assert!(begun.elapsed() > Duration::from_secs(150));
}

/// A call that waits for its next attempt holds no place in the queue of the limiter.
#[tokio::test(start_paused = true)]
async fn a_waiting_call_does_not_delay_others() {
    let client = ScriptedClient::new("m", |attempt| match attempt {
        0 => vec![Err(LlmError::new(LlmErrorKind::Server, "scripted failure")
            .with_retry_after(Some(Duration::from_secs(100))))],
        _ => vec![done()],
    });
    let retry = Retry::new(client, RetryPolicy::default());
    let request = || ChatRequest::new(Vec::new(), ToolSpecs::default());
    let begun = Instant::now();
    let (first, second) = tokio::join!(
        async { (retry.complete(request()).await.is_ok(), begun.elapsed()) },
        async { (retry.complete(request()).await.is_ok(), begun.elapsed()) },
    );
    assert!(first.0 && first.1 >= Duration::from_secs(100));
    assert!(second.0 && second.1.is_zero(), "{second:?}");
}
