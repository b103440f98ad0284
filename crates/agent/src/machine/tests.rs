//! The rules of the loop, one by one and all together.

use std::time::Duration;

use cantle_core::message::ToolMessage;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn rules(max_turns: u32) -> Rules {
    Rules {
        max_turns,
        turn_warning_threshold: 0,
        text_only_tool_responses: true,
        block_successive_assistant_messages: true,
        recover_from_context_overflow: true,
    }
}

fn tools() -> HashMap<String, ToolTraits> {
    let traits = |finishes, concurrency_safe| ToolTraits {
        finishes,
        concurrency_safe,
    };
    HashMap::from([
        ("work".to_owned(), traits(false, false)),
        ("look".to_owned(), traits(false, true)),
        ("finish".to_owned(), traits(true, false)),
        ("give_up".to_owned(), traits(true, false)),
    ])
}

fn start(rules: Rules) -> Machine {
    let mut machine = Machine::new(rules, tools(), vec![Message::user("the task").into()]);
    assert_eq!(actions(&mut machine), ["ask 1"]);
    machine
}

/// What the machine wants, in short.
fn actions(machine: &mut Machine) -> Vec<String> {
    let mut actions = Vec::new();
    while let Some(action) = machine.next() {
        actions.push(match action {
            Action::AskModel { turn } => format!("ask {turn}"),
            Action::StartCall { index, call } => format!("start {index} {}", call.name),
            Action::CallRefused { call, .. } => format!("refused {}", call.id),
            Action::Say { text } => format!("say {text}"),
            Action::TurnDropped { turn } => format!("dropped {turn}"),
            Action::End(Ok(finish)) => format!("finished {} {}", finish.tool, finish.params),
            Action::End(Err(error)) => format!("ended {:?}: {error}", error.kind()),
        });
    }
    actions
}

fn model_call(tokens: u64) -> ModelCall {
    let usage = TokenUsage {
        input: tokens,
        ..TokenUsage::default()
    };
    ModelCall::new("model", CallPurpose::Turn, usage, Duration::from_secs(1))
}

fn failed_call() -> ModelCall {
    let mut call = model_call(1);
    call.purpose = CallPurpose::Failed;
    call
}

fn answer_with(machine: &mut Machine, text: &str, calls: &[(&str, &str)], stop: StopReason) {
    let mut blocks = Vec::new();
    if !text.is_empty() {
        blocks.push(AssistantBlock::text(text));
    }
    blocks.extend(calls.iter().map(|(name, id)| {
        AssistantBlock::ToolCall(ToolCall::new(Some((*id).to_owned()), *name, "{}"))
    }));
    let message = Box::new(AssistantMessage::new(blocks));
    machine.apply(Fact::ModelAnswered {
        message,
        stop,
        call: model_call(1),
    });
}

fn answer(machine: &mut Machine, text: &str, calls: &[(&str, &str)]) {
    answer_with(machine, text, calls, StopReason::EndTurn);
}

fn outcome(text: &str, success: bool) -> CallOutcome {
    CallOutcome {
        content: text.into(),
        success,
        arguments_valid: true,
        arguments: json!({"reason": text}),
        metadata: None,
        duration: Duration::from_secs(2),
        time: 12.0,
        sandbox_gone: None,
    }
}

fn finish_call(machine: &mut Machine, index: usize, text: &str) {
    machine.apply(Fact::CallStarted { index, time: 10.0 });
    machine.apply(Fact::CallFinished {
        index,
        outcome: Box::new(outcome(text, true)),
    });
}

fn overflow(machine: &mut Machine) {
    machine.apply(Fact::ModelFailed(ModelFailure {
        error: LlmError::new(LlmErrorKind::ContextOverflow, "too long").into(),
        call: failed_call(),
    }));
}

/// The conversation after the task, in short.
fn story(machine: &Machine) -> Vec<String> {
    let line = |message: &SharedMessage| match &**message {
        Message::System(message) => format!("system {}", message.content.text()),
        Message::User(message) => format!("user {}", message.content.text()),
        Message::Assistant(message) => format!("assistant {}", message.text()),
        Message::Tool(message) => format!("{} {}", message.tool_call_id, message.content.text()),
    };
    machine.messages().iter().skip(1).map(line).collect()
}

#[test]
fn ordinary_calls_run_before_a_finish_call_and_results_keep_call_order() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("finish", "f"), ("work", "w")]);
    assert_eq!(actions(&mut machine), ["start 1 work"]);
    finish_call(&mut machine, 1, "worked");
    assert_eq!(actions(&mut machine), ["start 0 finish"]);
    finish_call(&mut machine, 0, "done");
    assert_eq!(
        actions(&mut machine),
        [r#"finished finish {"reason":"done"}"#]
    );
    assert_eq!(story(&machine), ["assistant ", "f done", "w worked"]);
}

