//! The order of calls in a turn, their results, and what is said between turns.

use super::*;

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
fn calls_beyond_the_maximum_of_a_turn_are_refused() {
    let mut machine = start(rules(9));
    let ids: Vec<String> = (0..66).map(|number| format!("c{number}")).collect();
    let calls: Vec<_> = ids.iter().map(|id| ("work", id.as_str())).collect();
    answer(&mut machine, "", &calls);
    assert_eq!(
        actions(&mut machine),
        ["refused c64", "refused c65", "start 0 work"]
    );
    for index in 0..64 {
        finish_call(&mut machine, index, "worked");
        actions(&mut machine);
    }
    let refused = "Not run: a turn has at most 64 calls, and this one has 66. Make the others in later turns.";
    assert_eq!(
        story(&machine)[64..],
        [
            "c63 worked",
            &format!("c64 {refused}"),
            &format!("c65 {refused}")
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
    let account = &machine.ledger().tools["work"];
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
        Arc::new(tools()),
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
fn a_turn_without_calls_is_asked_to_continue_unless_disabled() {
    let mut machine = start(rules(9));
    answer(&mut machine, "thinking", &[]);
    assert_eq!(
        actions(&mut machine),
        [&*format!("say {TEXT_REMINDER}"), "ask 2"]
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
fn repeated_call_ids_are_made_unique() {
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
