//! When summaries are made, and what stands in the conversation afterwards.

use cantle_core::estimate::text_tokens;
use cantle_core::message::UserMessage;

use super::*;

/// A window of 100 tokens, of which half may be used.
fn narrow(max_turns: u32) -> Rules {
    Rules {
        summarize_at: Some(0.5),
        context_window: Some(100),
        ..rules(max_turns)
    }
}

fn answer_of(machine: &mut Machine, tokens: u64, calls: &[(&str, &str)]) {
    let Fact::ModelAnswered { message, stop, .. } = answered("on it", calls, StopReason::EndTurn)
    else {
        panic!("no answer")
    };
    machine.apply(Fact::ModelAnswered {
        message,
        stop,
        call: model_call(tokens),
    });
}

fn summarized(text: &str) -> Fact {
    Fact::Summarized {
        text: text.to_owned(),
        files: vec!["a.txt".to_owned()],
        call: model_call(7),
    }
}

const REMINDER: &str = "user That was your own summary of the work so far; the messages that it \
                        replaces are no longer shown. Continue from there. Your working directory now contains:\n- a.txt\n \
                        When the task is done, finish it by calling `finish` or `give_up`.";

#[test]
fn tokens_counted_by_the_provider_trigger_a_summary() {
    for (tokens, next) in [(49, "ask 2"), (50, "summarize First")] {
        let mut machine = start(narrow(9));
        answer_of(&mut machine, tokens - text_tokens(TEXT_REMINDER.len()), &[]);
        assert_eq!(
            actions(&mut machine),
            [&*format!("say {TEXT_REMINDER}"), next],
            "{tokens}"
        );
    }
}

#[test]
fn tool_results_count_before_the_provider_has_counted_them() {
    let mut machine = start(narrow(9));
    answer_of(&mut machine, 5, &[("work", "w")]);
    actions(&mut machine);
    finish_call(&mut machine, 0, &"x".repeat(4 * 45));
    assert_eq!(actions(&mut machine), ["summarize First"]);
}

#[test]
fn headroom_for_the_answer_is_always_reserved() {
    let tight = Rules {
        summarize_at: Some(1.0),
        max_output_tokens: Some(20),
        ..narrow(9)
    };
    for (tokens, next) in [(79, "ask 2"), (80, "summarize First")] {
        let mut machine = start(tight.clone());
        answer_of(&mut machine, tokens - text_tokens(TEXT_REMINDER.len()), &[]);
        assert_eq!(actions(&mut machine)[1], next, "{tokens}");
    }
}

#[test]
fn no_summary_is_made_before_the_last_turn() {
    let mut machine = start(narrow(2));
    answer_of(&mut machine, 90, &[]);
    assert_eq!(actions(&mut machine).last().unwrap(), "ask 2");
}

#[test]
fn a_summary_replaces_the_turns_which_are_kept_aside() {
    let mut machine = start(narrow(9));
    answer_of(&mut machine, 90, &[("work", "w")]);
    finish_call(&mut machine, 0, "worked");
    actions(&mut machine);
    let ids: Vec<_> = assistant_ids(&machine);
    let before = machine.messages().to_vec();
    machine.apply(summarized("so far so good"));
    assert_eq!(actions(&mut machine), ["summarized 2", "ask 2"]);
    assert_eq!(machine.messages()[0], before[0], "the task stays as it was");
    assert_eq!(story(&machine), ["user so far so good", REMINDER]);
    assert_eq!(replaced_ids(&machine), ids);
    assert_eq!(machine.replaced(), [before[1..].to_vec()]);
    let purposes = machine.ledger().model_calls.iter().map(|call| call.purpose);
    assert_eq!(
        purposes.collect::<Vec<_>>(),
        [CallPurpose::Turn, CallPurpose::Summary]
    );
}

#[test]
fn a_second_summary_includes_the_first() {
    let mut machine = start(narrow(9));
    let mut ids = Vec::new();
    for text in ["first", "second"] {
        answer_of(&mut machine, 90, &[]);
        actions(&mut machine);
        ids.extend(assistant_ids(&machine));
        machine.apply(summarized(text));
        actions(&mut machine);
    }
    assert_eq!(story(&machine), ["user second", REMINDER]);
    assert_eq!(replaced_ids(&machine), ids);
    assert_eq!(machine.replaced().len(), 2);
}

#[test]
fn a_task_behind_an_earlier_conversation_is_unchanged() {
    let turn = |text: &str| Message::from(AssistantMessage::new(vec![AssistantBlock::text(text)]));
    let messages = [
        Message::system("instructions"),
        Message::user("an older task"),
        turn("older"),
        Message::user("the task"),
    ];
    let messages = messages.into_iter().map(SharedMessage::new).collect();
    let mut machine = Machine::new(narrow(9), Arc::new(tools()), messages);
    for text in ["first", "second"] {
        answer_of(&mut machine, 90, &[]);
        actions(&mut machine);
        machine.apply(summarized(text));
        actions(&mut machine);
        let expected = [
            "user an older task".to_owned(),
            format!("user {text}"),
            "user the task".to_owned(),
            REMINDER.to_owned(),
        ];
        assert_eq!(story(&machine), expected);
    }
}