#[test]
fn a_refused_finish_call_does_not_end_the_run() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("finish", "f")]);
    actions(&mut machine);
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(outcome("no file", false)),
    });
    assert_eq!(actions(&mut machine), ["ask 2"]);
}

#[test]
fn several_finish_calls_are_all_refused_and_nothing_of_them_runs() {
    let mut machine = start(rules(9));
    answer(
        &mut machine,
        "",
        &[("finish", "a"), ("give_up", "b"), ("work", "c")],
    );
    assert_eq!(
        actions(&mut machine),
        ["refused a", "refused b", "start 2 work"]
    );
    finish_call(&mut machine, 2, "worked");
    assert_eq!(actions(&mut machine), ["ask 2"]);
    let refused = "Not run: several finish calls in one turn (finish, give_up). Make exactly one finish call.";
    assert_eq!(
        story(&machine),
        [
            "assistant ".to_owned(),
            format!("a {refused}"),
            format!("b {refused}"),
            "c worked".to_owned()
        ]
    );
}

#[test]
fn an_unknown_tool_is_answered_with_the_names_of_the_tools() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("wrok", "a")]);
    assert_eq!(actions(&mut machine), ["refused a", "ask 2"]);
    assert_eq!(
        story(&machine),
        [
            "assistant ",
            "a wrok is not a valid tool. The tools are: finish, give_up, look, work."
        ]
    );
}

#[test]
fn concurrency_safe_neighbours_run_side_by_side_and_others_alone() {
    let mut machine = start(rules(9));
    let calls = [
        ("look", "a"),
        ("look", "b"),
        ("work", "c"),
        ("look", "d"),
        ("work", "e"),
    ];
    answer(&mut machine, "", &calls);
    assert_eq!(actions(&mut machine), ["start 0 look", "start 1 look"]);
    finish_call(&mut machine, 1, "b");
    assert_eq!(actions(&mut machine), Vec::<String>::new());
    finish_call(&mut machine, 0, "a");
    assert_eq!(actions(&mut machine), ["start 2 work"]);
    finish_call(&mut machine, 2, "c");
    assert_eq!(actions(&mut machine), ["start 3 look"]);
    finish_call(&mut machine, 3, "d");
    assert_eq!(actions(&mut machine), ["start 4 work"]);
    finish_call(&mut machine, 4, "e");
    assert_eq!(
        story(&machine),
        ["assistant ", "a a", "b b", "c c", "d d", "e e"]
    );
}

#[test]
fn a_result_carries_its_times_and_success() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "w")]);
    finish_call(&mut machine, 0, "worked");
    let call = ToolCall::new(Some("w".to_owned()), "work", "{}");
    let mut expected = ToolMessage::new(&call, "worked");
    expected.success = true;
    expected.tool_start_time = Some(10.0);
    expected.tool_end_time = Some(12.0);
    assert_eq!(*machine.messages()[2], Message::Tool(expected));
    let account = &machine.ledger.tools["work"];
    assert_eq!(
        (account.calls, account.failures, account.duration.as_secs()),
        (1, 0, 2)
    );
}

#[test]
fn warnings_begin_at_the_threshold_and_the_last_one_says_to_finish() {
    let mut machine = Machine::new(
        Rules {
            turn_warning_threshold: 2,
            ..rules(3)
        },
        tools(),
        vec![Message::user("the task").into()],
    );
    assert_eq!(actions(&mut machine), ["ask 1"]);
    answer(&mut machine, "one", &[]);
    assert_eq!(
        actions(&mut machine),
        [
            "say You have 2 turns left to complete the task. Keep one of them for calling a finish tool.",
            "ask 2"
        ]
    );
    answer(&mut machine, "two", &[]);
    assert_eq!(
        actions(&mut machine),
        [
            "say This is the last turn. Finish the task now by calling a finish tool.",
            "ask 3"
        ]
    );
    answer(&mut machine, "three", &[]);
    assert_eq!(
        actions(&mut machine),
        ["ended MaxTurns: the task was not finished within 3 turns"]
    );
}

#[test]
fn a_turn_without_calls_is_told_to_go_on_unless_switched_off() {
    let mut machine = start(rules(9));
    answer(&mut machine, "thinking", &[]);
    assert_eq!(
        actions(&mut machine),
        ["say Please continue the task", "ask 2"]
    );

    let off = Rules {
        block_successive_assistant_messages: false,
        ..rules(9)
    };
    let mut machine = start(off);
    answer(&mut machine, "thinking", &[]);
    assert_eq!(actions(&mut machine), ["ask 2"]);
}

