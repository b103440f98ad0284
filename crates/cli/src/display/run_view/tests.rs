use cantle::core::event::RunStatus;
use cantle::core::ledger::{CallPurpose, Ledger, ModelCall};
use cantle::core::policy::{Network, PolicyField};
use cantle::core::sandbox::{EnforcedBy, Enforcement, Isolation, SandboxInfo, SandboxPath};
use serde_json::json;

use super::*;
use crate::display::style::Paint;

const PLAIN: Style = Style {
    paint: Paint { on: false },
    columns: None,
    verbose: false,
};
const TERMINAL: Style = Style {
    columns: Some(60),
    ..PLAIN
};
const VERBOSE: Style = Style {
    verbose: true,
    ..PLAIN
};

fn started() -> EventKind {
    let directory = SandboxPath::new("/workspace").unwrap();
    let mut sandbox = SandboxInfo::new("local", "x", directory);
    sandbox.isolation = Isolation::Kernel;
    sandbox.mechanisms = ["namespaces (user, mount)", "Landlock 7", "user 65534"]
        .map(str::to_owned)
        .to_vec();
    sandbox.enforcement = vec![
        Enforcement::new(PolicyField::Network, EnforcedBy::Kernel),
        Enforcement::new(PolicyField::Memory, EnforcedBy::NotEnforced),
    ];
    sandbox.network = Some(Network::Off);
    EventKind::RunStarted {
        agent: "cantle".to_owned(),
        model: "gpt-5".to_owned(),
        task: "Count the lines".to_owned(),
        max_turns: 30,
        tools: vec!["code_exec".to_owned()],
        sandbox: Some(sandbox),
        input_files: vec!["a.txt".to_owned(), "b.txt".to_owned()],
        parent_call: None,
    }
}

fn text(piece: &str) -> EventKind {
    EventKind::TextDelta {
        text: piece.to_owned(),
    }
}

fn answered(turn: u32, text: &str) -> EventKind {
    EventKind::ModelAnswered {
        turn,
        text: text.to_owned(),
        tool_calls: 1,
        usage: TokenUsage {
            input: 1_000,
            cache_read: 200,
            answer: 50,
            ..TokenUsage::default()
        },
        usage_estimated: false,
        cost_usd: None,
        list_price_date: None,
        served_by: None,
        stop: None,
        duration: Duration::from_secs(2),
    }
}

fn command(call_id: &str, command: &str) -> EventKind {
    EventKind::ToolStarted {
        call_id: call_id.to_owned(),
        tool: "code_exec".to_owned(),
        arguments: json!({ "cmd": command }),
    }
}

fn ended(call_id: &str, code: i32, stdout: &str, stderr: &str) -> EventKind {
    EventKind::ToolFinished {
        call_id: call_id.to_owned(),
        tool: "code_exec".to_owned(),
        result: format!(
            "<shell_results>\n<exit_code>{code}</exit_code>\n<stdout>{stdout}</stdout>\n\
             <stderr>{stderr}</stderr>\n</shell_results>"
        ),
        success: true,
        arguments_valid: true,
        arguments: None,
        metadata: None,
        duration: Duration::from_millis(120),
    }
}

fn finished() -> EventKind {
    EventKind::RunFinished {
        status: RunStatus::Finished,
        finish: None,
        error: None,
        turns: 2,
        duration: Duration::from_secs(3),
        ledger: Ledger::default(),
    }
}

/// Returns everything that stays on the screen.
fn displayed(style: Style, events: &[EventKind]) -> String {
    let mut view = RunView::default();
    let mut out = String::new();
    for event in events {
        view.event(event, Duration::ZERO, style, &mut out);
    }
    out
}

