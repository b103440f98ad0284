//! Summaries in requests and outcomes.

use cantle_agent::{RunErrorKind, SessionOptions};
use cantle_backends_local::LocalBackend;
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::ledger::CallPurpose;
use cantle_core::llm::{ChatEvent, ChatRequest, LlmError, LlmErrorKind, StopReason};
use cantle_core::message::{Message, SharedMessage, UserKind};
use cantle_core::policy::Policy;
use cantle_tools::CodeExec;
use serde_json::json;

use crate::support::{
    Scripted, agent, calls, echo, finish, of_tokens, outcome, session, stopped, text,
    user_messages, watch,
};

type Events = Vec<Result<ChatEvent, LlmError>>;

/// Whether a summary is asked for.
fn is_asked(request: &ChatRequest) -> bool {
    let user_messages = user_messages(&request.messages);
    user_messages
        .last()
        .is_some_and(|text| text.contains("Write a summary of this conversation"))
}

fn is_summarized(request: &ChatRequest) -> bool {
    request.messages.iter().any(is_summary)
}

fn is_summary(message: &SharedMessage) -> bool {
    matches!(&**message, Message::User(it) if matches!(it.kind, UserKind::Summary { .. }))
}

/// Works for two turns, the second of which fills the window of 1000 tokens, and finishes after the
/// summary or without one. The summary is `answers` one after another.
fn full(answers: impl Fn(usize) -> Events + Send + Sync + 'static) -> Scripted {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let work = |n: u64, tokens| of_tokens(calls(&[("work", "w", json!({"n": n}))]), tokens);
    Scripted::new(move |turn, request| {
        if is_asked(request) {
            return answers(asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst));
        }
        match turn {
            _ if is_summarized(request) => finish("done"),
            0 => work(1, 100),
            1 => work(2, 900),
            _ => finish("done without"),
        }
    })
    .with_window(1000)
}

fn overflow() -> Events {
    vec![Err(LlmError::new(
        LlmErrorKind::ContextOverflow,
        "the conversation is too long",
    ))]
}

fn purposes(outcome: &cantle_agent::Outcome) -> Vec<CallPurpose> {
    let calls = outcome.ledger.model_calls.iter();
    calls.map(|call| call.purpose).collect()
}

#[tokio::test]
async fn a_full_window_is_summarized_and_nothing_that_was_sent_is_sent_differently() {
    let client = full(|_| text("did one and two"));
    let session = session(agent(&client).tool(echo("work"))).await;
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);

    let asked = client.asked();
    assert_eq!(asked.len(), 4);
    // Up to the summary each request begins with the very messages of the one before, and has its
    // tools: what a provider keeps of it counts.
    for pair in asked[..3].windows(2) {
        let same = pair[0].messages.iter().zip(&pair[1].messages);
        assert!(pair[0].messages.len() < pair[1].messages.len());
        assert!(
            same.into_iter()
                .all(|(a, b)| std::ptr::eq(&raw const **a, &raw const **b))
        );
        assert!(pair[0].tools.iter().eq(pair[1].tools.iter()));
    }
    // Behind it, the instructions and the task are those very messages.
    for at in 0..2 {
        assert_eq!(asked[3].messages[at], asked[0].messages[at]);
    }
    assert_eq!(
        user_messages(&asked[3].messages),
        [
            "the task",
            "did one and two",
            "That was your own summary of the work so far; the messages that it replaces are no \
             longer shown. Continue from there. When the task is done, finish it by calling `finish`."
        ]
    );
    let before = &asked[2].messages;
    assert_eq!(outcome.summarized, [before[2..before.len() - 1].to_vec()]);
    assert_eq!(
        purposes(&outcome),
        [
            CallPurpose::Turn,
            CallPurpose::Turn,
            CallPurpose::Summary,
            CallPurpose::Turn
        ]
    );
    assert_eq!(outcome.ledger.reported_usage().total(), 100 + 900 + 15 + 15);
    let told = |event: &cantle_core::event::Event| {
        matches!(event.kind, EventKind::HistorySummarized { replaced: 4, .. })
    };
    assert!(events.iter().any(told));
}

