//! The ledger against the server's own count: whatever becomes of an answer, its tokens are there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cantle_agent::{Agent, Budget, SessionOptions, SubAgent};
use cantle_clients::chat::ChatClient;
use cantle_clients::retry::RetryPolicy;
use cantle_core::event::RunStatus;
use cantle_core::ledger::{CallPurpose, Ledger};
use cantle_testkit::openai::{
    Fault, Reply, Script, ScriptedServer, ServerOptions, ToolCall, Turn, Usage,
};
use serde_json::json;

use crate::support::{bare, finish_tool, outcome};

/// A script that answers each request with the next turn, whatever the conversation holds.
fn in_order(turns: Vec<Turn>) -> Script {
    let turns = Mutex::new(turns.into_iter());
    Script::new().then_with(move |_| turns.lock().unwrap().next().expect("one request too many"))
}

fn call(tool: &str, arguments: serde_json::Value, prompt: u64) -> Turn {
    Turn::tool(ToolCall::new(tool, arguments)).usage(Usage::new(prompt, 7).cached(3))
}

fn refused(status: u16) -> Turn {
    Turn::text("").fault_always(Fault::Reply(Reply::error(status)))
}

fn overflow() -> Turn {
    let error = json!({"error": {
        "message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded",
    }});
    let reply = Reply::new(400, "application/json", error.to_string());
    Turn::text("").fault_always(Fault::Reply(reply))
}

fn agent(name: &str, server: &ScriptedServer) -> cantle_agent::AgentBuilder {
    let client = ChatClient::builder(name).base_url(server.url());
    Agent::builder(name, client.build().unwrap())
        .tool(bare("work", |_| async { Ok("worked".into()) }))
        .finish(finish_tool())
        .turn_warning_threshold(0)
}

fn purposes(ledger: &Ledger) -> Vec<CallPurpose> {
    ledger.model_calls.iter().map(|call| call.purpose).collect()
}

#[tokio::test]
async fn the_ledger_equals_the_servers_count_under_retries_overflow_summaries_and_sub_agents() {
    let boss = in_order(vec![
        call("work", json!({"n": 1}), 100),
        refused(500),
        call("work", json!({"n": 2}), 200),
        call("helper", json!({"task": "Help."}), 300),
        overflow(),
        Turn::text("What was done.").usage(Usage::new(250, 50).reasoning(20)),
        Turn::text("Hm.").without_usage(),
        call("finish", json!({"reason": "done"}), 60),
    ]);
    let helper = in_order(vec![
        refused(503),
        call("work", json!({"n": 3}), 40),
        call("nothing", json!({}), 50),
        call("finish", json!({"reason": "helped"}), 60),
    ]);
    let options = ServerOptions::new(Script::new())
        .model("boss", boss)
        .model("helper", helper);
    let server = ScriptedServer::start(options).await.unwrap();
    let helper = agent("helper", &server).build().unwrap();
    let boss = agent("boss", &server)
        .sub_agent(SubAgent::new(&helper, "Helps."))
        .build()
        .unwrap();
    let session = boss.session(SessionOptions::default()).await.unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);

    let sent = server.usage_sent();
    let counted = outcome.ledger.reported_usage();
    assert_eq!(counted.total(), sent.prompt + sent.completion);
    assert_eq!(counted.output_total(), sent.completion);
    assert_eq!(counted.cache_read, sent.cached.unwrap_or_default());
    assert!(outcome.ledger.estimated_usage().total() > 0);
    let (turn, dropped) = (CallPurpose::Turn, CallPurpose::DroppedTurn);
    let (failed, summary) = (CallPurpose::Failed, CallPurpose::Summary);
    assert_eq!(
        purposes(&outcome.ledger),
        [turn, failed, turn, dropped, failed, summary, turn, turn]
    );
    assert_eq!(
        purposes(&outcome.ledger.sub_agents["helper"][0]),
        [failed, turn, turn, turn]
    );
    session.close().await.unwrap();
}

