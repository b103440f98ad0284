//! The events of a kept run, reconstructed from its journal.

use std::time::Duration;

use cantle_agent::{
    Agent, Approvals, Budget, ConsoleLogger, Permission, ResumeOptions, RunStore, SessionOptions,
    SubAgent,
};
use cantle_backends_local::LocalBackend;
use cantle_core::event::{Event, EventKind, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::llm::{ChatEvent, FailedAttempt, LlmError, LlmErrorKind};
use cantle_core::metadata::Metadata;
use cantle_core::tool::{DynTool, ToolOutput, ToolSpec};
use cantle_tools::{CodeExec, Finish};
use serde_json::json;

use crate::support::{
    Events, Scripted, agent, bare, calls, echo, finish, of_tokens, outcome, text, user_messages,
    watch,
};

/// The durable events as JSON, without what a journal does not have: numbers, times, and requests for approval.
fn comparable(events: &[Event]) -> Vec<serde_json::Value> {
    let durable = events.iter().filter(|event| {
        !event.kind.is_delta()
            && !matches!(
                event.kind,
                EventKind::ApprovalRequested { .. } | EventKind::ApprovalGiven { .. }
            )
    });
    durable
        .map(|event| {
            let mut event = serde_json::to_value(event).unwrap();
            let fields = event.as_object_mut().unwrap();
            fields.remove("number");
            fields.remove("time");
            if fields["event"] == "run_finished" {
                fields.remove("duration_s");
            }
            event
        })
        .collect()
}

/// A tool that reports metadata.
fn counting() -> DynTool {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}});
    DynTool::from_schema(ToolSpec::new("work", "Works.", schema), |_, _| async {
        let mut output = ToolOutput::text("worked");
        output.metadata = Some(Metadata::uses(1));
        Ok(output)
    })
}

/// A run with everything that a journal records: failed attempts, refused and denied calls, a sub-agent with files, a
/// reminder, a summary, and delivered files.
fn eventful() -> Agent {
    let helper = Scripted::new(|turn, _| match turn {
        0 => calls(&[("code_exec", "w", json!({"cmd": "echo found > found.txt"}))]),
        _ => calls(&[(
            "finish",
            "f",
            json!({"reason": "found", "paths": ["found.txt"]}),
        )]),
    });
    let helper = Agent::builder("helper", helper)
        .provider(CodeExec::new(LocalBackend::new()))
        .finish(Finish)
        .turn_warning_threshold(0)
        .build()
        .unwrap();
    let client = Scripted::new(|turn, request| {
        let asked = user_messages(&request.messages);
        let is_asked = |text: &str| asked.iter().any(|message| message.contains(text));
        if is_asked("Write a summary") {
            return text("the summary");
        }
        if is_asked("the summary") {
            let paths = json!(["found.txt", "result.txt"]);
            return calls(&[("finish", "f", json!({"reason": "done", "paths": paths}))]);
        }
        match turn {
            0 => {
                let error = LlmError::new(LlmErrorKind::Interrupted, "the stream broke");
                let failed = FailedAttempt::new(1, &error, Duration::from_millis(1));
                let mut events = vec![
                    Ok(ChatEvent::TextDelta("half an ans".to_owned())),
                    Ok(ChatEvent::AttemptFailed(failed)),
                ];
                events.extend(calls(&[
                    ("work", "same", json!({"n": 1})),
                    ("work", "same", json!({"n": 2})),
                    ("unknown", "u", json!({})),
                    ("denied", "d", json!({"n": 3})),
                    (
                        "code_exec",
                        "c",
                        json!({"cmd": "echo out; echo r > result.txt"}),
                    ),
                ]));
                events
            }
            1 => calls(&[("helper", "call", json!({"task": "Find it."}))]),
            2 => text("I think that I am done."),
            _ => of_tokens(calls(&[("work", "last", json!({"n": 4}))]), 900_000),
        }
    });
    let denying = Approvals::allowing()
        .rule("denied", [], Permission::Deny)
        .unwrap();
    Agent::builder("test", client.with_window(1_000_000))
        .turn_warning_threshold(0)
        .tool(counting())
        .tool(echo("denied"))
        .provider(CodeExec::new(LocalBackend::new()))
        .finish(Finish)
        .approvals(denying)
        .sub_agent(SubAgent::new(&helper, "Finds files."))
        .build()
        .unwrap()
}

