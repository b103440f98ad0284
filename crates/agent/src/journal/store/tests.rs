use std::time::Duration;

use cantle_core::ledger::{CallPurpose, ModelCall};
use cantle_core::message::{AssistantBlock, AssistantMessage};
use cantle_core::usage::TokenUsage;

use super::*;
use crate::machine::CallOutcome;

fn call(seconds: u64) -> ModelCall {
    let duration = Duration::from_secs(seconds);
    ModelCall::new("model", CallPurpose::Turn, TokenUsage::default(), duration)
}

fn finished(time: f64) -> Fact {
    Fact::CallFinished {
        index: 0,
        outcome: Box::new(CallOutcome::failure("no", Duration::ZERO, time)),
    }
}

#[test]
fn time_counts_while_a_process_works_and_not_between() {
    let mut answer = AssistantMessage::new(vec![AssistantBlock::text("so")]);
    answer.request_end_time = Some(110.0);
    let answered = Fact::ModelAnswered {
        message: Box::new(answer),
        stop: cantle_core::llm::StopReason::EndTurn,
        call: call(10),
    };
    let resumed: Fact = serde_json::from_value(serde_json::json!({
        "kind": "resumed", "time": 1000.0, "lost": null, "rules": {
            "max_turns": 1, "turn_warning_threshold": 0, "text_only_tool_responses": true,
            "block_successive_assistant_messages": true, "recover_from_context_overflow": true,
            "summarize_at": null, "context_window": null, "max_output_tokens": null,
            "images": {"count": 1, "bytes": 1},
        },
    }))
    .unwrap();
    let mut clock = Clock::new(100.0);
    let mut used = Vec::new();
    for fact in [
        answered,
        Fact::CallStarted {
            index: 0,
            time: 112.0,
        },
        finished(120.0),
        Fact::Cancelled {
            call: Some(call(5)),
        },
        resumed,
        // A clock that was set back takes nothing away.
        finished(990.0),
        finished(993.0),
    ] {
        clock.note(&fact);
        used.push(clock.used.as_secs());
    }
    assert_eq!(used, [10, 12, 20, 25, 25, 25, 28]);
}

#[test]
fn a_run_that_is_there_is_not_begun_again() {
    let directory = tempfile::tempdir().unwrap();
    let store = RunStore::new(directory.path().join("runs"));
    let run = RunId::new();
    let header: Header = serde_json::from_value(serde_json::json!({
        "version": VERSION, "run": run, "time": 0.0, "identity": {}, "note": null, "rules": {
            "max_turns": 1, "turn_warning_threshold": 0, "text_only_tool_responses": true,
            "block_successive_assistant_messages": true, "recover_from_context_overflow": true,
            "summarize_at": null, "context_window": null, "max_output_tokens": null,
            "images": {"count": 1, "bytes": 1},
        },
        "task": "the task", "input_files": [], "sandbox": null, "messages": [],
    }))
    .unwrap();
    drop(store.begin(header.clone()).unwrap());
    let again = store.begin(header).unwrap_err();
    assert_eq!(again.kind(), StoreErrorKind::Io);
    assert_eq!(
        store.get(run).unwrap().task,
        "the task",
        "what was there stays"
    );
}