/// One request in five fails, before the answer or within its stream, but no call more than three times.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_against_an_unreliable_server_all_finish_and_repeat_nothing() {
    const RUNS: usize = 100;
    const TURNS: usize = 5;
    let requests = Arc::new(AtomicU64::new(0));
    // Prompt and completion tokens of the streams that broke.
    let broken = Arc::new(AtomicU64::new(0));
    let (seen, lost) = (Arc::clone(&requests), Arc::clone(&broken));
    let attempts = Mutex::new(HashMap::<String, u32>::new());
    let script = Script::new().then_with(move |request| {
        let messages = request.body()["messages"].as_array().unwrap().clone();
        let turns = messages
            .iter()
            .filter(|it| it["role"] == "assistant")
            .count();
        let turn = match turns + 1 < TURNS {
            true => Turn::text("x".repeat(400)).call(ToolCall::new("work", json!({"n": 1}))),
            false => call("finish", json!({"reason": "done"}), 0),
        };
        // About what a tokenizer counts.
        let prompt = request.body().to_string().len() as u64 / 4;
        let turn = turn.usage(Usage::new(prompt, 100));
        let number = seen.fetch_add(1, Ordering::SeqCst);
        let mut attempts = attempts.lock().unwrap();
        let attempt = attempts
            .entry(request.body()["messages"].to_string())
            .or_default();
        *attempt += 1;
        match number % 10 {
            _ if *attempt > 3 => turn,
            3 => turn.fault_always(Fault::Reply(Reply::error(503))),
            7 => {
                lost.fetch_add(prompt + 100, Ordering::SeqCst);
                turn.fault_always(Fault::CutAfterEvents(3))
            }
            _ => turn,
        }
    });
    let server = ScriptedServer::start(ServerOptions::new(script))
        .await
        .unwrap();
    let short = Duration::from_millis(2);
    let client = ChatClient::builder("m")
        .base_url(server.url())
        .retry(RetryPolicy::default().with_backoff(short, short));
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let agent = Agent::builder("unlucky", client.build().unwrap())
        .tool(bare("work", move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok("worked".into()) }
        }))
        .finish(finish_tool())
        .build()
        .unwrap();
    let runs = futures_util::future::join_all((0..RUNS).map(async |run| {
        let session = agent.session(SessionOptions::default()).await.unwrap();
        let outcome = outcome(session.run(format!("task {run}")).unwrap()).await;
        session.close().await.unwrap();
        outcome
    }));
    let outcomes = runs.await;
    for outcome in &outcomes {
        assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    }
    assert_eq!(calls.load(Ordering::SeqCst), (RUNS * (TURNS - 1)) as u64);

    let ledgers = || outcomes.iter().map(|it| &it.ledger);
    let entries: usize = ledgers().map(|it| it.model_calls.len()).sum();
    assert_eq!(entries as u64, requests.load(Ordering::SeqCst));
    let reported: u64 = ledgers().map(|it| it.reported_usage().total()).sum();
    let complete = server.usage_sent();
    assert_eq!(reported, complete.prompt + complete.completion);
    let estimated: u64 = ledgers().map(|it| it.estimated_usage().total()).sum();
    let ratio = estimated as f64 / broken.load(Ordering::SeqCst) as f64;
    assert!((0.8..=1.2).contains(&ratio), "{ratio}");
}

/// An attempt that broke exhausts the budget: no other one is made, but the last turn is offered.
#[tokio::test]
async fn budgets_are_checked_before_each_attempt() {
    let broken = || Turn::text("x".repeat(4000)).fault_always(Fault::CutAfterEvents(2));
    let finish = || call("finish", json!({"reason": "done"}), 10);
    for (turns, status) in [
        (vec![broken(), finish()], RunStatus::Finished),
        (vec![broken(), broken()], RunStatus::LimitReached),
    ] {
        let count = turns.len();
        let server = ScriptedServer::start(ServerOptions::new(in_order(turns)))
            .await
            .unwrap();
        let agent = agent("m", &server);
        let agent = agent.build().unwrap();
        let options = SessionOptions::default().budget(Budget::default().tokens(50));
        let session = agent.session(options).await.unwrap();
        let outcome = outcome(session.run("the task").unwrap()).await;
        assert_eq!(outcome.status(), status, "{:?}", outcome.error);
        assert_eq!(server.requests().len(), count);
        session.close().await.unwrap();
    }
}
