//! Sub-agents: files in and out, accounts, events, limits, and their end.

use std::sync::Arc;
use std::time::Duration;

use cantle_agent::{Agent, Budget, RunErrorKind, RunStore, SessionOptions, SubAgent, TextAnswers};
use cantle_backends_local::LocalBackend;
use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::metadata::Metadata;
use cantle_core::sandbox::{SandboxExt as _, SandboxPath};
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_tools::{CodeExec, Finish};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{Scripted, agent, calls, finish, outcome, results, session, text, watch};

/// A model that works with files: it runs one command, then finishes with these files.
fn worker(command: &str, paths: &[&str]) -> Scripted {
    let command = command.to_owned();
    let params = json!({"reason": "worked", "paths": paths});
    Scripted::new(move |turn, _| match turn {
        0 => calls(&[("code_exec", "w", json!({"cmd": command}))]),
        _ => calls(&[("finish", "f", params.clone())]),
    })
}

fn with_files(name: &str, client: &Scripted) -> Agent {
    Agent::builder(name, client.clone())
        .provider(CodeExec::new(LocalBackend::new()))
        .finish(Finish)
        .turn_warning_threshold(0)
        .build()
        .unwrap()
}

/// A model that calls the sub-agent once, after `first`, and finishes.
fn boss(first: Value, arguments: Value) -> Scripted {
    Scripted::new(move |turn, _| match turn {
        0 => calls(&[("code_exec", "first", first.clone())]),
        1 => calls(&[("helper", "call", arguments.clone())]),
        _ => finish("all done"),
    })
}

#[tokio::test]
async fn files_go_in_and_come_back_and_everything_is_counted_once() {
    let worker = worker("tr a-z A-Z < in.txt > out.txt", &["out.txt", "missing.txt"]);
    // This finish tool does not check that the files exist, so there is one that can't be returned.
    let schema = json!({"type": "object", "properties": {
        "reason": {"type": "string"},
        "paths": {"type": "array", "items": {"type": "string"}},
    }});
    let spec = ToolSpec::new("finish", "Ends it.", schema);
    let unchecked = DynTool::from_schema(spec, |_, _| async {
        Ok(ToolOutput::text("Finished.").with_metadata(Metadata::uses(1)))
    });
    let helper = Agent::builder("helper", worker)
        .provider(CodeExec::new(LocalBackend::new()))
        .finish(unchecked)
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let boss = boss(
        json!({"cmd": "echo hello > in.txt"}),
        json!({"task": "Make it loud.", "input_files": ["in.txt"]}),
    );
    let agent = agent(&boss)
        .provider(CodeExec::new(LocalBackend::new()))
        .sub_agent(SubAgent::new(&helper, "Works on files."));
    let session = session(agent).await;
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    insta::assert_snapshot!(results(&outcome)[1].0);
    let out = SandboxPath::new("out.txt").unwrap();
    let bytes = session.sandbox().unwrap().read_bytes(&out, 100).await;
    assert_eq!(bytes.unwrap(), "HELLO\n");

    // Three calls here, two below: 15 tokens each.
    assert_eq!(outcome.ledger.reported_usage().total(), 5 * 15);
    assert_eq!(outcome.ledger.sub_agents["helper"].len(), 1);
    let below: Vec<_> = events.iter().filter(|event| event.depth == 1).collect();
    assert!(below.iter().all(|event| event.parent == Some(outcome.run)));
    assert!(matches!(below[0].kind, EventKind::RunStarted { .. }));
    assert!(matches!(
        below.last().unwrap().kind,
        EventKind::RunFinished { .. }
    ));
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_shared_sandbox_is_the_callers_own_and_outlives_the_sub_agent() {
    let helper = with_files("helper", &worker("cat in.txt > seen.txt", &[]));
    let boss = boss(
        json!({"cmd": "echo hello > in.txt"}),
        json!({"task": "Look."}),
    );
    let agent = agent(&boss)
        .provider(CodeExec::new(LocalBackend::new()))
        .sub_agent(SubAgent::new(&helper, "Looks.").share_sandbox());
    let session = session(agent).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(results(&outcome)[1].1, "{:?}", results(&outcome));
    let seen = SandboxPath::new("seen.txt").unwrap();
    let bytes = session.sandbox().unwrap().read_bytes(&seen, 100).await;
    assert_eq!(bytes.unwrap(), "hello\n");
    session.close().await.unwrap();
}

#[tokio::test]
async fn files_of_the_caller_are_not_undelivered_ones_of_the_sub_agent() {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "w", json!({"cmd": "echo made > made.txt"}))]),
        _ => text("It is in made.txt."),
    });
    let helper = Agent::builder("helper", client)
        .provider(CodeExec::new(LocalBackend::new()))
        .finish(Finish)
        .text_answers(TextAnswers::EndTurn)
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let sub_agent = || SubAgent::new(&helper, "Makes files.");
    let own = Some("made.txt");
    for (sub_agent, expected) in [(sub_agent(), own), (sub_agent().share_sandbox(), None)] {
        let boss = boss(
            json!({"cmd": "echo hello > in.txt"}),
            json!({"task": "Make it.", "input_files": ["in.txt"]}),
        );
        let agent = agent(&boss)
            .provider(CodeExec::new(LocalBackend::new()))
            .sub_agent(sub_agent);
        let session = session(agent).await;
        let outcome = outcome(session.run("the task").unwrap()).await;
        session.close().await.unwrap();
        let (result, _) = &results(&outcome)[1];
        assert!(result.contains("it answered in text"), "{result}");
        let named = result.split_once("Files that it did not deliver: ");
        let named = named.and_then(|(_, rest)| Some(rest.split_once('<')?.0));
        assert_eq!(named, expected, "{result}");
    }
}

