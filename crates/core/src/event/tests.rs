use std::str::FromStr as _;
use std::time::UNIX_EPOCH;

use serde_json::json;

use super::*;
use crate::ledger::{CallPurpose, ModelCall};
use crate::llm::StopReason;
use crate::metadata::Metadata;
use crate::policy::PolicyField;
use crate::sandbox::{EnforcedBy, Enforcement};

fn run() -> RunId {
    RunId::from_str("0190c0de0000700080000000000000a1").expect("an id")
}

fn usage() -> TokenUsage {
    TokenUsage {
        input: 100,
        cache_read: 900,
        cache_write: 0,
        answer: 20,
        reasoning: 5,
    }
}

fn ledger() -> Ledger {
    let mut ledger = Ledger::default();
    let mut call = ModelCall::new(
        "model",
        CallPurpose::Turn,
        usage(),
        Duration::from_millis(1500),
    );
    call.cost_usd = Some(0.25);
    ledger.model_calls.push(call);
    ledger.record_tool(
        "code_exec",
        true,
        Duration::from_secs(2),
        Some(Metadata::uses(1)),
    );
    ledger
}

/// One event of each kind, in an order in which they could happen.
fn every_kind() -> Vec<EventKind> {
    let mut sandbox = SandboxInfo::new("local", "box-1", "/tmp/box-1".parse().expect("a path"));
    sandbox.enforcement = vec![Enforcement::new(PolicyField::WallTime, EnforcedBy::Backend)];
    let call_id = || "call_1".to_owned();
    let tool = || "code_exec".to_owned();
    vec![
        EventKind::RunStarted {
            agent: "agent".to_owned(),
            model: "model".to_owned(),
            task: "Count the lines.".to_owned(),
            max_turns: 30,
            tools: vec![tool(), "finish".to_owned()],
            sandbox: Some(sandbox),
            input_files: vec!["data.csv".to_owned()],
            parent_call: None,
        },
        EventKind::Warning {
            message: "Commands are not isolated.".to_owned(),
        },
        EventKind::TurnStarted { turn: 1 },
        EventKind::ModelRetry {
            usage: TokenUsage::default(),
            cost_usd: None,
            attempt: 2,
            after: Duration::from_millis(500),
            reason: "overloaded (HTTP 529)".to_owned(),
            discarded: "I w".to_owned(),
        },
        EventKind::ReasoningDelta {
            text: "Hm.".to_owned(),
        },
        EventKind::TextDelta {
            text: "I will ".to_owned(),
        },
        EventKind::ModelAnswered {
            turn: 1,
            text: "I will count.".to_owned(),
            tool_calls: 1,
            usage: usage(),
            usage_estimated: false,
            cost_usd: Some(0.25),
            list_price_date: None,
            served_by: Some("m-2026".to_owned()),
            stop: Some(StopReason::ToolCalls),
            duration: Duration::from_millis(1500),
        },
        EventKind::ToolStarted {
            call_id: call_id(),
            tool: tool(),
            arguments: json!({"cmd": "wc -l data.csv"}),
        },
        EventKind::ToolOutputDelta {
            call_id: call_id(),
            text: "3 data".to_owned(),
        },
        EventKind::ToolFinished {
            call_id: call_id(),
            tool: tool(),
            result: "3 data.csv".to_owned(),
            success: true,
            arguments_valid: true,
            arguments: None,
            metadata: Some(Metadata::uses(1)),
            duration: Duration::from_secs(2),
        },
        EventKind::UserMessage {
            text: "Please continue the task.".to_owned(),
        },
        EventKind::TurnDropped { turn: 2 },
        EventKind::OutputSaved {
            source: "report.md".to_owned(),
            path: "out/report.md".to_owned(),
            size_bytes: 120,
        },
        EventKind::OutputRefused {
            source: "../x".to_owned(),
            reason: "the path contains `..`".to_owned(),
        },
        EventKind::RunFinished {
            status: RunStatus::Finished,
            finish: Some(Finish::new(
                "finish",
                json!({"reason": "done", "paths": ["report.md"]}),
            )),
            error: None,
            turns: 2,
            duration: Duration::from_secs(4),
            ledger: ledger(),
        },
    ]
}

/// The same kinds as events: the durable ones counted, the deltas not.
fn events() -> Vec<Event> {
    let mut number = 0..;
    every_kind()
        .into_iter()
        .map(|kind| {
            let number = if kind.is_delta() { None } else { number.next() };
            Event::new(
                number,
                run(),
                UNIX_EPOCH + Duration::from_millis(1_767_225_600_250),
                kind,
            )
        })
        .collect()
}

/// The format of `--json`, on which its readers rely.
#[test]
fn every_kind_has_a_json_form() {
    let lines: Vec<String> = events()
        .iter()
        .map(|event| serde_json::to_string_pretty(event).expect("serializes"))
        .collect();
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn events_round_trip_through_json() {
    for mut event in events() {
        event.parent = Some(run());
        event.depth = 1;
        let json = serde_json::to_string(&event).expect("serializes");
        assert!(!json.contains('\n'), "{json}");
        assert_eq!(serde_json::from_str::<Event>(&json).expect("reads"), event);
    }
}

#[test]
fn only_streamed_text_is_a_delta() {
    let deltas: Vec<Value> = every_kind()
        .iter()
        .filter(|kind| kind.is_delta())
        .map(|kind| serde_json::to_value(kind).expect("serializes")["event"].clone())
        .collect();
    assert_eq!(
        deltas,
        ["reasoning_delta", "text_delta", "tool_output_delta"]
    );
}

#[test]
fn statuses_have_json_names() {
    let names = [
        (RunStatus::Finished, "finished"),
        (RunStatus::LimitReached, "limit_reached"),
        (RunStatus::Cancelled, "cancelled"),
        (RunStatus::ModelFailed, "model_failed"),
        (RunStatus::SandboxFailed, "sandbox_failed"),
        (RunStatus::InternalError, "internal_error"),
    ];
    for (status, name) in names {
        assert_eq!(serde_json::to_value(status).expect("serializes"), name);
    }
}

#[test]
fn invalid_times_are_rejected() {
    let mut json = serde_json::to_value(&events()[1]).expect("serializes");
    for time in [json!(-1.0), json!(1e19), json!(1e300), json!("now")] {
        json["time"] = time;
        assert!(
            serde_json::from_value::<Event>(json.clone()).is_err(),
            "{json}"
        );
    }
}