#[tokio::test]
async fn a_model_that_writes_no_summary_is_asked_three_ways_and_loses_nothing() {
    let client = full(|asked| match asked {
        // Words before a call are no summary either.
        0 => {
            let mut events = text("Let me look first.");
            events.pop();
            events.extend(calls(&[("work", "x", json!({}))]));
            events
        }
        1 => text(" \n"),
        _ => stopped(text("I must not"), StopReason::ContentFilter),
    });
    let session = session(agent(&client).tool(echo("work"))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    // It goes on as it is, as long as there is room.
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let asked = client.asked();
    let tools: Vec<_> = asked
        .iter()
        .map(|request| request.tools.iter().count())
        .collect();
    assert_eq!(tools, [2, 2, 2, 2, 0, 2]);
    let words: Vec<_> = asked[2..5]
        .iter()
        .map(|request| user_messages(&request.messages).pop().unwrap())
        .collect();
    assert!(!words[0].contains("Answer with text only"));
    assert!(words[1].contains("Answer with text only"));
    assert!(words[2].contains("\n- work: Says its arguments.\n- finish: Ends the run."));
    let before = &asked[2].messages;
    let kept = &before[..before.len() - 1];
    assert_eq!(outcome.history[..kept.len()], *kept);
    assert!(outcome.summarized.is_empty());
    assert_eq!(purposes(&outcome)[2..5], [CallPurpose::Summary; 3]);
}

#[tokio::test]
async fn a_truncated_summary_is_marked() {
    let client = full(|_| stopped(text("did one and"), StopReason::Length));
    let session = session(agent(&client).tool(echo("work"))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    assert_eq!(
        user_messages(&outcome.history)[1],
        "did one and\n[The summary was cut off here, at the output limit.]"
    );
}

#[tokio::test]
async fn files_of_the_sandbox_are_listed_behind_the_summary() {
    let client = Scripted::new(|_, request| {
        if is_asked(request) {
            return text("made a file");
        }
        if is_summarized(request) {
            return finish("done");
        }
        let make = json!({"cmd": "echo 1 > one.txt; mkdir -p deep"});
        of_tokens(calls(&[("code_exec", "c", make)]), 900)
    })
    .with_window(1000);
    let backend = LocalBackend::new();
    let agent = agent(&client).provider(CodeExec::new(backend).policy(Policy::workspace()));
    let session = session(agent).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let reminder = user_messages(&outcome.history).pop().unwrap();
    assert!(
        reminder.contains("Your working directory now contains:\n- ")
            && reminder.contains("one.txt\n"),
        "{reminder}"
    );
    session.close().await.unwrap();
}

#[tokio::test]
async fn the_task_of_a_later_run_stays_word_for_word_behind_the_summary() {
    let client = Scripted::new(|_, request| {
        let second = user_messages(&request.messages).contains(&"the second task".to_owned());
        match () {
            () if is_asked(request) => text("so far"),
            () if !second => finish("first"),
            () if is_summarized(request) => finish("second"),
            () => of_tokens(text("on it"), 900),
        }
    })
    .with_window(1000);
    let session = session(agent(&client)).await;
    outcome(session.run("the first task").unwrap()).await;
    let second = outcome(session.run("the second task").unwrap()).await;
    assert_eq!(second.status(), RunStatus::Finished);
    assert_eq!(
        user_messages(&second.history)[..3],
        ["the first task", "so far", "the second task"]
    );
}

#[tokio::test]
async fn an_unknown_window_that_overflows_above_three_turns_ends_with_few_requests() {
    // Measured in the original: 791 requests, without an end.
    for summarize in [None, Some(0.7)] {
        let client = Scripted::new(move |turn, request| match turn {
            3.. => overflow(),
            _ if is_asked(request) => text("so far"),
            turn => calls(&[("work", "w", json!({"n": turn}))]),
        });
        let agent = agent(&client)
            .tool(echo("work"))
            .max_turns(8)
            .summarize_at(summarize);
        let session = session(agent).await;
        let outcome = outcome(session.run("the task").unwrap()).await;
        let kind = outcome.error.as_ref().unwrap().kind();
        let expected = match summarize {
            None => RunErrorKind::ContextOverflow,
            Some(_) => RunErrorKind::MaxTurns,
        };
        assert_eq!(kind, expected);
        assert!(client.requests() < 24, "{} requests", client.requests());
        let paid = outcome.ledger.model_calls.len();
        assert_eq!(paid, client.requests(), "every request is in the ledger");
    }
}

#[tokio::test]
async fn an_overflow_while_summarizing_drops_a_turn_and_tries_again() {
    let client = full(|asked| match asked {
        0 => overflow(),
        _ => text("did one"),
    });
    let session = session(agent(&client).tool(echo("work"))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    assert_eq!(
        purposes(&outcome),
        [
            CallPurpose::Turn,
            CallPurpose::DroppedTurn,
            CallPurpose::Failed,
            CallPurpose::Summary,
            CallPurpose::Turn
        ]
    );
    // The dropped turn is in no group.
    assert_eq!(outcome.summarized[0].len(), 2);
    assert_eq!(outcome.turns, 2);
}

#[tokio::test]
async fn a_window_that_is_full_of_the_task_ends_the_run_typed() {
    let client = Scripted::new(|_, request| match is_asked(request) {
        true => text("so far"),
        false => of_tokens(text("on it"), 990),
    })
    .with_window(1000);
    let agent = agent(&client).max_turns(6).build().unwrap();
    let session = agent.session(SessionOptions::default()).await.unwrap();
    let outcome = outcome(session.run("x".repeat(3600)).unwrap()).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::MaxTurns);
    assert!(client.requests() <= 12, "{}", client.requests());
}