#[test]
fn empty_answers_end_the_run_instead_of_using_up_the_turns() {
    let mut machine = start(rules(30));
    answer(&mut machine, "", &[]);
    answer(&mut machine, " \n", &[]);
    actions(&mut machine);
    answer(&mut machine, "", &[]);
    assert_eq!(
        actions(&mut machine),
        ["ended Model: the model gave 3 empty answers in a row"]
    );
}

#[test]
fn an_answer_cut_off_at_the_output_limit_ends_the_run_with_every_call_answered() {
    let mut machine = start(rules(9));
    answer_with(&mut machine, "so", &[("work", "w")], StopReason::Length);
    assert_eq!(
        actions(&mut machine),
        [
            "refused w",
            "ended OutputLimit: the answer was cut off at the model's output limit"
        ]
    );
    assert_eq!(
        story(&machine),
        [
            "assistant so",
            "w Not run: the answer was cut off at the model's output limit."
        ]
    );
}

#[test]
fn repeated_call_ids_are_told_apart() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("look", "same"), ("look", "same")]);
    let Message::Assistant(message) = &*machine.messages()[1] else {
        panic!("no turn")
    };
    let calls: Vec<_> = message.tool_calls().collect();
    assert_eq!(
        (calls[0].id.as_str(), calls[0].has_provider_id),
        ("same", true)
    );
    assert!(calls[1].id != "same" && !calls[1].has_provider_id);
}

#[test]
fn images_of_a_tool_result_move_to_a_user_message() {
    let png = b"\x89PNG\r\n\x1a\n0000".to_vec();
    let image = Media::image(png).unwrap();
    let result = || Content::Parts(vec![Part::Text("see".into()), Part::Media(image.clone())]);
    let run = |text_only| {
        let mut machine = start(Rules {
            text_only_tool_responses: text_only,
            ..rules(9)
        });
        answer(&mut machine, "", &[("work", "w")]);
        let outcome = CallOutcome {
            content: result(),
            ..outcome("", true)
        };
        machine.apply(Fact::CallFinished {
            index: 0,
            outcome: Box::new(outcome),
        });
        machine
            .messages()
            .iter()
            .skip(2)
            .map(|m| (**m).clone())
            .collect::<Vec<_>>()
    };
    let moved = run(true);
    let Message::Tool(tool) = &moved[0] else {
        panic!("no result")
    };
    assert_eq!(
        tool.content.text(),
        "seeThe user will show you the image for tool call w."
    );
    let shown = Content::Parts(vec![
        Part::Text("Here is the image for tool call w".into()),
        Part::Media(image.clone()),
    ]);
    assert_eq!(moved[1..], [Message::user(shown)]);

    let stayed = run(false);
    let Message::Tool(tool) = &stayed[0] else {
        panic!("no result")
    };
    assert_eq!((stayed.len(), &tool.content), (1, &result()));
}

#[test]
fn an_overflow_takes_back_the_latest_turn_with_its_warning_and_does_not_count_it() {
    let mut machine = Machine::new(
        Rules {
            turn_warning_threshold: 8,
            ..rules(9)
        },
        tools(),
        vec![Message::user("the task").into()],
    );
    answer(&mut machine, "one", &[("work", "w")]);
    finish_call(&mut machine, 0, "worked");
    answer(&mut machine, "two", &[]);
    let before = story(&machine)[..2].to_vec();
    actions(&mut machine);
    overflow(&mut machine);
    let actions = actions(&mut machine);
    assert_eq!(
        (actions[0].as_str(), actions[2].as_str()),
        ("dropped 2", "ask 2")
    );
    assert!(
        actions[1].starts_with("say You have 8 turns left"),
        "{actions:?}"
    );
    assert_eq!(story(&machine)[..2], before);
    assert_eq!(story(&machine).len(), 3, "only the new warning follows");
    let purposes: Vec<_> = machine
        .ledger
        .model_calls
        .iter()
        .map(|call| call.purpose)
        .collect();
    assert_eq!(
        purposes,
        [
            CallPurpose::Turn,
            CallPurpose::DroppedTurn,
            CallPurpose::Failed
        ]
    );
}

#[test]
fn the_only_turn_is_never_taken_back() {
    let mut machine = start(rules(9));
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; no turn is left that could be taken back"]
    );

    let mut machine = start(rules(9));
    answer(&mut machine, "one", &[]);
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; no turn is left that could be taken back"]
    );
}

