//! Budgets: a word before, a last chance, and a typed end.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use cantle_agent::{
    Agent, AgentBuilder, Budget, Outcome, ResumeOptions, RunErrorKind, RunStore, Session,
    SessionErrorKind, SessionOptions, SubAgent,
};
use cantle_clients::fallback::Fallback;
use cantle_clients::retry::{Retry, RetryPolicy};
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::ledger::CallPurpose;
use cantle_core::llm::{ChatEvent, FailedAttempt, LlmError, LlmErrorKind, PriceSource, Prices};
use cantle_core::tool::ToolOutput;
use futures_util::FutureExt as _;
use serde_json::{Value, json};

use crate::support::{
    Scripted, agent, bare, calls, echo, finish, finish_tool, of_tokens, outcome, results,
    user_messages,
};

type Events = Vec<Result<ChatEvent, LlmError>>;

async fn limited(agent: AgentBuilder, budget: Budget) -> Session {
    let options = SessionOptions::default().budget(budget);
    agent.build().unwrap().session(options).await.unwrap()
}

/// A turn of 10 tokens, an eighth of a dollar and one call.
fn work(turn: usize) -> Events {
    let mut events = of_tokens(calls(&[("work", "w", json!({"n": turn}))]), 10);
    if let Some(Ok(ChatEvent::Finished(end))) = events.last_mut() {
        end.cost_usd = Some(0.125);
    }
    events
}

/// The warnings in a conversation.
fn warnings(outcome: &Outcome) -> Vec<String> {
    let user_messages = user_messages(&outcome.history);
    user_messages
        .into_iter()
        .filter(|it| it.contains("budget"))
        .collect()
}

fn near(state: &str) -> String {
    format!(
        "Most of this run's budget is spent ({state}). Bring the task to an end, and keep enough for \
         calling a finish tool."
    )
}

fn last(state: &str) -> String {
    format!(
        "The budget of this run is spent ({state}). This is the last turn: finish the task now by \
         calling a finish tool. Nothing else will run."
    )
}

#[tokio::test]
async fn each_budget_warns_once_leaves_a_last_turn_and_ends_the_run() {
    let cases = [
        (
            Budget::default().tokens(50),
            ("40 of 50 tokens", "50 of 50 tokens"),
        ),
        (
            Budget::default().cost_usd(0.625),
            ("$0.5000 of $0.625", "$0.6250 of $0.625"),
        ),
        (
            Budget::default().tool_calls(5),
            ("4 of 5 tool calls", "5 of 5 tool calls"),
        ),
    ];
    for (budget, (most, all)) in cases {
        let client = Scripted::new(|turn, _| work(turn));
        let session = limited(agent(&client).tool(echo("work")), budget).await;
        let outcome = outcome(session.run("the task").unwrap()).await;
        assert_eq!(warnings(&outcome), [near(most), last(all)]);
        let error = outcome.error.as_ref().unwrap();
        assert_eq!(
            (error.kind(), outcome.status(), error.to_string()),
            (
                RunErrorKind::Budget,
                RunStatus::LimitReached,
                format!("the run's budget is spent: {all}")
            )
        );
        assert_eq!(outcome.turns, 6);
        let refused = format!(
            "Not run: the run's budget is spent ({all}), so that only a finish call is still possible."
        );
        assert_eq!(results(&outcome)[5], (refused, false));
        assert_eq!(outcome.ledger.tools["work"].failures, 1);
    }
}

#[tokio::test]
async fn a_finish_call_in_the_last_turn_finishes_the_run() {
    let client = Scripted::new(|turn, request| {
        let user_messages = user_messages(&request.messages);
        match user_messages
            .iter()
            .any(|text| text.contains("This is the last turn"))
        {
            true => finish("as far as I came"),
            false => work(turn),
        }
    });
    let budget = Budget::default().tokens(20);
    let session = limited(agent(&client).tool(echo("work")), budget).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    assert_eq!(outcome.turns, 3);
}

#[tokio::test]
async fn a_budget_of_nothing_leaves_the_last_turn_only() {
    let client = Scripted::new(|turn, _| work(turn));
    let budget = Budget::default().tool_calls(0);
    let session = limited(agent(&client).tool(echo("work")), budget).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(warnings(&outcome), [last("0 of 0 tool calls")]);
    assert_eq!((client.requests(), outcome.turns), (1, 1));
    assert!(!results(&outcome)[0].1);
}

