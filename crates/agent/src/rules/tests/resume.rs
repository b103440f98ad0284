//! Runs that another process takes up.

use cantle_core::tool::Decision;

use super::*;

fn resumed(lost: Option<&str>) -> Fact {
    Fact::Resumed {
        rules: rules(9),
        lost_state: lost.map(str::to_owned),
        new_sandbox: None,
        time: 20.0,
    }
}

/// Returns the calls that the machine starts, with their decisions.
fn starts(machine: &mut Machine) -> Vec<(usize, Option<Decision>)> {
    let mut starts = Vec::new();
    while let Some(action) = machine.next() {
        if let Action::StartCall {
            index, decision, ..
        } = action
        {
            starts.push((index, decision));
        }
    }
    starts
}

#[test]
fn a_decision_on_a_call_is_not_requested_again() {
    let edit = Decision::edit(r#"{"n":1}"#);
    for decision in [Decision::Approve, edit] {
        let mut machine = start(rules(9));
        answer(&mut machine, "", &[("look", "a"), ("look", "b")]);
        machine.apply(Fact::CallDecided {
            index: 1,
            decision: decision.clone(),
        });
        actions(&mut machine);
        machine.apply(resumed(None));
        assert_eq!(starts(&mut machine), [(0, None), (1, Some(decision))]);
    }
}

#[test]
fn user_messages_survive_the_process_in_full() {
    let image = Media::image(b"\x89PNG\r\n\x1a\n0000".to_vec()).unwrap();
    let content = Content::Parts(vec![Part::Text("like this".into()), Part::Media(image)]);
    let mut machine = start(rules(9));
    machine.apply(Fact::UserMessage {
        content: content.clone(),
    });
    machine.apply(resumed(Some("all is lost")));
    assert_eq!(
        actions(&mut machine),
        ["say like this", "say all is lost", "ask 1"]
    );
    let said = machine.messages().iter().skip(1).map(|it| (**it).clone());
    let said: Vec<_> = said.collect();
    assert_eq!(said, [Message::user(content), Message::user("all is lost")]);
}

#[test]
fn a_larger_budget_lets_a_run_continue_and_the_same_one_ends_it_again() {
    let state = BudgetState {
        resource: Resource::Tokens,
        spent: 9.0,
        limit: 8.0,
    };
    let ended = || {
        let mut machine = start(rules(9));
        machine.apply(Fact::BudgetExhausted(state));
        answer(&mut machine, "one", &[]);
        answer(&mut machine, "two", &[]);
        let all = actions(&mut machine);
        assert!(all.last().unwrap().starts_with("ended Budget"), "{all:?}");
        machine.apply(resumed(None));
        machine
    };
    let mut machine = ended();
    actions(&mut machine);
    answer(&mut machine, "", &[("work", "a")]);
    assert_eq!(actions(&mut machine), ["start 0 work"]);

    let mut machine = ended();
    machine.apply(Fact::BudgetExhaustedBeforeTurn(state));
    actions(&mut machine);
    answer(&mut machine, "", &[("work", "a")]);
    let all = actions(&mut machine);
    assert!(
        all.last().unwrap().starts_with("ended Budget") && all[0] == "refused a",
        "{all:?}"
    );
}

#[test]
fn background_processes_are_reported_once() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "a")]);
    let outcome = CallOutcome {
        has_background_processes: true,
        ..outcome("started", true)
    };
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(outcome),
    });
    assert!(machine.has_background_processes());
    machine.apply(resumed(Some("it is gone")));
    assert!(!machine.has_background_processes());
}

#[test]
fn an_interrupted_call_is_reported_and_does_not_run_again() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("look", "a"), ("look", "b")]);
    actions(&mut machine);
    machine.apply(Fact::CallStarted {
        index: 0,
        time: 1.0,
    });
    machine.apply(resumed(None));
    assert_eq!(actions(&mut machine), ["ended a", "start 1 look"]);
    finish_call(&mut machine, 1, "looked");
    let expected = [
        "assistant ".to_owned(),
        format!("a {}", turn::INTERRUPTED),
        "b looked".to_owned(),
    ];
    assert_eq!(story(&machine), expected);
}