#[test]
fn taking_back_never_crosses_a_summary() {
    let summary = UserKind::Summary {
        replaced_ids: Vec::new(),
    };
    let turn = |text: &str| Message::from(AssistantMessage::new(vec![AssistantBlock::text(text)]));
    let messages = [
        Message::user("the task"),
        turn("before"),
        turn("before"),
        Message::User(UserMessage::new(summary, "so far")),
        turn("after"),
    ];
    let messages: Vec<_> = messages.into_iter().map(SharedMessage::new).collect();
    assert_eq!(overflow::latest_turn(&messages, 0), None);
}

#[test]
fn an_earlier_run_of_the_conversation_is_never_taken_back() {
    let turn = |text: &str| Message::from(AssistantMessage::new(vec![AssistantBlock::text(text)]));
    let messages = [
        Message::user("an older task"),
        turn("older"),
        turn("older"),
        Message::user("the task"),
    ];
    let messages: Vec<_> = messages.into_iter().map(SharedMessage::new).collect();
    let mut machine = Machine::new(rules(9), tools(), messages.clone());
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; no turn is left that could be taken back"]
    );
    assert_eq!(machine.messages(), messages);
}

#[test]
fn a_window_that_is_too_small_ends_the_run_after_a_few_tries() {
    let mut machine = Machine::new(rules(8), tools(), vec![Message::user("the task").into()]);
    let mut requests = 0;
    // Overflow on every request above three turns.
    let end = loop {
        match machine.next() {
            Some(Action::AskModel { .. }) => {
                requests += 1;
                assert!(requests < 50, "asking for ever");
                if machine.turns() >= 3 {
                    overflow(&mut machine);
                } else {
                    answer(&mut machine, "work", &[]);
                }
            }
            Some(Action::End(end)) => break end,
            Some(_) => {}
            None => panic!("nothing to do"),
        }
    };
    assert_eq!(end.unwrap_err().kind(), RunErrorKind::ContextOverflow);
    assert_eq!(requests, 10);
}

#[test]
fn recovery_that_is_switched_off_ends_the_run_at_once() {
    let mut machine = start(Rules {
        recover_from_context_overflow: false,
        ..rules(9)
    });
    answer(&mut machine, "one", &[]);
    answer(&mut machine, "two", &[]);
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; recovery from context overflow is switched off"]
    );
}

#[test]
fn cancelling_answers_every_call_and_keeps_what_was_done() {
    let mut machine = start(rules(9));
    answer(
        &mut machine,
        "",
        &[("work", "a"), ("work", "b"), ("work", "c")],
    );
    actions(&mut machine);
    finish_call(&mut machine, 0, "done a");
    assert_eq!(actions(&mut machine), ["start 1 work"]);
    machine.apply(Fact::Cancelled { call: None });
    assert_eq!(actions(&mut machine), ["refused c"], "b is still running");
    finish_call(&mut machine, 1, "stopped b");
    assert_eq!(
        actions(&mut machine),
        ["ended Cancelled: the run was cancelled"]
    );
    assert_eq!(
        story(&machine),
        [
            "assistant ",
            "a done a",
            "b stopped b",
            "c The run was cancelled before this call started."
        ]
    );
}

#[test]
fn a_sandbox_that_is_gone_ends_the_run() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "w")]);
    actions(&mut machine);
    let gone = CallOutcome {
        sandbox_gone: Some("it is gone".into()),
        ..outcome("", false)
    };
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(gone),
    });
    assert_eq!(actions(&mut machine), ["ended SandboxGone: it is gone"]);
}

/// What a made-up model and made-up tools do.
#[derive(Clone, Debug)]
enum Move {
    Answer {
        text: bool,
        calls: Vec<u8>,
        success: bool,
    },
    Overflow,
    Fail,
    CancelAfter(u8),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let answer = (
        any::<bool>(),
        prop::collection::vec(0_u8..6, 0..6),
        prop::bool::weighted(0.2),
    );
    let one = prop_oneof![
        8 => answer.prop_map(|(text, calls, success)| Move::Answer { text, calls, success }),
        2 => Just(Move::Overflow),
        1 => Just(Move::Fail),
        1 => (0_u8..4).prop_map(Move::CancelAfter),
    ];
    prop::collection::vec(one, 1..40)
}

fn tool_name(number: u8) -> &'static str {
    ["work", "look", "look", "finish", "give_up", "unknown"][usize::from(number) % 6]
}

