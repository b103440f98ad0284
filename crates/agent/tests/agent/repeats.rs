//! A model that does the same over and over, and what the user says meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cantle_agent::RunErrorKind;
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::tool::ToolOutput;
use serde_json::json;
use tokio::sync::Notify;

use crate::support::{Scripted, agent, bare, calls, echo, finish, outcome, session, user_messages};

#[tokio::test]
async fn a_stuck_model_is_warned_before_the_run_ends() {
    let client = Scripted::new(|turn, _| calls(&[("work", &format!("c{turn}"), json!({"n": 1}))]));
    let session = session(agent(&client).tool(echo("work"))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let error = outcome.error.as_ref().unwrap();
    assert_eq!(
        (error.kind(), outcome.status(), outcome.turns),
        (RunErrorKind::NoProgress, RunStatus::LimitReached, 6)
    );
    let told = user_messages(&outcome.history);
    let told = told
        .iter()
        .filter(|text| text.contains("the same call with the same result"));
    assert_eq!(told.count(), 3);
}

#[tokio::test]
async fn polling_tools_and_changing_results_are_no_repetition() {
    let client = Scripted::new(|turn, _| match turn {
        0..10 => calls(&[("poll", "p", json!({}))]),
        10..20 => calls(&[("count", "c", json!({}))]),
        _ => finish("done"),
    });
    let poll = bare("poll", |_| async { Ok(ToolOutput::text("not yet")) }).with_polls(true);
    let counter = Arc::new(AtomicUsize::new(0));
    let count = bare("count", move |_| {
        let n = counter.fetch_add(1, Ordering::SeqCst);
        async move { Ok(ToolOutput::text(n.to_string())) }
    });
    let session = session(agent(&client).tool(poll).tool(count)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
}

#[tokio::test]
async fn messages_during_a_tool_call_or_a_model_call_are_sent_with_the_next_turn() {
    let asked = Arc::new(Notify::new());
    let go_on = Arc::new(Notify::new());
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("waits", "w", json!({}))]),
        1 => calls(&[("work", "x", json!({}))]),
        _ => finish("done"),
    });
    let (asked_there, go_on_there) = (Arc::clone(&asked), Arc::clone(&go_on));
    let client = client.waiting(move |number| {
        let (asked, go_on) = (Arc::clone(&asked_there), Arc::clone(&go_on_there));
        async move {
            if number == 1 {
                asked.notify_one();
                go_on.notified().await;
            }
        }
    });
    let gate = Arc::new(Notify::new());
    let opened = Arc::clone(&gate);
    let waits = bare("waits", move |_| {
        let gate = Arc::clone(&gate);
        async move {
            gate.notified().await;
            Ok(ToolOutput::text("waited"))
        }
    });
    let session = session(agent(&client).tool(waits).tool(echo("work"))).await;
    let mut run = session.run("the task").unwrap();
    let control = run.control();
    while let Some(event) = run.next().await {
        if matches!(event.kind, EventKind::ToolStarted { .. }) {
            break;
        }
    }
    control.say("in blue");
    opened.notify_one();
    asked.notified().await;
    control.say("and green");
    go_on.notify_one();
    let outcome = outcome(run).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    let heard: Vec<_> = client
        .asked()
        .iter()
        .map(|request| user_messages(&request.messages)[1..].to_vec())
        .collect();
    let expected: [&[&str]; 3] = [&[], &["in blue"], &["in blue", "and green"]];
    assert_eq!(heard, expected);
}
