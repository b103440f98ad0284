//! Runs that another process takes up.

use super::*;
use crate::approval::Decision;

fn resumed(lost: Option<&str>) -> Fact {
    Fact::Resumed {
        rules: rules(9),
        lost: lost.map(str::to_owned),
        fresh: None,
        time: 20.0,
    }
}

/// What the machine wants of calls, with what was decided on them.
fn starts(machine: &mut Machine) -> Vec<(usize, Option<Decision>)> {
    let mut starts = Vec::new();
    while let Some(action) = machine.next() {
        if let Action::StartCall(start) = action {
            starts.push((start.index, start.decision));
        }
    }
    starts
}

#[test]
fn what_was_decided_on_a_call_is_not_asked_again() {
    let edit = Decision::Edit {
        arguments: r#"{"n":1}"#.to_owned(),
    };
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
fn what_the_user_said_is_said_after_the_end_of_the_process_in_full() {
    let image = Media::image(b"\x89PNG\r\n\x1a\n0000".to_vec()).unwrap();
    let content = Content::Parts(vec![Part::Text("like this".into()), Part::Media(image)]);
    let mut machine = start(rules(9));
    machine.apply(Fact::UserSaid {
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
fn a_larger_budget_lets_a_run_go_on_and_the_same_one_ends_it_again() {
    let state = BudgetState {
        resource: Resource::Tokens,
        spent: 9.0,
        limit: 8.0,
    };
    let ended = || {
        let mut machine = start(rules(9));
        machine.apply(Fact::BudgetSpent(state));
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
    machine.apply(Fact::BudgetWasSpent(state));
    actions(&mut machine);
    answer(&mut machine, "", &[("work", "a")]);
    let all = actions(&mut machine);
    assert!(
        all.last().unwrap().starts_with("ended Budget") && all[0] == "refused a",
        "{all:?}"
    );
}

#[test]
fn left_running_is_forgotten_once_it_was_told() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "a")]);
    let outcome = CallOutcome {
        left_running: true,
        ..outcome("started", true)
    };
    machine.apply(Fact::CallFinished {
        index: 0,
        outcome: Box::new(outcome),
    });
    assert!(machine.has_left_running());
    machine.apply(resumed(Some("it is gone")));
    assert!(!machine.has_left_running());
}