/// An agent that calls itself, by way of an agent of its kind.
fn nested(depth: u32) -> Agent {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "deeper", json!({"task": "Deeper."}))]),
        _ => finish("back"),
    });
    let builder = agent(&client);
    let builder = if depth == 0 {
        builder
    } else {
        builder.sub_agent(SubAgent::new(&renamed(&nested(depth - 1)), "Goes deeper.").max_depth(2))
    };
    builder.build().unwrap()
}

/// The same agent under the name that it is called by.
fn renamed(inner: &Agent) -> Agent {
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("test", "deeper", json!({"task": "Deeper."}))]),
        _ => finish("back"),
    });
    Agent::builder("helper", client)
        .sub_agent(SubAgent::new(inner, "Goes deeper.").max_depth(2))
        .finish(crate::support::finish_tool())
        .build()
        .unwrap()
}

#[tokio::test]
async fn agents_nest_only_as_deep_as_they_may() {
    let session = nested(2).session(SessionOptions::default()).await.unwrap();
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none());
    assert_eq!(events.iter().map(|event| event.depth).max(), Some(2));
    let refused = events.iter().any(|event| match &event.kind {
        EventKind::ToolFinished { result, .. } => result.contains("agents are 2 deep already"),
        _ => false,
    });
    assert!(refused);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_failed_sub_agent_is_a_result_and_its_tokens_count() {
    let helper = Scripted::new(|_, _| calls(&[("nothing", "n", json!({}))]));
    let helper = Agent::builder("helper", helper)
        .finish(crate::support::finish_tool())
        .max_turns(3)
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Try."}))]),
        _ => finish("went on"),
    });
    let session = session(agent(&client).sub_agent(SubAgent::new(&helper, "Fails."))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none());
    let (text, success) = &results(&outcome)[0];
    assert!(
        !success && text.contains("<error>the task was not finished within 3 turns"),
        "{text}"
    );
    assert_eq!(outcome.ledger.reported_usage().total(), 5 * 15);
    session.close().await.unwrap();
}

