//! Turns that are dropped after a context overflow.

use cantle_core::message::UserMessage;

use super::*;
use crate::rules::overflow::latest_turn;

#[test]
fn an_overflow_drops_the_latest_turn_with_its_warning_and_does_not_count_it() {
    let mut machine = Machine::new(
        Rules {
            turn_warning_threshold: 8,
            ..rules(9)
        },
        Arc::new(tools()),
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
        .ledger()
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
fn the_only_turn_is_never_dropped() {
    let mut machine = start(rules(9));
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; no turn is left that could be dropped"]
    );

    let mut machine = start(rules(9));
    answer(&mut machine, "one", &[]);
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; no turn is left that could be dropped"]
    );
}

#[test]
fn dropping_never_crosses_a_summary() {
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
    assert_eq!(latest_turn(&messages, 0), None);
}

#[test]
fn turns_of_an_earlier_run_are_never_dropped() {
    let turn = |text: &str| Message::from(AssistantMessage::new(vec![AssistantBlock::text(text)]));
    let messages = [
        Message::user("an older task"),
        turn("older"),
        turn("older"),
        Message::user("the task"),
    ];
    let messages: Vec<_> = messages.into_iter().map(SharedMessage::new).collect();
    let mut machine = Machine::new(rules(9), Arc::new(tools()), messages.clone());
    actions(&mut machine);
    overflow(&mut machine);
    assert_eq!(
        actions(&mut machine),
        ["ended ContextOverflow: too long; no turn is left that could be dropped"]
    );
    assert_eq!(machine.messages(), messages);
}

#[test]
fn a_window_that_is_too_small_ends_the_run_after_a_few_tries() {
    let mut machine = Machine::new(
        rules(8),
        Arc::new(tools()),
        vec![Message::user("the task").into()],
    );
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
fn disabled_recovery_ends_the_run_at_once() {
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
        ["ended ContextOverflow: too long; recovery from context overflow is disabled"]
    );
}