#[tokio::test(start_paused = true)]
async fn when_the_time_is_over_a_tool_that_hangs_is_stopped_and_the_model_may_finish() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("hangs", "a", json!({})), ("hangs", "b", json!({}))]),
        _ => finish("in time"),
    });
    let hangs = bare("hangs", |_| pending()).with_timeout(None);
    let budget = Budget::default().time(Duration::from_secs(100));
    let session = limited(agent(&client).tool(hangs), budget).await;
    let started = tokio::time::Instant::now();
    let outcome = session.run("the task").unwrap().outcome().await;
    let took = started.elapsed();
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    assert!((100..110).contains(&took.as_secs()), "{took:?}");
    assert_eq!(
        results(&outcome)[..2],
        [
            (
                "The run's time was over while this call was running.".to_owned(),
                false
            ),
            (
                "The run's time was over before this call started.".to_owned(),
                false
            )
        ]
    );
    assert_eq!(warnings(&outcome), [last("100 of 100 s")]);
}

#[tokio::test(start_paused = true)]
async fn when_the_time_is_over_as_one_call_ends_the_others_are_stopped_and_the_model_may_finish() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("waits", "a", json!({})), ("ends", "b", json!({}))]),
        _ => finish("in time"),
    });
    let waits = bare("waits", |cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::failure("stopped"))
    });
    let ends = bare("ends", |_| async {
        // The clock moves before any timer fires.
        let _ = tokio::time::advance(Duration::from_secs(100)).now_or_never();
        Ok(ToolOutput::text("ended"))
    });
    let agent = agent(&client)
        .tool(waits.with_concurrency_safe(true).with_timeout(None))
        .tool(ends.with_concurrency_safe(true));
    let budget = Budget::default().time(Duration::from_secs(100));
    let session = limited(agent, budget).await;
    let outcome = session.run("the task").unwrap().outcome().await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let expected = [("stopped".to_owned(), false), ("ended".to_owned(), true)];
    assert_eq!(results(&outcome)[..2], expected);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_observes_its_token_returns_partial_output_at_its_timeout() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("listens", "a", json!({}))]),
        _ => finish("in time"),
    });
    let listens = bare("listens", |cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::failure("3 of 5 done"))
    });
    let budget = Budget::default().time(Duration::from_secs(100));
    let session = limited(agent(&client).tool(listens.with_timeout(None)), budget).await;
    let outcome = session.run("the task").unwrap().outcome().await;
    assert_eq!(results(&outcome)[0], ("3 of 5 done".to_owned(), false));
}

