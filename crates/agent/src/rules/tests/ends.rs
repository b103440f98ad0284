//! How runs end.

use super::*;
use crate::rules::machine::CUT_OFF;

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
fn a_cut_off_answer_is_continued_until_the_turns_run_out() {
    let mut machine = start(Rules {
        continue_cut_answers: true,
        turn_warning_threshold: 0,
        ..rules(2)
    });
    answer_with(&mut machine, "so", &[("work", "w")], StopReason::Length);
    let say = format!("say {CUT_OFF}");
    assert_eq!(actions(&mut machine), ["refused w", &say, "ask 2"]);
    answer_with(&mut machine, " it is", &[], StopReason::Length);
    let ended = "ended MaxTurns: the task was not finished within 2 turns";
    assert_eq!(actions(&mut machine), [&*say, ended]);
    assert_eq!(
        story(&machine),
        [
            "assistant so",
            "w Not run: the answer was cut off at the model's output limit.",
            &format!("user {CUT_OFF}"),
            "assistant  it is",
            &format!("user {CUT_OFF}"),
        ]
    );
}

#[test]
fn cancelling_answers_every_call_and_keeps_results() {
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
    let Some(Action::End(Ok(Some(finish)))) = machine.next() else {
        panic!("not finished")
    };
    assert_eq!(
        (finish.tool.as_str(), finish.params),
        ("give_up", arguments)
    );
}

#[test]
fn an_internal_error_within_a_turn_leaves_no_call_without_a_result() {
    let mut machine = start(rules(9));
    let calls = [("look", "a"), ("look", "b"), ("work", "c")];
    answer(&mut machine, "", &calls);
    actions(&mut machine);
    machine.apply(Fact::CallStarted {
        index: 1,
        time: 10.0,
    });
    finish_call(&mut machine, 0, "looked");
    let (messages, _, _) = machine.into_parts();
    let results = messages.iter().filter_map(|message| match &**message {
        Message::Tool(message) => Some(message.content.text()),
        _ => None,
    });
    let results: Vec<_> = results.collect();
    assert_eq!((results.len(), results[0].as_str()), (3, "looked"));
    assert!(results[1].starts_with("Interrupted: "), "{results:?}");
    assert_eq!(
        results[2],
        "Not run: the run ended before this call started."
    );
}
