//! Tools that hang, and results that are too large.

use std::future::pending;
use std::path::Path;
use std::time::Duration;

use cantle_agent::{Agent, SessionOptions};
use cantle_backends_local::LocalBackend;
use cantle_core::event::{EventKind, RunStatus};
use cantle_core::metadata::Metadata;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
use cantle_core::tool::{ToolError, ToolOutput};
use cantle_tools::CodeExec;
use serde_json::json;

use crate::support::{Scripted, agent, bare, calls, finish, outcome, results, session};

/// Calls these tools one after another, and finishes.
fn calling(tools: &'static [&'static str]) -> Scripted {
    Scripted::new(move |turn, _| match tools.get(turn) {
        Some(tool) => calls(&[(tool, "c", json!({}))]),
        None => finish("went on"),
    })
}

const STOPPED: &str = "The tool was stopped: it did not end within 5 s.";

#[tokio::test(start_paused = true)]
async fn a_hanging_tool_is_stopped_and_its_output_kept() {
    let client = calling(&["listens", "errs", "hangs"]);
    let limit = Some(Duration::from_secs(5));
    let listens = bare("listens", |cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::text("3 of 5 done").with_metadata(Metadata::uses(3)))
    });
    let errs = bare("errs", |cx| async move {
        cx.cancellation.cancelled().await;
        Err(ToolError::failed("The server said no to the fourth."))
    });
    let hangs = bare("hangs", |_| pending());
    let agent = agent(&client)
        .tool(listens.with_timeout(limit))
        .tool(errs.with_timeout(limit))
        .tool(hangs.with_timeout(limit));
    let session = session(agent).await;
    let started = tokio::time::Instant::now();
    let outcome = session.run("the task").unwrap().outcome().await;
    assert_eq!(outcome.status(), RunStatus::Finished);
    // The one that does not listen has a second of grace.
    assert!(started.elapsed() < Duration::from_secs(17));
    let stopped_with = |words: &str| (format!("{STOPPED} Its output until then:\n{words}"), false);
    assert_eq!(
        results(&outcome)[..3],
        [
            stopped_with("3 of 5 done"),
            stopped_with("The server said no to the fourth."),
            (STOPPED.to_owned(), false)
        ]
    );
    let reported = &outcome.ledger.tools["listens"].metadata;
    assert_eq!(*reported, Metadata::uses(3), "what it reported counts");
}

#[tokio::test(start_paused = true)]
async fn a_tool_without_a_timeout_runs_as_long_as_it_needs() {
    let client = calling(&["slow"]);
    let slow = bare("slow", |_| async {
        tokio::time::sleep(Duration::from_secs(100_000)).await;
        Ok(ToolOutput::text("at last"))
    });
    let session = session(agent(&client).tool(slow.with_timeout(None))).await;
    let outcome = session.run("the task").unwrap().outcome().await;
    assert_eq!(results(&outcome)[0], ("at last".to_owned(), true));
}

async fn with_sandbox(agent: cantle_agent::AgentBuilder) -> (Agent, cantle_agent::Session) {
    let backend = LocalBackend::new();
    let agent = agent
        .provider(CodeExec::new(backend).policy(Policy::workspace()))
        .build()
        .unwrap();
    let session = agent.session(SessionOptions::default()).await.unwrap();
    (agent, session)
}

/// The path of the file that a result says it is kept in.
fn kept_in(result: &str) -> SandboxPath {
    let (_, rest) = result
        .split_once("the whole of it is in the file `")
        .unwrap();
    let (path, _) = rest.split_once('`').unwrap();
    SandboxPath::new(path).unwrap()
}

#[tokio::test]
async fn a_hundred_megabytes_are_kept_as_a_file_and_head_and_tail_are_shown() {
    const BYTES: usize = 100 << 20;
    let client = calling(&["talks"]);
    let talks = bare("talks", |_| async {
        let mut text = "x".repeat(BYTES);
        text.replace_range(..5, "begin");
        text.replace_range(BYTES - 3.., "end");
        Ok(ToolOutput::text(text))
    });
    let (_, session) = with_sandbox(agent(&client).tool(talks)).await;
    let mut run = session.run("the task").unwrap();
    let mut shown = 0;
    while let Some(event) = run.next().await {
        if let EventKind::ToolFinished { result, .. } = event.kind {
            shown = shown.max(result.len());
        }
    }
    let outcome = outcome(run).await;
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let (result, success) = &results(&outcome)[0];
    assert!(*success && result.starts_with("begin") && result.ends_with("end"));
    assert!(
        result.len() < 100_300 && shown < 100_300,
        "{}",
        result.len()
    );
    assert!(result.contains(&format!("the result has {BYTES} characters")));

    let host = tempfile::tempdir().unwrap();
    let target = host.path().join("whole");
    let sandbox = session.sandbox().unwrap();
    sandbox.download(&kept_in(result), &target).await.unwrap();
    assert_eq!(size(&target), BYTES as u64);
    session.close().await.unwrap();
}

fn size(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[tokio::test]
async fn the_same_large_result_again_is_the_same_words_and_one_file() {
    let client = Scripted::new(|turn, _| match turn {
        0..9 => calls(&[("talks", &format!("c{turn}"), json!({}))]),
        _ => finish("never"),
    });
    let talks = bare("talks", |_| async {
        Ok(ToolOutput::text("é".repeat(200_000)))
    });
    let (_, session) = with_sandbox(agent(&client).tool(talks)).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let kind = outcome.error.as_ref().unwrap().kind();
    assert_eq!(kind, cantle_agent::RunErrorKind::NoProgress);
    let results = results(&outcome);
    assert!(results.iter().all(|result| *result == results[0]));
    let directory = SandboxPath::new(".cantle/results").unwrap();
    let files = session.sandbox().unwrap().list(&directory).await.unwrap();
    assert_eq!(files.len(), 1);
    session.close().await.unwrap();
}