#[tokio::test]
async fn the_tokens_of_a_sub_agent_that_panics_count() {
    let helper = Scripted::new(|turn, _| match turn {
        0 => calls(&[("nothing", "n", json!({}))]),
        _ => panic!("a bug in the client"),
    });
    let helper = Agent::builder("helper", helper)
        .finish(crate::support::finish_tool())
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Try."}))]),
        _ => finish("went on"),
    });
    let session = session(agent(&client).sub_agent(SubAgent::new(&helper, "Panics."))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    let (text, success) = &results(&outcome)[0];
    assert!(!success && text.contains("unexpectedly"), "{text}");
    assert_eq!(outcome.ledger.reported_usage().total(), 3 * 15);
    session.close().await.unwrap();
}

#[tokio::test]
async fn spending_of_a_sub_agent_counts_against_its_callers_budget() {
    let helper = Scripted::new(|turn, _| match turn {
        9.. => finish("late"),
        _ => calls(&[("nothing", &format!("n{turn}"), json!({}))]),
    });
    let helper = Agent::builder("helper", helper)
        .finish(crate::support::finish_tool())
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("helper", "call", json!({"task": "Use it up."}))]),
        _ => calls(&[("helper", "again", json!({"task": "More."}))]),
    });
    let agent = agent(&client).sub_agent(SubAgent::new(&helper, "Uses tokens."));
    let options = SessionOptions::default().budget(Budget::default().tokens(60));
    let session = agent.build().unwrap().session(options).await.unwrap();
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Budget);
    // One turn above, three below until 60 are used, the last turn below, and the last one above.
    assert_eq!(outcome.ledger.reported_usage().total(), 6 * 15);
    session.close().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn cancelling_reaches_the_leaves() {
    let reached = CancellationToken::new();
    let told = CancellationToken::new();
    let (in_tool, seen) = (reached.clone(), told.clone());
    let spec = ToolSpec::new("hang", "Waits.", json!({"type": "object"}));
    let hang = DynTool::from_schema(spec, move |_, cx| {
        let (reached, told) = (in_tool.clone(), seen.clone());
        async move {
            reached.cancel();
            cx.cancellation.cancelled().await;
            told.cancel();
            Ok(ToolOutput::text("told"))
        }
    });
    let helper = Scripted::new(|_, _| calls(&[("hang", "h", json!({}))]));
    let helper = Agent::builder("helper", helper)
        .tool(hang)
        .finish(crate::support::finish_tool())
        .build()
        .unwrap();
    let client = Scripted::new(|_, _| calls(&[("helper", "call", json!({"task": "Hang."}))]));
    let session = session(agent(&client).sub_agent(SubAgent::new(&helper, "Hangs."))).await;
    let run = session.run("the task").unwrap();
    tokio::time::timeout(Duration::from_secs(120), reached.cancelled())
        .await
        .unwrap();
    run.cancel();
    let outcome = outcome(run).await;
    assert_eq!(outcome.error.unwrap().kind(), RunErrorKind::Cancelled);
    assert!(told.is_cancelled());
    session.close().await.unwrap();
}

#[tokio::test]
async fn several_calls_of_a_turn_run_at_once() {
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let spec = ToolSpec::new("meet", "Waits for the other.", json!({"type": "object"}));
    let meet = DynTool::from_schema(spec, move |_, _| {
        let both = Arc::clone(&both);
        async move {
            both.wait().await;
            Ok(ToolOutput::text("met"))
        }
    });
    let helper = Scripted::new(|turn, _| match turn {
        0 => calls(&[("meet", "m", json!({}))]),
        _ => finish("met"),
    });
    let helper = Agent::builder("helper", helper)
        .tool(meet)
        .finish(crate::support::finish_tool())
        .build()
        .unwrap();
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[
            ("helper", "one", json!({"task": "Meet."})),
            ("helper", "two", json!({"task": "Meet."})),
        ]),
        _ => finish("done"),
    });
    let session = session(agent(&client).sub_agent(SubAgent::new(&helper, "Meets."))).await;
    let outcome = outcome(session.run("the task").unwrap()).await;
    assert!(outcome.error.is_none());
    assert_eq!(outcome.ledger.sub_agents["helper"].len(), 2);
    session.close().await.unwrap();
}

