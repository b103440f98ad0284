//! Runs: what becomes of calls, failures, cancellation and events.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use crate::support::{
    Scripted, agent, bare, calls, finish, outcome, results, session, text, user_messages, watch,
};
use cantle_agent::{RunErrorKind, SessionErrorKind};
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::ledger::CallPurpose;
use cantle_core::llm::{ChatEvent, LlmError, LlmErrorKind};
use cantle_core::message::Message;
use cantle_core::tool::{ToolContext, ToolError, ToolOutput};
use cantle_core::usage::TokenUsage;
use serde_json::json;
use tokio::sync::Barrier;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn a_run_ends_with_the_parameters_of_its_finish_call() {
    let client = Scripted::new(|_, _| finish("all done"));
    let session = session(agent(&client)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    assert_eq!(
        outcome.finish.unwrap().params,
        json!({"reason": "all done"})
    );
    assert_eq!(outcome.turns, 1);
    let usage = TokenUsage {
        input: 10,
        answer: 5,
        ..TokenUsage::default()
    };
    assert_eq!(outcome.ledger.reported_usage(), usage);
    session.close().await.unwrap();
}

#[tokio::test]
async fn bad_arguments_unknown_tools_errors_and_panics_are_results_and_the_run_continues() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[
            ("fails", "a", json!({})),
            ("panics", "b", json!({})),
            ("nothing", "c", json!({})),
            ("fails", "d", json!("{\"n\": ")),
            ("fails", "e", json!({"n": "x"})),
            ("fails", "f", json!([1])),
            ("fails", "g", json!({"m": 1})),
        ]),
        _ => finish("went on"),
    });
    let panics = bare("panics", |_| async { panic!("oh no") });
    let fails = bare("fails", |_| async {
        Err(ToolError::failed("The disk is on fire."))
    });
    let session = session(agent(&client).tool(fails).tool(panics)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    let expected = [
        "The disk is on fire.",
        "The tool failed with an internal error: oh no",
        "nothing is not a valid tool. The tools are: fails, finish, panics.",
        "Tool arguments are not valid JSON: EOF while parsing a value at line 1 column 6. Send one JSON object.",
        "Argument `n`: expected integer, got the string \"x\"",
        "Tool arguments must be a JSON object, not a list.",
        "unknown argument `m` (arguments are: `n`)",
    ];
    let expected: Vec<_> = expected
        .iter()
        .map(|text| ((*text).to_owned(), false))
        .collect();
    assert_eq!(results(&outcome)[..7], expected);
    let valid = |message: &Message| match message {
        Message::Tool(result) => Some(result.arguments_valid),
        _ => None,
    };
    let valid: Vec<_> = outcome
        .history
        .iter()
        .filter_map(|m| valid(m))
        .take(7)
        .collect();
    assert_eq!(valid, [true, true, true, false, false, false, false]);
}

#[tokio::test]
async fn calls_that_are_concurrency_safe_meet_each_other() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[
            ("meet", "a", json!({})),
            ("meet", "b", json!({})),
            ("meet", "c", json!({})),
        ]),
        _ => finish("met"),
    });
    let barrier = Arc::new(Barrier::new(3));
    let meet = bare("meet", move |_| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok(ToolOutput::text("met"))
        }
    });
    let session = session(agent(&client).tool(meet.with_concurrency_safe(true))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
}