#[test]
fn a_blank_summary_is_asked_for_more_insistently_and_never_replaces_anything() {
    let mut machine = start(narrow(9));
    answer_of(&mut machine, 90, &[]);
    let before = machine.messages().to_vec();
    let mut asked = actions(&mut machine);
    for _ in 0..3 {
        machine.apply(summarized(" \n"));
        asked.extend(actions(&mut machine));
    }
    assert_eq!(
        asked,
        [
            &*format!("say {TEXT_REMINDER}"),
            "summarize First",
            "summarize TextOnly",
            "summarize WithoutTools",
            "ask 2"
        ]
    );
    assert_eq!(machine.messages(), before);
    assert_eq!(machine.replaced(), Vec::<Vec<SharedMessage>>::new());
    // It is not asked for one again before the next overflow.
    answer_of(&mut machine, 95, &[]);
    assert_eq!(actions(&mut machine)[1], "ask 3");
}

/// Bedrock refuses a conversation with calls if the request has no tools.
#[test]
fn a_run_survives_a_refused_request_without_tools() {
    let mut machine = start(narrow(9));
    answer_of(&mut machine, 90, &[]);
    machine.apply(summarized(""));
    machine.apply(summarized(""));
    actions(&mut machine);
    machine.apply(Fact::ModelFailed(ModelFailure {
        error: LlmError::new(LlmErrorKind::InvalidRequest, "no tools").into(),
        call: failed_call(),
    }));
    assert_eq!(actions(&mut machine), ["ask 2"]);
}

/// The latest turn was dropped, so that there is room.
#[test]
fn a_run_survives_an_overflow_without_a_summary() {
    let mut machine = start(narrow(9));
    answer_of(&mut machine, 10, &[]);
    answer_of(&mut machine, 20, &[]);
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(actions(&mut machine), ["dropped 2", "summarize First"]);
    for attempt in ["summarize TextOnly", "summarize WithoutTools", "ask 2"] {
        machine.apply(summarized(""));
        assert_eq!(actions(&mut machine), [attempt]);
    }
}

#[test]
fn an_overflow_while_summarizing_drops_a_turn_and_repeats_the_attempt() {
    let mut machine = start(narrow(9));
    answer_of(&mut machine, 10, &[]);
    answer_of(&mut machine, 90, &[]);
    machine.apply(summarized(""));
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(actions(&mut machine), ["dropped 2", "summarize TextOnly"]);
    machine.apply(summarized("short"));
    assert_eq!(actions(&mut machine), ["summarized 2", "ask 2"]);
}

#[test]
fn a_window_of_unknown_size_is_summarized_when_it_overflows() {
    let mut machine = start(Rules {
        summarize_at: Some(0.7),
        ..rules(9)
    });
    answer(&mut machine, "one", &[]);
    answer(&mut machine, "two", &[]);
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(actions(&mut machine), ["dropped 2", "summarize First"]);
}

#[test]
fn overflow_above_three_turns_ends_typed_also_with_summaries() {
    for window in [None, Some(60)] {
        let mut machine = start(Rules {
            summarize_at: Some(0.7),
            context_window: window,
            ..rules(8)
        });
        machine.push_action(Action::AskModel { turn: 1 });
        let mut requests = 0;
        let end = loop {
            let over = assistant_ids(&machine).len() >= 3;
            match machine.next() {
                Some(Action::AskModel { .. }) if over => overflow(&mut machine),
                Some(Action::AskModel { .. }) => answer(&mut machine, "work", &[]),
                Some(Action::Summarize { .. }) if over => overflow(&mut machine),
                Some(Action::Summarize { .. }) => machine.apply(summarized("short")),
                Some(Action::End(end)) => break end,
                Some(_) => continue,
                None => panic!("nothing to do"),
            }
            requests += 1;
            assert!(requests < 40, "asking for ever");
        };
        assert_eq!(end.unwrap_err().kind(), RunErrorKind::MaxTurns);
        assert_eq!(machine.turns(), 8);
    }
}

#[test]
fn user_messages_survive_a_dropped_turn() {
    let mut machine = start(rules(9));
    answer(&mut machine, "one", &[]);
    machine.apply(Fact::UserMessage {
        content: "in blue".into(),
    });
    answer(&mut machine, "two", &[]);
    machine.apply(Fact::UserMessage {
        content: "and green".into(),
    });
    answer(&mut machine, "three", &[]);
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["dropped 3", "say and green", "ask 3"]
    );
    assert_eq!(
        story(&machine),
        [
            "assistant one",
            &*format!("user {TEXT_REMINDER}"),
            "assistant two",
            "user in blue",
            "user and green"
        ]
    );
}

fn assistant_ids(machine: &Machine) -> Vec<String> {
    let messages = machine.messages().iter();
    messages
        .filter_map(|message| match &**message {
            Message::Assistant(message) => Some(message.id.clone()),
            _ => None,
        })
        .collect()
}

fn replaced_ids(machine: &Machine) -> Vec<String> {
    let messages = machine.messages().iter();
    let mut summaries = messages.filter_map(|message| match &**message {
        Message::User(UserMessage {
            kind: UserKind::Summary { replaced_ids },
            ..
        }) => Some(replaced_ids.clone()),
        _ => None,
    });
    let ids = summaries.next().unwrap();
    assert_eq!(summaries.next(), None, "one summary");
    ids
}