#[tokio::test(start_paused = true)]
async fn a_hanging_model_is_given_up_after_the_budget_and_the_time_of_a_last_turn() {
    let client = Scripted::new(|_, _| finish("never")).waiting(|_| pending());
    let budget = Budget::default().time(Duration::from_secs(100));
    let session = limited(agent(&client), budget).await;
    let started = tokio::time::Instant::now();
    let outcome = session.run("the task").unwrap().outcome().await;
    let took = started.elapsed();
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Budget);
    assert!((160..165).contains(&took.as_secs()), "{took:?}");
    let call = &outcome.ledger.model_calls[0];
    assert_eq!(
        (call.purpose, call.estimated),
        (CallPurpose::Cancelled, true)
    );
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_was_not_due_yet_costs_nothing() {
    let client = Scripted::new(|_, _| {
        let error = LlmError::new(LlmErrorKind::Server, "overloaded");
        vec![Err(error.with_retry_after(Some(Duration::from_secs(200))))]
    });
    let client = Retry::new(client, RetryPolicy::default());
    let agent = Agent::builder("test", client).finish(finish_tool());
    let budget = Budget::default().time(Duration::from_secs(100));
    let session = limited(agent, budget).await;
    let outcome = session.run("the task").unwrap().outcome().await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Budget);
    let calls = outcome.ledger.model_calls.iter();
    let calls: Vec<_> = calls
        .map(|call| (call.purpose, call.usage.total()))
        .collect();
    assert_eq!(calls, [(CallPurpose::Failed, 0)]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_comes_after_the_time_may_still_finish_but_begins_no_work() {
    let client = Scripted::new(|_, _| {
        let finish = ("finish", "f", json!({"reason": "late"}));
        calls(&[("work", "w", json!({})), finish])
    })
    .waiting(|_| tokio::time::sleep(Duration::from_secs(120)));
    let budget = Budget::default().time(Duration::from_secs(100));
    let session = limited(agent(&client).tool(echo("work")), budget).await;
    let outcome = session.run("the task").unwrap().outcome().await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let refused = "Not run: the run's budget is spent (120 of 100 s), so that only a finish call is \
                   still possible.";
    assert_eq!(results(&outcome)[0], (refused.to_owned(), false));
}

/// Runs to the end of 5 of 5 in the budget, and gives the agent and the store to go on with.
async fn spent(
    agent: AgentBuilder,
    budget: Budget,
) -> (tempfile::TempDir, RunStore, Agent, Outcome) {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let agent = agent.build().unwrap();
    let options = SessionOptions::default()
        .budget(budget)
        .kept_in(store.clone(), Value::Null);
    let session = agent.session(options).await.unwrap();
    let outcome = session.run("the task").unwrap().outcome().await;
    session.close().await.unwrap();
    (directory, store, agent, outcome)
}

async fn go_on(agent: &Agent, store: &RunStore, first: &Outcome, budget: Budget) -> Outcome {
    let options = ResumeOptions::default().budget(budget);
    let session = agent.resume(store, first.run, options).await.unwrap();
    let outcome = session.resume().unwrap().outcome().await;
    session.close().await.unwrap();
    outcome
}

#[tokio::test]
async fn a_run_continues_with_a_larger_budget_and_ends_again_with_the_same() {
    type Case = (fn(u64) -> Budget, u64, &'static str);
    let cases: [Case; 3] = [
        (|n| Budget::default().tokens(n * 10), 9, "90 of 90 tokens"),
        (
            |n| Budget::default().cost_usd(n as f64 / 8.0),
            9,
            "$1.1250 of $1.125",
        ),
        (|n| Budget::default().tool_calls(n), 9, "tool calls"),
    ];
    for (budget, more, expected) in cases {
        let client = Scripted::new(|turn, _| work(turn));
        let agent = agent(&client).tool(echo("work"));
        let (_directory, store, agent, first) = spent(agent, budget(5)).await;
        assert_eq!(first.error.as_ref().unwrap().kind(), RunErrorKind::Budget);
        let requests = client.requests();

        let again = go_on(&agent, &store, &first, budget(5)).await;
        assert_eq!(again.error.unwrap().kind(), RunErrorKind::Budget);
        assert_eq!(
            client.requests(),
            requests + 1,
            "the last turn, nothing more"
        );

        let larger = go_on(&agent, &store, &first, budget(more)).await;
        let error = larger.error.as_ref().unwrap();
        assert_eq!(error.kind(), RunErrorKind::Budget);
        assert!(error.to_string().contains(expected), "{error}");
        let done = results(&larger)
            .iter()
            .filter(|(_, success)| *success)
            .count();
        assert!(done > 5, "{done} calls");
    }
}

#[tokio::test(start_paused = true)]
async fn time_counts_over_processes_also_that_of_a_model_that_hung() {
    let client = Scripted::new(|_, _| finish("in time")).waiting(|number| {
        tokio::time::sleep(Duration::from_secs(1000 * (1 - number.min(1) as u64)))
    });
    let budget = |seconds| Budget::default().time(Duration::from_secs(seconds));
    let (_directory, store, agent, first) = spent(agent(&client), budget(1)).await;
    assert_eq!(first.error.as_ref().unwrap().kind(), RunErrorKind::Budget);

    let again = go_on(&agent, &store, &first, budget(1)).await;
    assert_eq!(again.error.unwrap().kind(), RunErrorKind::Budget);
    assert_eq!(client.requests(), 1, "nothing is asked for nothing");

    // 61 s are used: this one is spent too, but leaves time for a last turn.
    let again = go_on(&agent, &store, &first, budget(30)).await;
    assert_eq!(again.status(), RunStatus::Finished, "{:?}", again.error);
    let user_messages = user_messages(&again.history).pop().unwrap();
    assert!(
        user_messages.contains("This is the last turn"),
        "{user_messages}"
    );
}

#[tokio::test]
async fn a_budget_of_money_that_can_not_be_kept_is_refused() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "h", json!({"task": "Help."}))]),
        _ => finish("done"),
    });
    let silent = client.clone().reporting_cost(false);
    let dollar = SessionOptions::default().budget(Budget::default().cost_usd(1.0));
    let refused = agent(&silent)
        .build()
        .unwrap()
        .session(dollar.clone())
        .await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.kind(), SessionErrorKind::Budget);
    let why = "no price is known for scripted, so a budget of money can't be enforced. Set its prices, or limit \
               tokens instead";
    assert_eq!(refused.to_string(), why);

    // So is one whose sub-agent or fallback has such a model.
    let helper = Agent::builder("helper", silent.clone())
        .finish(finish_tool())
        .build()
        .unwrap();
    let with_helper = agent(&client).sub_agent(SubAgent::new(&helper, "Helps."));
    let mut with_fallback = client.clone();
    with_fallback.model.fallbacks = vec![silent.model.clone()];
    for agent in [with_helper, agent(&with_fallback)] {
        let refused = agent.build().unwrap().session(dollar.clone()).await;
        assert_eq!(refused.unwrap_err().to_string(), why);
    }
    assert_eq!(client.requests(), 0);
}