/// The traits of tools whose calls go on where they were.
fn resumable(rules: Rules) -> Machine {
    let mut tools = tools();
    for traits in tools.values_mut() {
        traits.repeatable = true;
    }
    let mut machine = Machine::new(
        rules,
        Arc::new(tools),
        vec![Message::user("the task").into()],
    );
    assert_eq!(actions(&mut machine), ["ask 1"]);
    machine
}

#[test]
fn a_suspended_call_continues_and_the_others_keep_their_results() {
    let mut machine = resumable(rules(9));
    answer(
        &mut machine,
        "",
        &[("look", "a"), ("look", "b"), ("work", "c")],
    );
    actions(&mut machine);
    machine.apply(Fact::CallStarted {
        index: 0,
        time: 1.0,
    });
    machine.apply(Fact::CallStarted {
        index: 1,
        time: 1.0,
    });
    machine.apply(Fact::Cancelled { call: None });
    assert_eq!(actions(&mut machine), ["refused c"]);
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(outcome("seen", true)),
    });
    let mut used = Ledger::default();
    used.model_calls.push(model_call(7));
    machine.apply(Fact::SubAgentSuspended {
        tool: "look".to_owned(),
        ledger: Box::new(used),
    });
    machine.apply(Fact::CallSuspended { index: 1 });
    assert_eq!(
        actions(&mut machine),
        ["ended Cancelled: the run was cancelled"]
    );

    machine.apply(resumed(None));
    let mut started = Vec::new();
    while let Some(action) = machine.next() {
        if let Action::StartCall {
            index, restarted, ..
        } = action
        {
            started.push((index, restarted));
        }
    }
    assert_eq!(started, [(1, true)]);
    finish_call(&mut machine, 1, "looked");
    assert_eq!(actions(&mut machine), ["ask 2"]);
    let expected = [
        "assistant ",
        "a seen",
        "b looked",
        "c The run was cancelled before this call started.",
    ];
    assert_eq!(story(&machine), expected);
    let (_, _, ledger) = machine.into_parts();
    assert!(
        ledger.sub_agents.is_empty(),
        "its own journal says it again"
    );
}

#[test]
fn suspended_calls_are_answered_and_in_the_ledger_if_the_run_is_not_resumed() {
    let mut machine = resumable(rules(9));
    answer(&mut machine, "", &[("look", "a")]);
    actions(&mut machine);
    machine.apply(Fact::CallStarted {
        index: 0,
        time: 1.0,
    });
    machine.apply(Fact::Cancelled { call: None });
    let mut used = Ledger::default();
    used.model_calls.push(model_call(7));
    machine.apply(Fact::SubAgentSuspended {
        tool: "look".to_owned(),
        ledger: Box::new(used.clone()),
    });
    machine.apply(Fact::CallSuspended { index: 0 });
    let (messages, _, ledger) = machine.into_parts();
    assert_eq!(ledger.sub_agents["look"], [used]);
    let Message::Tool(last) = &**messages.last().unwrap() else {
        panic!("{messages:?}");
    };
    assert_eq!(last.content.text(), turn::SUSPENDED);
}

#[test]
fn the_end_of_a_sub_agent_is_announced_unless_a_call_waits_for_it() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "a")]);
    actions(&mut machine);
    for (id, awaited) in [("helper-1", false), ("helper-2", true)] {
        let mut ledger = Ledger::default();
        ledger.model_calls.push(model_call(7));
        machine.apply(Fact::SubAgentEnded(SubAgentEnded {
            id: id.to_owned(),
            tool: "helper".to_owned(),
            result: "done".to_owned(),
            awaited,
            awaited_by: Vec::new(),
            ledger: Box::new(ledger),
        }));
    }
    finish_call(&mut machine, 0, "worked");
    assert_eq!(
        actions(&mut machine),
        ["say The sub-agent helper-1 has ended.\ndone", "ask 2"]
    );
    assert_eq!(machine.ledger().sub_agents["helper"].len(), 2);
}