fn whole_run() -> Vec<EventKind> {
    let numbers: String = (1..=12).map(|n| format!("{n}\n")).collect();
    vec![
        started(),
        EventKind::Warning {
            message: "The policy field memory is not enforced.".to_owned(),
        },
        EventKind::TurnStarted { turn: 1 },
        EventKind::ReasoningDelta {
            text: "Counting is what wc is for.".to_owned(),
        },
        text("I count them. The tool for that is wc, which has "),
        text("been there since 1971.\n\nHere I go"),
        text(":\n"),
        answered(
            1,
            "I count them. The tool for that is wc, which has been there since 1971.\n\nHere I go:\n",
        ),
        command(
            "1",
            "set -e\nfor f in *.txt; do\n  wc -l \"$f\"\ndone\nseq 12\ntrue\nfalse",
        ),
        ended("1", 1, &numbers, "\u{1b}[31moops\u{1b}[0m\n"),
        EventKind::UserMessage {
            text: "You have 19 turns left.".to_owned(),
        },
        EventKind::TurnStarted { turn: 2 },
        EventKind::ModelRetry {
            attempt: 2,
            after: Duration::from_millis(1500),
            reason: "the provider limits the rate of requests (HTTP 429)".to_owned(),
            discarded: String::new(),
            usage: TokenUsage::default(),
            cost_usd: None,
        },
        answered(2, ""),
        EventKind::ToolStarted {
            call_id: "2".to_owned(),
            tool: "finish".to_owned(),
            arguments: json!({"reason": "done"}),
        },
        finished(),
    ]
}

#[test]
fn run_without_a_terminal() {
    insta::assert_snapshot!(displayed(PLAIN, &whole_run()));
}

#[test]
fn run_on_a_terminal() {
    insta::assert_snapshot!(displayed(TERMINAL, &whole_run()));
}

#[test]
fn verbose_run() {
    insta::assert_snapshot!(displayed(VERBOSE, &whole_run()));
}

#[test]
fn text_is_displayed_the_same_with_and_without_streaming() {
    let events = [started(), answered(1, "All at once."), finished()];
    let mut streamed = events.to_vec();
    streamed.insert(1, text("All at "));
    streamed.insert(2, text("once."));
    for style in [PLAIN, TERMINAL] {
        assert!(displayed(style, &events).ends_with("\n\nAll at once.\n"));
        assert_eq!(displayed(style, &events), displayed(style, &streamed));
    }
}

#[test]
fn parallel_calls_have_titles() {
    let events = [
        command("a", "sleep 1; echo a"),
        command("b", "echo b"),
        ended("b", 0, "b\n", ""),
        ended("a", 0, "a\n", ""),
    ];
    insta::assert_snapshot!(displayed(PLAIN, &events));
}

#[test]
fn refused_finish_is_displayed() {
    let refused = EventKind::ToolFinished {
        call_id: "f".to_owned(),
        tool: "finish".to_owned(),
        result: "Not finished, because these are no files: `x`.".to_owned(),
        success: false,
        arguments_valid: true,
        arguments: None,
        metadata: None,
        duration: Duration::ZERO,
    };
    let expected =
        "  $ finish\n  │ Not finished, because these are no files: `x`.\n  └ failed · 0.00 s\n";
    assert_eq!(displayed(PLAIN, &[refused]), expected);
}

#[test]
fn other_tools_are_displayed_with_arguments() {
    let call = EventKind::ToolStarted {
        call_id: "1".to_owned(),
        tool: "search".to_owned(),
        arguments: json!({"query": "a\u{1b}[2Jb"}),
    };
    assert_eq!(
        displayed(PLAIN, &[call]),
        "  $ search {\"query\":\"a\\u001b[2Jb\"}\n"
    );
}

#[test]
fn malformed_arguments_are_escaped() {
    let mut view = RunView::default();
    let mut out = String::new();
    let call = EventKind::ToolStarted {
        call_id: "1".to_owned(),
        tool: "code_exec".to_owned(),
        arguments: json!(
            "{\"cmd\": \"ls\u{1b}[2J\u{7} -l\r\n\u{202e}data and all that is below it"
        ),
    };
    let refused = EventKind::ToolFinished {
        call_id: "1".to_owned(),
        tool: "code_exec".to_owned(),
        result: "Tool arguments are not valid\n- EOF while parsing a string\u{1b}[2J".to_owned(),
        success: false,
        arguments_valid: false,
        arguments: None,
        metadata: None,
        duration: Duration::ZERO,
    };
    view.event(&started(), Duration::ZERO, TERMINAL, &mut String::new());
    view.event(&call, Duration::ZERO, TERMINAL, &mut out);
    assert_eq!(
        view.live_lines(Duration::ZERO, TERMINAL),
        ["⠋ turn 1/30 · 0 in · 0 out · 0:00 · running code_exec {\"cmd\": \"ls\\u… 0:00"]
    );
    view.event(&refused, Duration::ZERO, TERMINAL, &mut out);
    assert_eq!(
        out,
        "\n  $ code_exec {\"cmd\": \"ls\\u{1b}[2J\\u{7} -l\\u{d}\n\
         \u{20}   \\u{202e}data and all that is below it\n\
         \u{20} │ Tool arguments are not valid\n\
         \u{20} │ - EOF while parsing a string\n\
         \u{20} └ failed · 0.00 s\n"
    );
}

