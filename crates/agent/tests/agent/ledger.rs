//! The ledger against the server's own count: whatever becomes of an answer, its tokens are there.

use std::sync::Mutex;

use cantle_agent::{Agent, SessionOptions, SubAgent};
use cantle_clients::chat::ChatClient;
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
        [turn, turn, dropped, failed, summary, turn, turn]
    );
    assert_eq!(
        purposes(&outcome.ledger.sub_agents["helper"][0]),
        [turn, turn, turn]
    );
    session.close().await.unwrap();
}