#[tokio::test]
async fn events_of_a_journal_are_those_of_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let options = SessionOptions::default()
        .output_dir(directory.path().join("out"))
        .kept_in(store.clone(), json!({}));
    let session = eventful().session(options).await.unwrap();
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);

    let kept = store.events(outcome.run).unwrap();
    let (live, kept) = (comparable(&events), comparable(&kept));
    for (live, kept) in live.iter().zip(&kept) {
        assert_eq!(live, kept);
    }
    assert_eq!(live.len(), kept.len());
    let text = serde_json::to_string(&kept).unwrap();
    for part in [
        "half an ans",
        "num_uses",
        "the summary",
        "is not a valid tool",
        "the user's rules deny this call",
        "found.txt",
        "output_saved",
        "history_summarized",
    ] {
        assert!(text.contains(part), "{part} is missing");
    }
}

/// Failed attempts, followed by these events.
fn after_failures(count: u32, events: Events) -> Events {
    let error = LlmError::new(LlmErrorKind::Server, "overloaded");
    let failed = |attempt| FailedAttempt::new(attempt, &error, Duration::ZERO);
    let failed = (1..=count).map(|attempt| Ok(ChatEvent::AttemptFailed(failed(attempt))));
    failed.chain(events).collect()
}

#[tokio::test]
async fn attempts_are_numbered_by_model_call() {
    let client = Scripted::new(|turn, request| {
        let asked = user_messages(&request.messages);
        let is_asked = |text: &str| asked.iter().any(|message| message.contains(text));
        if is_asked("Write a summary") {
            return after_failures(2, text("the summary"));
        }
        if is_asked("the summary") {
            return after_failures(1, finish("done"));
        }
        let overflow = LlmError::new(LlmErrorKind::ContextOverflow, "too long");
        match turn {
            2 => after_failures(2, vec![Err(overflow)]),
            turn => calls(&[("work", "w", json!({"n": turn}))]),
        }
    });
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let options = SessionOptions::default().kept_in(store.clone(), json!({}));
    let agent = agent(&client).tool(echo("work")).build().unwrap();
    let session = agent.session(options).await.unwrap();
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    assert_eq!(outcome.status(), RunStatus::Finished, "{:?}", outcome.error);
    let attempts = events.iter().filter_map(|event| match event.kind {
        EventKind::ModelRetry { attempt, .. } => Some(attempt),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [2, 3, 2, 3, 2]);
    let kept = store.events(outcome.run).unwrap();
    assert_eq!(comparable(&events), comparable(&kept));
}

#[tokio::test]
async fn a_warning_before_the_first_answer_is_an_event_before_it() {
    let client = Scripted::new(|_, _| finish("done"));
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let options = SessionOptions::default()
        .budget(Budget::default().tool_calls(0))
        .kept_in(store.clone(), json!({}));
    let agent = agent(&client).build().unwrap();
    let session = agent.session(options).await.unwrap();
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    let kept = store.events(outcome.run).unwrap();
    assert_eq!(comparable(&events), comparable(&kept));
    let kinds = comparable(&kept);
    let mut kinds = kinds.iter().map(|event| event["event"].as_str().unwrap());
    assert!(kinds.any(|kind| kind == "user_message"));
    assert!(kinds.any(|kind| kind == "model_answered"));
}

#[tokio::test]
async fn a_refused_file_keeps_its_name_in_the_journal() {
    let params = json!({"reason": "done", "paths": ["a: b.txt"]});
    let client = Scripted::new(move |_, _| calls(&[("finish", "f", params.clone())]));
    let agent = agent(&client)
        .provider(CodeExec::new(LocalBackend::new()))
        .build()
        .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let options = SessionOptions::default()
        .output_dir(directory.path().join("out"))
        .kept_in(store.clone(), json!({}));
    let session = agent.session(options).await.unwrap();
    let (events, outcome) = watch(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    assert_eq!(outcome.outputs.refused[0].source, "a: b.txt");
    let kept = store.events(outcome.run).unwrap();
    assert_eq!(comparable(&events), comparable(&kept));
}

/// Asks about `work`.
fn asking() -> Approvals {
    Approvals::allowing()
        .rule("work", [], Permission::Ask)
        .unwrap()
}

#[tokio::test]
async fn events_of_a_cancelled_run_are_those_of_its_journal() {
    let hang = bare("hang", |cx| async move {
        cx.cancellation.cancelled().await;
        Ok(ToolOutput::failure("stopped"))
    });
    // The first call runs, or waits for a decision; the second one waits for the first.
    for (first, expected) in [
        ("hang", vec![("b", true), ("a", false)]),
        ("work", vec![("b", true)]),
    ] {
        let client = Scripted::new(move |_, _| {
            calls(&[
                (first, "a", json!({"n": 1})),
                ("work", "b", json!({"n": 2})),
            ])
        });
        let agent = agent(&client)
            .tool(hang.clone())
            .tool(echo("work"))
            .approvals(asking());
        let directory = tempfile::tempdir().unwrap();
        let store = RunStore::new(directory.path());
        let options = SessionOptions::default()
            .answers_approvals()
            .kept_in(store.clone(), json!({}));
        let session = agent.build().unwrap().session(options).await.unwrap();
        let mut run = session.run("the task").unwrap();
        let mut events = Vec::new();
        while let Some(event) = run.next().await {
            if matches!(
                event.kind,
                EventKind::ToolStarted { .. } | EventKind::ApprovalRequested { .. }
            ) {
                run.cancel();
            }
            events.push(event);
        }
        session.close().await.unwrap();
        let ended = events.iter().filter_map(|event| match &event.kind {
            EventKind::ToolFinished {
                call_id, arguments, ..
            } => Some((call_id.as_str(), arguments.is_some())),
            _ => None,
        });
        assert_eq!(ended.collect::<Vec<_>>(), expected);
        let kept = store.events(run.id()).unwrap();
        assert_eq!(comparable(&events), comparable(&kept));
    }
}

#[tokio::test]
async fn a_call_cancelled_before_its_decision_is_reported_with_its_arguments() {
    let client = Scripted::new(|_, _| calls(&[("work", "a", json!({"n": 1}))]));
    let agent = agent(&client).tool(echo("work")).approvals(asking());
    let options = SessionOptions::default().answers_approvals();
    let session = agent.build().unwrap().session(options).await.unwrap();
    let mut run = session.run("the task").unwrap();
    let mut ended = Vec::new();
    while let Some(event) = run.next().await {
        match event.kind {
            EventKind::ApprovalRequested { .. } => run.cancel(),
            EventKind::ToolStarted { .. } => panic!("it started"),
            EventKind::ToolFinished { arguments, .. } => ended.push(arguments),
            _ => {}
        }
    }
    session.close().await.unwrap();
    assert_eq!(ended, [Some(json!({"n": 1}))]);
}

#[tokio::test]
async fn a_journal_of_several_processes_is_one_run() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path());
    let client = Scripted::new(|turn, _| match turn {
        0 => calls(&[("work", "w", json!({"n": 1}))]),
        _ => finish("done"),
    });
    let agent = |max_turns| agent(&client).tool(echo("work")).max_turns(max_turns);
    let options = SessionOptions::default().kept_in(store.clone(), json!({}));
    let session = agent(1).build().unwrap().session(options).await.unwrap();
    let first = outcome(session.run("the task").unwrap()).await;
    session.close().await.unwrap();
    let kinds = |run| -> Vec<String> {
        let events = comparable(&store.events(run).unwrap());
        let kinds = events.iter().map(|event| event["event"].as_str());
        kinds.map(|kind| kind.unwrap().to_owned()).collect()
    };
    let begun = [
        "run_started",
        "warning",
        "turn_started",
        "model_answered",
        "tool_started",
        "tool_finished",
    ];
    let ended = [&begun[..], &["run_finished"]].concat();
    assert_eq!(kinds(first.run), ended);

    let options = ResumeOptions::default();
    let agent = agent(5).build().unwrap();
    let session = agent.resume(&store, first.run, options).await.unwrap();
    let (events, _) = watch(session.resume().unwrap()).await;
    session.close().await.unwrap();
    let resumed = [
        "run_resumed",
        "turn_started",
        "model_answered",
        "tool_started",
        "tool_finished",
        "run_finished",
    ];
    assert_eq!(kinds(first.run), [&begun[..], &resumed[..]].concat());
    let (live, kept) = (
        comparable(&events),
        comparable(&store.events(first.run).unwrap()),
    );
    // The ledger and the turns are those of the whole run.
    assert_eq!(live.last(), kept.last());
    assert!(store.events(RunId::new()).is_err());
}

#[tokio::test]
async fn a_console_logger_writes_a_line_per_step() {
    let directory = tempfile::tempdir().unwrap();
    let options = SessionOptions::default().output_dir(directory.path().join("out"));
    let session = eventful().session(options).await.unwrap();
    let mut written = Vec::new();
    let run = session.run("the\n\u{1b}[2Jtask").unwrap();
    let outcome = ConsoleLogger::new(&mut written).outcome(run).await;
    session.close().await.unwrap();
    assert_eq!(outcome.status(), RunStatus::Finished);
    let written = String::from_utf8(written).unwrap();
    for line in [
        "test (scripted): the \\u{1b}[2Jtask\n",
        "\nthe stream broke; next attempt in 0.0 s\n",
        "\n> code_exec {\"cmd\":\"echo out; echo r > result.txt\"}\n",
        "\n    helper (scripted): Find it.\n",
        "\n    finished after 2 turns, 30 tokens\n",
        "\nI think that I am done.\n",
        " messages were summarized\n",
        "/out/result.txt (2 bytes)\n",
        "\nfinished after ",
    ] {
        assert!(written.contains(line), "{line:?} is missing in\n{written}");
    }
}