#[test]
fn status_displays_costs_and_how_they_are_known() {
    let costing = |cost: f64, list: bool, estimate: bool| {
        let mut answer = answered(1, "");
        if let EventKind::ModelAnswered {
            cost_usd,
            list_price_date,
            usage_estimated,
            ..
        } = &mut answer
        {
            *cost_usd = Some(cost);
            *list_price_date = list.then(|| "2026-11-01".to_owned());
            *usage_estimated = estimate;
        }
        answer
    };
    let mut view = RunView {
        max_turns: 30,
        ..RunView::default()
    };
    let mut status = |event: &EventKind| {
        view.count(event);
        view.event(event, Duration::ZERO, TERMINAL, &mut String::new());
        view.status(Duration::ZERO)
    };
    let expected = [
        "turn 1/30 · 1.2k in (200 cached) · 50 out · $0.2500 · 0:00",
        "turn 1/30 · 2.4k in (400 cached) · 100 out · $0.3750 (list price) · 0:00",
        "turn 1/30 · ~3.6k in (600 cached) · ~150 out · ~$0.8750 (list price) · 0:00",
        "turn 1/30 · ~3.6k in (600 cached) · ~170 out · ~$1.0000 (list price) · 0:00",
    ];
    let summary = EventKind::HistorySummarized {
        replaced: 3,
        text: "So far.".to_owned(),
        usage: TokenUsage {
            answer: 20,
            ..TokenUsage::default()
        },
        usage_estimated: false,
        cost_usd: Some(0.125),
        duration: Duration::from_secs(1),
    };
    let displayed = [
        costing(0.25, false, false),
        costing(0.125, true, false),
        costing(0.5, false, true),
        summary,
    ]
    .map(|event| status(&event));
    assert_eq!(displayed, expected);
}

#[test]
fn status_includes_what_earlier_processes_used() {
    let mut call = ModelCall::new(
        "gpt-5",
        CallPurpose::Turn,
        TokenUsage {
            input: 1_000,
            answer: 20,
            ..TokenUsage::default()
        },
        Duration::ZERO,
    );
    call.cost_usd = Some(0.25);
    let mut ledger = Ledger::default();
    ledger.model_calls.push(call);
    let mut view = RunView {
        max_turns: 30,
        ..RunView::default()
    };
    view.count(&EventKind::RunResumed { turns: 1, ledger });
    view.count(&answered(2, ""));
    assert_eq!(
        view.status(Duration::ZERO),
        "turn 1/30 · 2.2k in (200 cached) · 70 out · $0.2500 · 0:00"
    );
}

#[test]
fn live_lines_display_current_activity() {
    let mut view = RunView::default();
    let mut out = String::new();
    let mut at = |seconds, event: EventKind| {
        let now = Duration::from_secs(seconds);
        view.count(&event);
        view.event(&event, now, TERMINAL, &mut out);
        view.live_lines(now + Duration::from_secs(1), TERMINAL)
    };
    at(0, started());
    assert_eq!(
        at(1, EventKind::TurnStarted { turn: 1 }),
        ["⠦ turn 1/30 · 0 in · 0 out · 0:02 · waiting for the model 0:01"]
    );
    let reasoning = EventKind::ReasoningDelta {
        text: "Well,\nlet me see".to_owned(),
    };
    assert_eq!(at(2, reasoning)[0], "thinking: Well, let me see");
    assert_eq!(at(2, text("First "))[0], "First ");
    at(3, answered(1, "First "));
    at(4, command("1", "make -j2\nmake install"));
    let output = |text: &str| EventKind::ToolOutputDelta {
        call_id: "1".to_owned(),
        text: text.to_owned(),
    };
    at(5, output("cc a.c\ncc b"));
    assert_eq!(
        at(63, output(".c\n")),
        [
            "  │ cc b.c",
            "⠸ turn 1/30 · 1.2k in (200 cached) · 50 out · 1:04 · running make -j2 make install 1:00"
        ]
    );
    at(64, command("2", "ls"));
    assert!(at(64, output("done"))[1].ends_with("running 2 commands 1:01"));
}