#[tokio::test(start_paused = true)]
async fn cancelling_signals_the_running_call_and_keeps_results() {
    let client =
        Scripted::new(|_, _| calls(&[("waits", "a", json!({})), ("waits", "b", json!({}))]));
    let waits = bare("waits", |cx: ToolContext| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::failure("stopped halfway"))
    });
    let session = session(agent(&client).tool(waits)).await;
    let mut run = session.run("the task").unwrap();
    while let Some(event) = run.next().await {
        if matches!(event.kind, EventKind::ToolStarted { .. }) {
            run.cancel();
        }
    }
    let outcome = outcome(run).await;
    assert_eq!(outcome.status(), RunStatus::Cancelled);
    assert_eq!(
        results(&outcome),
        [
            ("stopped halfway".to_owned(), false),
            (
                "The run was cancelled before this call started.".to_owned(),
                false
            )
        ]
    );
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_ignores_cancellation_is_abandoned_after_a_grace() {
    let client = Scripted::new(|_, _| calls(&[("hangs", "a", json!({}))]));
    let hangs = bare("hangs", |_| std::future::pending());
    let session = session(agent(&client).tool(hangs)).await;
    let mut run = session.run("the task").unwrap();
    while let Some(event) = run.next().await {
        if matches!(event.kind, EventKind::ToolStarted { .. }) {
            run.cancel();
        }
    }
    let outcome = outcome(run).await;
    assert_eq!(outcome.status(), RunStatus::Cancelled);
    let expected = "The run was cancelled while this call was running.";
    assert_eq!(results(&outcome), [(expected.to_owned(), false)]);
}

#[tokio::test]
async fn dropping_a_run_drops_its_running_calls() {
    let client = Scripted::new(|_, _| calls(&[("hangs", "a", json!({}))]));
    let alive = CancellationToken::new();
    let guard = alive.clone();
    let hangs = bare("hangs", move |_| {
        let guard = guard.clone().drop_guard();
        async move {
            let _guard = guard;
            std::future::pending().await
        }
    });
    let session = session(agent(&client).tool(hangs)).await;
    let mut run = session.run("the task").unwrap();
    while let Some(event) = run.next().await {
        if matches!(event.kind, EventKind::ToolStarted { .. }) {
            break;
        }
    }
    drop(run);
    tokio::time::timeout(Duration::from_secs(120), alive.cancelled())
        .await
        .unwrap();
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_failing_model_ends_the_run_with_its_kind_and_cost() {
    let client = Scripted::new(|turn, _| match turn {
        0 => text("first"),
        _ => vec![
            Ok(ChatEvent::TextDelta("12345678".to_owned())),
            Err(
                LlmError::new(LlmErrorKind::Interrupted, "the stream broke off")
                    .with_advice("Try again.")
                    .with_source("the cable was cut"),
            ),
        ],
    });
    let session = session(agent(&client)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let error = outcome.error.as_ref().unwrap();
    assert_eq!(
        (
            error.kind(),
            error.llm_kind(),
            error.to_string().as_str(),
            error.advice()
        ),
        (
            RunErrorKind::Model,
            Some(LlmErrorKind::Interrupted),
            "the stream broke off",
            Some("Try again.")
        )
    );
    let cause = error.source().map(ToString::to_string);
    assert_eq!(cause.as_deref(), Some("the cable was cut"));
    let failed = &outcome.ledger.model_calls[1];
    assert_eq!(
        (failed.purpose, failed.estimated, failed.usage.answer),
        (CallPurpose::Failed, true, 2)
    );
    assert_eq!(outcome.ledger.reported_usage().total(), 15);
}

#[tokio::test]
async fn an_answer_without_usage_is_estimated_and_shown_apart() {
    let client = Scripted::new(|_, _| {
        let mut events = finish("done");
        events.pop();
        let end = cantle_core::llm::TurnEnd::new(cantle_core::llm::StopReason::ToolCalls, None);
        events.push(Ok(ChatEvent::Finished(end)));
        events
    });
    let session = session(agent(&client)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.ledger.reported_usage(), TokenUsage::default());
    assert!(outcome.ledger.estimated_usage().input > 0);
}

#[tokio::test]
async fn durable_events_are_numbered_without_gaps_and_end_with_the_end() {
    let client = Scripted::new(|turn, _| match turn {
        0 => text("thinking aloud"),
        1 => calls(&[("works", "a", json!({}))]),
        _ => finish("done"),
    });
    let works = bare("works", |cx: ToolContext| async move {
        cx.progress.output("half way\n");
        Ok(ToolOutput::text("worked"))
    });
    let session = session(agent(&client).tool(works)).await;
    let (events, _) = watch(session.run("the task").unwrap()).await;
    let numbers: Vec<_> = events.iter().filter_map(|event| event.number).collect();
    assert_eq!(numbers, (0..numbers.len() as u64).collect::<Vec<_>>());
    assert!(
        events
            .iter()
            .all(|event| event.number.is_none() == event.kind.is_delta())
    );
    assert!(matches!(
        events.last().unwrap().kind,
        EventKind::RunFinished { .. }
    ));
    let shown = |wanted: &str| {
        events.iter().any(|event| match &event.kind {
            EventKind::TextDelta { text } | EventKind::ToolOutputDelta { text, .. } => {
                text == wanted
            }
            _ => false,
        })
    };
    assert!(shown("thinking aloud") && shown("half way\n"));
}

#[tokio::test]
async fn runs_of_a_session_continue_the_conversation_one_after_another() {
    let client = Scripted::new(|_, request| {
        let user_messages = request
            .messages
            .iter()
            .filter(|m| matches!(&***m, Message::User(_)))
            .count();
        finish(&format!("{user_messages} user messages"))
    });
    let session = session(agent(&client)).await;
    let first = session.run("one").unwrap();
    let busy = session.run("two").unwrap_err();
    assert_eq!(busy.kind(), SessionErrorKind::Busy);
    let first = outcome(first).await;
    let second = outcome(session.run("two").unwrap()).await;
    assert_eq!(first.finish.unwrap().params["reason"], "1 user messages");
    assert_eq!(second.finish.unwrap().params["reason"], "2 user messages");
    let systems = second
        .history
        .iter()
        .filter(|m| matches!(&***m, Message::System(_)))
        .count();
    assert_eq!(systems, 1);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_large_result_keeps_its_first_and_last_half() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("talks", "a", json!({}))]),
        _ => finish("done"),
    });
    let talks = bare("talks", |_| async {
        Ok(ToolOutput::text("é".repeat(3_000_000)))
    });
    let session = session(agent(&client).tool(talks)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let (result, _) = &results(&outcome)[0];
    assert!(
        result.chars().count() < 100_200,
        "{}",
        result.chars().count()
    );
    assert!(result.contains("the result has 3000000 characters"));
}

