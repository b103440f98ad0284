//! Memory stays bounded, whatever commands write and however slowly it is watched. On its own,
//! because it measures the process.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

use std::time::Duration;

use cantle_agent::{Agent, SessionOptions};
use cantle_backends_local::LocalBackend;
use cantle_clients::replay::ReplayClient;
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::message::{AssistantBlock, AssistantMessage, ToolCall};
use cantle_core::tool::{OpenContext, ToolProvider as _};
use cantle_tools::{CodeExec, Finish};
use serde_json::{Value, json};

/// The most memory this process ever had.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

fn call(name: &str, id: &str, arguments: &Value) -> AssistantBlock {
    let id = Some(id.to_owned());
    AssistantBlock::ToolCall(ToolCall::new(id, name, arguments.to_string()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_noisy_commands_side_by_side_take_a_few_megabytes_of_a_slow_reader() {
    const BYTES: u64 = 512 << 20;
    const BOUND: u64 = 32 << 20;

    // Neither is over before the other has begun.
    let noise = |own: &str, other: &str| {
        let cmd = format!(
            "touch {own}; until [ -e {other} ]; do sleep 0.01; done; yes {own} | head -c {BYTES}"
        );
        call("code_exec", own, &json!({"cmd": cmd}))
    };
    let turns = vec![
        AssistantMessage::new(vec![noise("one", "two"), noise("two", "one")]),
        AssistantMessage::new(vec![call("finish", "end", &json!({"reason": "done"}))]),
    ];
    let commands = CodeExec::new(LocalBackend::new()).timeout(Duration::from_secs(60));
    let commands = commands.open(OpenContext::new(RunId::new())).await.unwrap();
    let code_exec = commands.tools().remove(0).with_concurrency_safe(true);
    let agent = Agent::builder("noisy", ReplayClient::new("replay", turns))
        .tool(code_exec)
        .finish(Finish)
        .build()
        .unwrap();
    let session = agent.session(SessionOptions::default()).await.unwrap();
    let before = peak_bytes();

    let mut run = session.run("Make noise.").unwrap();
    let mut shown = 0;
    while let Some(event) = run.next().await {
        if let EventKind::ToolOutputDelta { text, .. } = event.kind {
            shown += text.len() as u64;
        }
        // Much slower than the commands write.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let outcome = run.outcome().await;

    let grown = peak_bytes() - before;
    assert!(grown < BOUND, "{grown} bytes");
    assert_eq!(outcome.status(), RunStatus::Finished);
    assert!(0 < shown && shown < BYTES, "{shown} bytes were shown");
    session.close().await.unwrap();
    commands.close().await.unwrap();
}
