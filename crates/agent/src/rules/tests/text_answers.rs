//! Models that answer in text and don't finish.

use super::*;

const REMINDED: &str = "say You replied without a tool call. If you are done, call `finish` with your answer; otherwise \
                        call a tool.";

/// A run whose only finish tool accepts an answer in text.
fn begin(text_answers: TextAnswers, tools: &[&str], stop_reminding: bool) -> Machine {
    let traits = |name: &str| ToolTraits {
        finishes: name != "work",
        accepts_text: name == "finish",
        ..ToolTraits::default()
    };
    let tools = tools.iter().map(|name| ((*name).to_owned(), traits(name)));
    let rules = Rules {
        text_answers,
        block_successive_assistant_messages: !stop_reminding,
        ..rules(9)
    };
    let messages = vec![Message::user("the task").into()];
    let mut machine = Machine::new(rules, Arc::new(tools.collect()), messages);
    assert_eq!(actions(&mut machine), ["ask 1"]);
    machine
}

fn usual() -> Machine {
    begin(TextAnswers::Remind, &["work", "finish"], false)
}

#[test]
fn three_answers_in_text_after_the_reminder_end_the_run() {
    let mut machine = usual();
    for turn in 1..4 {
        answer(&mut machine, &format!("answer {turn}"), &[]);
        assert_eq!(
            actions(&mut machine),
            [REMINDED, &format!("ask {}", turn + 1)]
        );
    }
    answer(&mut machine, "answer 4", &[]);
    assert_eq!(actions(&mut machine), [r#"accept {"reason":"answer 4"}"#]);
    machine.apply(Fact::TextAccepted);
    assert_eq!(actions(&mut machine), ["answered in text"]);
}

#[test]
fn two_equal_answers_in_a_row_end_the_run() {
    let mut machine = usual();
    answer(&mut machine, "42", &[]);
    actions(&mut machine);
    answer(&mut machine, "42", &[]);
    assert_eq!(actions(&mut machine), [r#"accept {"reason":"42"}"#]);
}

#[test]
fn a_call_between_answers_starts_the_count_again() {
    let mut machine = usual();
    answer(&mut machine, "42", &[]);
    answer(&mut machine, "So:", &[("work", "w")]);
    finish_call(&mut machine, 0, "worked");
    answer(&mut machine, "42", &[]);
    answer(&mut machine, "43", &[]);
    actions(&mut machine);
    answer(&mut machine, "44", &[]);
    assert_eq!(actions(&mut machine), [REMINDED, "ask 6"]);
}

#[test]
fn hooks_may_refuse_the_answer() {
    let mut machine = usual();
    answer(&mut machine, "42", &[]);
    answer(&mut machine, "42", &[]);
    actions(&mut machine);
    machine.apply(Fact::TextRefused {
        feedback: "Show your work.".to_owned(),
    });
    assert_eq!(actions(&mut machine), ["say Show your work.", "ask 3"]);
    answer(&mut machine, "42", &[]);
    assert_eq!(actions(&mut machine), [REMINDED, "ask 4"]);
}

/// In every other case the run goes on up to its limits.
#[test]
fn other_runs_insist_on_a_finish_call() {
    let usual = ["work", "finish"];
    for mut machine in [
        begin(TextAnswers::Insist, &usual, false),
        begin(TextAnswers::Remind, &["work", "finish", "give_up"], false),
        begin(TextAnswers::Remind, &["work", "give_up"], false),
        begin(TextAnswers::Remind, &usual, true),
    ] {
        for _ in 0..8 {
            answer(&mut machine, "42", &[]);
        }
        actions(&mut machine);
        answer(&mut machine, "42", &[]);
        let expected = "ended MaxTurns: the task was not finished within 9 turns";
        assert_eq!(actions(&mut machine), [expected]);
    }
}

#[test]
fn an_incomplete_answer_does_not_end_the_run() {
    let mut machine = usual();
    let refused = || StopReason::Other("refusal".to_owned());
    for turn in 2..8 {
        answer_with(&mut machine, "no", &[], refused());
        assert_eq!(actions(&mut machine), [REMINDED, &format!("ask {turn}")]);
    }
}

#[test]
fn a_turn_of_a_conversation_ends_with_the_first_answer() {
    let mut machine = begin(TextAnswers::EndTurn, &["work"], false);
    answer(&mut machine, "Hello!", &[]);
    assert_eq!(actions(&mut machine), [r#"accept {"reason":"Hello!"}"#]);
}

#[test]
fn a_resumed_run_reminds_and_counts_again() {
    let mut machine = usual();
    answer(&mut machine, "42", &[]);
    answer(&mut machine, "42", &[]);
    for ended in [false, true] {
        actions(&mut machine);
        if ended {
            machine.apply(Fact::TextAccepted);
            actions(&mut machine);
        }
        machine.apply(Fact::Resumed {
            rules: rules(9),
            lost_state: None,
            new_sandbox: None,
            time: 1.0,
        });
        let asked = actions(&mut machine);
        assert_eq!(asked[0], REMINDED);
        answer(&mut machine, "42", &[]);
        answer(&mut machine, "42", &[]);
    }
}