#[tokio::test]
async fn a_killed_call_resumes_from_the_sub_agents_own_journal() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    // The first process hangs in the second turn of the sub-agent.
    let hangs = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let reached = CancellationToken::new();
    let effects = Arc::new(std::sync::Mutex::new(Vec::new()));
    let make = || {
        let (hangs, reached, effects) = (hangs.clone(), reached.clone(), effects.clone());
        let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
        let effect = DynTool::from_schema(
            ToolSpec::new("effect", "Has an effect.", schema),
            move |arguments, _| {
                let n = arguments["n"].as_u64().unwrap();
                effects.lock().unwrap().push(n);
                async move { Ok(ToolOutput::text(format!("effect {n}"))) }
            },
        );
        let spec = ToolSpec::new("wait", "Waits.", json!({"type": "object"}));
        let wait = DynTool::from_schema(spec, move |_, _| {
            let (hangs, reached) = (hangs.clone(), reached.clone());
            async move {
                if hangs.load(std::sync::atomic::Ordering::SeqCst) {
                    reached.cancel();
                    std::future::pending::<()>().await;
                }
                Ok(ToolOutput::text("waited"))
            }
        })
        .with_repeatable(true);
        let helper = Scripted::new(|turn, _| match turn {
            0 => calls(&[("effect", "a", json!({"n": 1}))]),
            1 => calls(&[("wait", "b", json!({}))]),
            _ => finish("helped"),
        });
        let helper = Agent::builder("helper", helper)
            .tool(effect)
            .tool(wait)
            .finish(crate::support::finish_tool())
            .turn_warning_threshold(0)
            .build()
            .unwrap();
        let client = Scripted::new(|turn, _| match turn {
            0 => calls(&[("helper", "call", json!({"task": "Help."}))]),
            _ => finish("done"),
        });
        agent(&client)
            .sub_agent(SubAgent::new(&helper, "Helps."))
            .build()
            .unwrap()
    };
    let options = SessionOptions::default().kept_in(store.clone(), Value::Null);
    let session = make().session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let id: RunId = run.id();
    tokio::select! {
        () = async { while run.next().await.is_some() {} } => panic!("it ended"),
        () = reached.cancelled() => {}
    }
    // As when the process dies: nothing more is written down.
    drop(run);
    drop(session);
    hangs.store(false, std::sync::atomic::Ordering::SeqCst);

    let again = make();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    // The run's task lets go of its journal when it has been dropped.
    let session = loop {
        match again.resume(&store, id, Default::default()).await {
            Ok(session) => break session,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::task::yield_now().await;
    };
    let outcome = outcome(session.resume().unwrap()).await;
    assert!(outcome.error.is_none(), "{:?}", outcome.error);
    assert_eq!(*effects.lock().unwrap(), [1]);
    let (text, _) = &results(&outcome)[0];
    assert!(text.contains("<response>helped</response>"), "{text}");
    // Two turns above, three below, each counted once.
    assert_eq!(outcome.ledger.reported_usage().total(), 5 * 15);
    session.close().await.unwrap();
}

#[tokio::test]
async fn files_reach_the_output_directory_of_a_caller_without_a_sandbox() {
    let helper = with_files("helper", &worker("echo made > made.txt", &["made.txt"]));
    let script = || {
        Scripted::new(|turn, _| match turn {
            0 => calls(&[("helper", "call", json!({"task": "Make it."}))]),
            _ => finish("all done"),
        })
    };
    let caller = agent(&script())
        .sub_agent(SubAgent::new(&helper, "Makes files."))
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    for (output_dir, told) in [
        (Some(directory.path()), "<files_available>\nmade.txt\n"),
        (None, "<files_failed>\nmade.txt: the caller has neither"),
    ] {
        let mut options = SessionOptions::default();
        options.runs.output_dir = output_dir.map(Into::into);
        let session = caller.session(options).await.unwrap();
        let outcome = outcome(session.run("the task").unwrap()).await;
        session.close().await.unwrap();
        let (result, _) = &results(&outcome)[0];
        assert!(result.contains(told), "{result}");
    }
    let made = std::fs::read_to_string(directory.path().join("made.txt"));
    assert_eq!(made.unwrap(), "made\n");
}