#[tokio::test]
async fn thousand_sessions_of_one_agent_do_not_meet() {
    let client = Scripted::new(|_, request| {
        let task = user_messages(&request.messages).remove(0);
        finish(&task)
    });
    let agent = agent(&client).build().unwrap();
    let mut sessions = Vec::new();
    for number in 0..1000 {
        let session = agent
            .session(cantle_agent::SessionOptions::default())
            .await
            .unwrap();
        let run = session.run(format!("task {number}")).unwrap();
        sessions.push((number, session, run));
    }
    for (number, session, run) in sessions {
        let finish = outcome(run).await.finish.unwrap();
        assert_eq!(finish.params["reason"], format!("task {number}"));
        session.close().await.unwrap();
    }
    assert_eq!(client.requests(), 1000);
}

#[tokio::test]
async fn a_model_client_that_panics_ends_the_run_and_its_events() {
    let client = Scripted::new(|_, _| panic!("a bug in the client"));
    let session = session(agent(&client)).await;
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    assert!(matches!(events[0].kind, EventKind::RunStarted { .. }));
    assert_eq!(outcome.status(), RunStatus::InternalError);
    assert!(session.run("again").is_ok(), "the session is free again");
}

#[tokio::test]
async fn dropping_a_session_cancels_its_run() {
    let client = Scripted::new(|_, _| calls(&[("waits", "a", json!({}))]));
    let waits = bare("waits", |cx: ToolContext| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::text("told"))
    });
    let session = session(agent(&client).tool(waits)).await;
    let run = session.run("the task").unwrap();
    drop(session);
    assert_eq!(outcome(run).await.status(), RunStatus::Cancelled);
}