/// Plays the moves; returns the machine at its end and the order in which calls started.
fn play(moves: &[Move], picks: &[u8]) -> (Machine, End, Vec<(usize, String)>) {
    let mut machine = Machine::new(
        Rules {
            turn_warning_threshold: 3,
            ..rules(8)
        },
        tools(),
        vec![Message::user("the task").into()],
    );
    let mut moves = moves.iter().cycle();
    let mut picks = picks.iter().cycle();
    let mut running: Vec<(usize, bool)> = Vec::new();
    let mut started = Vec::new();
    let mut success = true;
    for _ in 0..2000 {
        match machine.next() {
            Some(Action::AskModel { .. }) => {
                assert!(running.is_empty(), "the model is asked while calls run");
                match moves.next().unwrap() {
                    Move::Answer {
                        text,
                        calls,
                        success: yes,
                    } => {
                        success = *yes;
                        let names: Vec<_> = calls
                            .iter()
                            .enumerate()
                            .map(|(at, number)| (tool_name(*number), format!("c{at}")))
                            .collect();
                        let names: Vec<_> = names.iter().map(|(n, id)| (*n, id.as_str())).collect();
                        answer(&mut machine, if *text { "text" } else { "" }, &names);
                    }
                    Move::Overflow => overflow(&mut machine),
                    Move::Fail => machine.apply(Fact::ModelFailed(ModelFailure {
                        error: LlmError::new(LlmErrorKind::Server, "boom").into(),
                        call: failed_call(),
                    })),
                    Move::CancelAfter(_) => machine.apply(Fact::Cancelled { call: None }),
                }
            }
            Some(Action::StartCall { index, call }) => {
                started.push((machine.ledger.model_calls.len(), call.name.clone()));
                machine.apply(Fact::CallStarted { index, time: 1.0 });
                running.push((index, success));
            }
            Some(Action::End(end)) => {
                assert!(running.is_empty(), "the run ends while calls run");
                return (machine, end, started);
            }
            Some(_) => {}
            None => {
                assert!(!running.is_empty(), "nothing to do and nothing to wait for");
                if let Some(Move::CancelAfter(0)) = moves.clone().next() {
                    machine.apply(Fact::Cancelled { call: None });
                }
                let pick = usize::from(*picks.next().unwrap()) % running.len();
                let (index, success) = running.remove(pick);
                let outcome = outcome(&format!("result {index}"), success);
                machine.apply(Fact::CallFinished {
                    index,
                    outcome: Box::new(outcome),
                });
            }
        }
    }
    panic!("the run never ends");
}

proptest! {
    #[test]
    fn every_run_ends_and_every_call_has_exactly_one_result_in_call_order(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let (machine, _, _) = play(&moves, &picks);
        let mut messages = machine.messages().iter().peekable();
        while let Some(message) = messages.next() {
            let Message::Assistant(turn) = &**message else {
                prop_assert!(!matches!(&**message, Message::Tool(_)), "a result without a call");
                continue;
            };
            for call in turn.tool_calls() {
                let Some(Message::Tool(result)) = messages.next().map(|m| &**m) else {
                    return Err(TestCaseError::fail("a call without a result"));
                };
                prop_assert_eq!(&result.tool_call_id, &call.id);
            }
        }
    }

    #[test]
    fn a_finish_call_starts_after_all_ordinary_calls_of_its_turn(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let (_, _, started) = play(&moves, &picks);
        let finishes = |name: &str| name == "finish" || name == "give_up";
        for pair in started.windows(2) {
            prop_assert!(pair[0].0 != pair[1].0 || !finishes(&pair[0].1) || finishes(&pair[1].1));
        }
    }

    #[test]
    fn every_model_call_is_in_the_ledger(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let (machine, _, _) = play(&moves, &picks);
        let assistant = |m: &&SharedMessage| matches!(&***m, Message::Assistant(_));
        let kept = machine.messages().iter().filter(assistant).count();
        let calls = &machine.ledger.model_calls;
        let turns = calls.iter().filter(|call| call.purpose == CallPurpose::Turn).count();
        prop_assert_eq!(turns, kept);
        prop_assert_eq!(machine.ledger.reported_usage().input as usize, calls.len());
    }
}

#[test]
fn parameters_of_the_finish_call_are_those_it_was_called_with() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("give_up", "g")]);
    actions(&mut machine);
    let arguments: Value = json!({"why": ["a", 1]});
    let outcome = CallOutcome {
        arguments: arguments.clone(),
        ..outcome("ok", true)
    };
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(outcome),
    });
    let Some(Action::End(Ok(finish))) = machine.next() else {
        panic!("not finished")
    };
    assert_eq!(
        (finish.tool.as_str(), finish.params),
        ("give_up", arguments)
    );
}
