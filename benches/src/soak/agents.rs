//! The agents of a soak test. Their ledgers must hold what the scripted server counts, which fails one request in five.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use cantle_agent::{Agent, SessionOptions};
use cantle_core::event::RunStatus;
use cantle_core::ids::RunId;
use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::client_loop::agent;

/// Agents at once.
const AGENTS: usize = 8;
/// Turns of a run, and how long the server takes for each.
const TURNS: u32 = 10;
const LATENCY: Duration = Duration::from_millis(100);
/// Maximum number of failed attempts of one model call.
const MAX_FAILURES: usize = 3;

/// The sum of the ledgers of some runs.
#[derive(Default)]
pub(super) struct LedgerTotals {
    pub(super) runs: u64,
    pub(super) model_calls: u64,
    tokens: u64,
}

/// Runs tasks until `stop`; fails if their ledgers differ from the server's count.
pub(super) async fn run_agents(stop: CancellationToken) -> Result<LedgerTotals> {
    let requests = Arc::new(AtomicU64::new(0));
    let script = script(Arc::clone(&requests));
    let server = ScriptedServer::start(ServerOptions::new(script).without_record()).await?;
    let agent = agent(&server.url(), TURNS + 1)?;
    let mut agents = JoinSet::new();
    for _ in 0..AGENTS {
        agents.spawn(run_tasks(agent.clone(), stop.clone()));
    }
    let mut totals = LedgerTotals::default();
    while let Some(ended) = agents.join_next().await {
        let one = ended??;
        totals.runs += one.runs;
        totals.model_calls += one.model_calls;
        totals.tokens += one.tokens;
    }
    let (calls, tokens) = (totals.model_calls, totals.tokens);
    let (requests, sent) = (requests.load(Ordering::Relaxed), server.usage_sent());
    let sent = sent.prompt + sent.completion;
    ensure!(
        (calls, tokens) == (requests, sent),
        "ledgers have {calls} model calls and {tokens} tokens, but the server has {requests} and {sent}"
    );
    Ok(totals)
}

/// Returns a script that counts the requests.
fn script(requests: Arc<AtomicU64>) -> Script {
    Script::new().then_with(move |request| {
        let call = match request.turn + 1 < TURNS as usize {
            true => ToolCall::new("noop", json!({"n": 1})),
            false => ToolCall::new("finish", json!({"reason": "done"})),
        };
        let turn = Turn::tool(call).latency(LATENCY);
        match requests.fetch_add(1, Ordering::Relaxed) % 10 {
            _ if request.attempt >= MAX_FAILURES => turn,
            3 => turn.fault_always(Fault::Reply(Reply::error(503))),
            // Within the call, before the usage.
            7 => turn.fault_always(Fault::CutAfterEvents(3)),
            _ => turn,
        }
    })
}

async fn run_tasks(agent: Agent, stop: CancellationToken) -> Result<LedgerTotals> {
    let mut totals = LedgerTotals::default();
    while !stop.is_cancelled() {
        let session = agent.session(SessionOptions::default()).await?;
        // The server counts the attempts of different tasks separately.
        let task = format!("Task {}", RunId::new());
        let outcome = session.run(task)?.outcome().await;
        session.close().await?;
        ensure!(
            outcome.status() == RunStatus::Finished,
            "{:?}",
            outcome.error
        );
        totals.runs += 1;
        totals.model_calls += outcome.ledger.model_calls.len() as u64;
        totals.tokens += outcome.ledger.reported_usage().total();
    }
    Ok(totals)
}