#[tokio::test]
async fn a_call_without_a_cost_ends_a_run_with_a_budget_of_money() {
    let client = Scripted::new(|turn, _| {
        let mut events = of_tokens(work(turn), 1000);
        if let Some(Ok(ChatEvent::Finished(end))) = events.last_mut() {
            end.cost_usd = (turn == 0).then_some(0.125);
        }
        events
    });
    let agent_of = |client: &Scripted| agent(client).tool(echo("work")).max_turns(4);
    let dollars = Budget::default().cost_usd(5.0);
    let session = limited(agent_of(&client), dollars).await;
    let stopped = outcome(session.run("the task").unwrap()).await;
    let error = stopped.error.as_ref().unwrap();
    assert_eq!(
        (error.kind(), error.to_string().as_str(), client.requests()),
        (
            RunErrorKind::Budget,
            "the cost of a call of scripted is unknown, so the run's budget of money can't be enforced",
            2
        )
    );
    assert_eq!(stopped.ledger.calls_of_unknown_cost(), 1);

    // An attempt that failed is such a call, too, and the next one is not made.
    let broken = Scripted::new(|_, _| {
        let error = LlmError::new(LlmErrorKind::Interrupted, "the stream broke");
        let failed = FailedAttempt::new(1, &error, Duration::ZERO);
        let attempt = [Ok(ChatEvent::AttemptFailed(failed))];
        attempt.into_iter().chain(finish("done")).collect()
    });
    let session = limited(agent_of(&broken), dollars).await;
    let stopped = outcome(session.run("the task").unwrap()).await;
    assert_eq!(stopped.error.unwrap().kind(), RunErrorKind::Budget);
    assert_eq!((broken.requests(), stopped.turns), (1, 0));

    // With an upper bound of its prices the call counts, and the run goes on.
    let mut bounded = client.clone();
    let list = PriceSource::List("2026-11-01");
    bounded.model.highest_prices = Some(Prices::per_million(100.0, 100.0).from_source(list));
    let session = limited(agent_of(&bounded), dollars).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::MaxTurns);
    let costs = outcome.ledger.costs();
    assert_eq!(costs.reported_usd, Some(0.125));
    assert!(
        (costs.list_price_usd.unwrap() - 0.3).abs() < 1e-9,
        "{costs:?}"
    );
    assert_eq!(costs.list_price_date, Some("2026-11-01"));

    // Without a budget of money nothing depends on it.
    let session = limited(agent_of(&bounded), Budget::default()).await;
    let outcome = self::outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.ledger.calls_of_unknown_cost(), 3);
}

#[tokio::test]
async fn a_fallback_model_that_fails_or_is_cancelled_counts_with_its_name_and_prices() {
    let first = Scripted::new(|_, _| vec![Err(LlmError::new(LlmErrorKind::Timeout, "no answer"))]);
    let failing = first.clone().named("second").priced(2.0, 10.0);
    let hanging = failing.clone().waiting(|_| pending());
    for (second, purpose) in [
        (failing, CallPurpose::Failed),
        (hanging, CallPurpose::Cancelled),
    ] {
        let client = Fallback::new(Arc::new(first.clone()), vec![Arc::new(second)]);
        let agent = Agent::builder("test", client).finish(finish_tool());
        let session = limited(agent, Budget::default()).await;
        let mut run = session.run("the task").unwrap();
        while !matches!(run.next().await.unwrap().kind, EventKind::ModelRetry { .. }) {}
        if purpose == CallPurpose::Cancelled {
            run.cancel();
        }
        let outcome = outcome(run).await;
        let calls = outcome.ledger.model_calls.iter();
        let calls = calls.map(|call| (&*call.model, call.purpose, call.cost_usd.is_some()));
        let expected = [
            ("scripted", CallPurpose::Failed, false),
            ("second", purpose, true),
        ];
        assert_eq!(calls.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn with_prices_estimated_tokens_cost_something_too() {
    let client = Scripted::new(|_, _| {
        let mut events = finish("done");
        if let Some(Ok(ChatEvent::Finished(end))) = events.last_mut() {
            end.usage = None;
        }
        events
    });
    let client = client.priced(2.0, 10.0);
    let session = limited(agent(&client), Budget::default().cost_usd(5.0)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let call = &outcome.ledger.model_calls[0];
    let expected = (call.usage.input as f64 * 2.0 + call.usage.answer as f64 * 10.0) / 1e6;
    assert!(call.estimated && call.usage.total() > 0);
    assert!((call.cost_usd.unwrap() - expected).abs() < 1e-12);
    assert_eq!(outcome.ledger.calls_of_unknown_cost(), 0);
}
