use std::time::Duration;

use cantle_core::llm::{ChatEvent, ChatRequest, LlmClient, LlmError, LlmErrorKind, ToolSpecs};
use futures_util::StreamExt as _;
use tokio::time::Instant;

use super::{Retry, RetryPolicy};
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

#[tokio::test(start_paused = true)]
async fn transient_errors_are_retried_with_an_event() {
    let outcome = run(RetryPolicy::default(), |attempt| match attempt {
        0 => vec![failed(LlmErrorKind::Server)],
        1 => vec![failed(LlmErrorKind::Connection)],
        _ => vec![done()],
    })
    .await;
    let [
        ChatEvent::Retrying {
            attempt: 2,
            after: first,
            reason,
        },
        ChatEvent::Retrying {
            attempt: 3,
            after: second,
            ..
        },
        ChatEvent::Finished(_),
    ] = &outcome.events[..]
    else {
        panic!("{:?}", outcome.events);
    };
    assert_eq!(reason, "scripted failure");
    assert!(*first <= Duration::from_millis(500) && *second <= Duration::from_secs(1));
    assert!(outcome.waited >= *first + *second);
    assert_eq!(outcome.attempts, 3);
}

#[tokio::test(start_paused = true)]
async fn the_last_error_names_the_number_of_attempts() {
    let outcome = run(RetryPolicy::default(), |_| {
        vec![failed(LlmErrorKind::Timeout)]
    })
    .await;
    assert_eq!(outcome.attempts, 3);
    let error = outcome.error.unwrap();
    assert_eq!(error.kind(), LlmErrorKind::Timeout);
    assert_eq!(
        error.to_string(),
        "scripted failure; given up after 3 attempts"
    );
}

#[tokio::test(start_paused = true)]
async fn there_is_no_retry_after_the_first_event() {
    let outcome = run(RetryPolicy::default(), |_| {
        vec![
            Ok(ChatEvent::TextDelta("Hel".to_owned())),
            failed(LlmErrorKind::Interrupted),
        ]
    })
    .await;
    assert_eq!(outcome.attempts, 1);
    assert_eq!(outcome.events, [ChatEvent::TextDelta("Hel".to_owned())]);
    assert_eq!(outcome.error.unwrap().to_string(), "scripted failure");
}

#[tokio::test(start_paused = true)]
async fn permanent_errors_are_not_retried() {
    for script in [
        (|_| vec![failed(LlmErrorKind::InvalidRequest)]) as fn(usize) -> _,
        |_| vec![failed(LlmErrorKind::Authentication)],
        |_| vec![failed(LlmErrorKind::Permission)],
        |_| vec![failed(LlmErrorKind::NotFound)],
        |_| vec![failed(LlmErrorKind::ContextOverflow)],
        |_| vec![failed(LlmErrorKind::Protocol)],
        |_| vec![failed(LlmErrorKind::Unsupported)],
    ] {
        let outcome = run(RetryPolicy::default(), script).await;
        assert_eq!((outcome.attempts, outcome.events.len()), (1, 0));
        assert_eq!(outcome.error.unwrap().to_string(), "scripted failure");
    }
}

#[tokio::test(start_paused = true)]
async fn without_retries_the_error_is_returned_unchanged() {
    let outcome = run(RetryPolicy::new(0), |_| vec![failed(LlmErrorKind::Server)]).await;
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
    assert_eq!(
        outcome.events[0],
        ChatEvent::Retrying {
            attempt: 2,
            after: Duration::from_secs(42),
            reason: "slow down (HTTP 429)".to_owned()
        }
    );
    assert!(outcome.waited >= Duration::from_secs(42));
}

#[tokio::test(start_paused = true)]
async fn a_requested_delay_above_the_maximum_fails_at_once() {
    let policy = RetryPolicy::default().with_max_wait(Duration::from_secs(5));
    let outcome = run(policy, |_| vec![limited(3600)]).await;
    assert_eq!((outcome.attempts, outcome.waited), (1, Duration::ZERO));
    let error = outcome.error.unwrap();
    assert_eq!(error.retry_after(), Some(Duration::from_secs(3600)));
    assert_eq!(
        error.to_string(),
        "slow down; the provider asks to wait 3600 s, more than the maximum of 5 s (HTTP 429)"
    );
}

#[tokio::test(start_paused = true)]
async fn delays_grow_up_to_the_cap() {
    let policy =
        RetryPolicy::new(40).with_backoff(Duration::from_millis(100), Duration::from_millis(700));
    let outcome = run(policy, |_| vec![failed(LlmErrorKind::Server)]).await;
    let bounds = [100, 200, 400].into_iter().chain(std::iter::repeat(700));
    for (event, bound) in outcome.events.iter().zip(bounds) {
        let ChatEvent::Retrying { after, .. } = event else {
            panic!("{event:?}");
        };
        assert!(*after <= Duration::from_millis(bound), "{after:?} {bound}");
    }
    assert_eq!(outcome.events.len(), 40);
}
