//! Messages and calls when budgets come to an end.

use super::*;

fn spent(resource: Resource) -> BudgetState {
    BudgetState {
        resource,
        spent: 9.0,
        limit: 8.0,
    }
}

fn near(resource: Resource) -> Fact {
    Fact::BudgetNear(BudgetState {
        resource,
        spent: 7.0,
        limit: 8.0,
    })
}

const LAST: &str = "say The budget of this run is spent (9 of 8 tokens). This is the last turn: finish \
                    the task now by calling a finish tool. Nothing else will run.";

#[test]
fn a_nearly_exhausted_budget_is_announced_once_and_several_in_one_message() {
    let mut machine = start(rules(9));
    machine.apply(near(Resource::Tokens));
    machine.apply(near(Resource::ToolCalls));
    answer(&mut machine, "one", &[]);
    assert_eq!(
        actions(&mut machine),
        [
            "say Most of this run's budget is spent (7 of 8 tokens, 7 of 8 tool calls). Bring the \
             task to an end, and keep enough for calling a finish tool.",
            "ask 2"
        ]
    );
    answer(&mut machine, "two", &[]);
    assert_eq!(
        actions(&mut machine),
        [&*format!("say {TEXT_REMINDER}"), "ask 3"]
    );
}

#[test]
fn an_exhausted_budget_leaves_one_turn_in_which_only_a_finish_call_runs() {
    let mut machine = start(rules(9));
    machine.apply(Fact::BudgetExhausted(spent(Resource::Tokens)));
    answer(&mut machine, "", &[("work", "a")]);
    assert_eq!(actions(&mut machine), ["start 0 work"]);
    finish_call(&mut machine, 0, "worked");
    assert_eq!(actions(&mut machine), [LAST, "ask 2"]);
    answer(&mut machine, "", &[("work", "b"), ("give_up", "c")]);
    assert_eq!(actions(&mut machine), ["refused b", "start 1 give_up"]);
    assert_eq!(
        story(&machine).last().unwrap(),
        "assistant ",
        "results come when all are there"
    );
    finish_call(&mut machine, 1, "bye");
    assert_eq!(
        actions(&mut machine),
        [r#"finished give_up {"reason":"bye"}"#]
    );
    let refused = "b Not run: the run's budget is spent (9 of 8 tokens), so that only a finish call \
                   is still possible.";
    assert!(story(&machine).contains(&refused.to_owned()));
}

#[test]
fn a_last_turn_without_a_finish_ends_the_run() {
    for calls in [&[][..], &[("work", "b")], &[("finish", "f")]] {
        let mut machine = start(rules(9));
        machine.apply(Fact::BudgetExhausted(spent(Resource::Tokens)));
        answer(&mut machine, "", &[("work", "a")]);
        finish_call(&mut machine, 0, "worked");
        actions(&mut machine);
        answer(&mut machine, "not yet", calls);
        if calls == [("finish", "f")] {
            machine.apply(Fact::CallFinished {
                index: 0,
                outcome: Box::new(outcome("no file", false)),
            });
        }
        let all = actions(&mut machine);
        assert_eq!(
            all.last().unwrap(),
            "ended Budget: the run's budget is spent: 9 of 8 tokens"
        );
    }
}

#[test]
fn no_summary_is_made_for_the_last_turn() {
    let mut machine = start(Rules {
        summarize_at: Some(0.5),
        context_window: Some(2),
        ..rules(9)
    });
    machine.apply(Fact::BudgetExhausted(spent(Resource::Tokens)));
    answer(&mut machine, "one", &[]);
    assert_eq!(actions(&mut machine).last().unwrap(), "ask 2");
}

#[test]
fn when_the_time_is_over_calls_that_wait_never_start_and_a_finish_in_hand_still_counts() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "a"), ("work", "b")]);
    actions(&mut machine);
    machine.apply(Fact::BudgetExhausted(spent(Resource::TimeS)));
    assert!(machine.is_last_turn());
    assert_eq!(actions(&mut machine), ["refused b"]);
    finish_call(&mut machine, 0, "stopped");
    assert_eq!(actions(&mut machine).last().unwrap(), "ask 2");
    assert_eq!(
        story(&machine)[1..3],
        [
            "a stopped",
            "b The run's time was over before this call started."
        ]
    );

    // The time ended while the model wrote this answer.
    let mut machine = start(rules(9));
    machine.apply(Fact::BudgetExhausted(spent(Resource::TimeS)));
    answer(&mut machine, "", &[("work", "a"), ("finish", "f")]);
    assert_eq!(actions(&mut machine), ["refused a", "start 1 finish"]);
    finish_call(&mut machine, 1, "done");
    assert_eq!(
        actions(&mut machine),
        [r#"finished finish {"reason":"done"}"#]
    );
}

#[test]
fn time_takes_precedence_over_a_budget_exhausted_before() {
    let mut machine = start(rules(9));
    machine.apply(Fact::BudgetExhausted(spent(Resource::Tokens)));
    assert!(!machine.is_last_turn());
    machine.apply(Fact::BudgetExhausted(spent(Resource::TimeS)));
    assert!(machine.is_last_turn());
}

#[test]
fn a_budget_exhausted_before_the_first_request_makes_it_the_last_turn() {
    let mut machine = start(rules(9));
    machine.apply(Fact::BudgetExhaustedBeforeTurn(spent(Resource::Tokens)));
    assert_eq!(actions(&mut machine), [LAST]);
    answer(&mut machine, "", &[("work", "a")]);
    let ended = "ended Budget: the run's budget is spent: 9 of 8 tokens";
    assert_eq!(actions(&mut machine), ["refused a", ended]);
}

#[test]
fn several_budgets_exhausted_before_a_request_are_announced_once() {
    let mut machine = start(rules(9));
    for resource in [Resource::Tokens, Resource::ToolCalls] {
        machine.apply(Fact::BudgetExhaustedBeforeTurn(spent(resource)));
    }
    assert_eq!(actions(&mut machine), [LAST]);
}

#[test]
fn a_run_out_of_time_ends_and_keeps_its_costs() {
    let mut machine = start(rules(9));
    machine.apply(Fact::OutOfTime {
        state: spent(Resource::TimeS),
        call: Some(model_call(5)),
    });
    assert_eq!(
        actions(&mut machine),
        ["ended Budget: the run's budget is spent: 9 of 8 s"]
    );
    assert_eq!(machine.ledger().model_calls, [model_call(5)]);
}

#[test]
fn a_call_that_ends_after_the_run_did_has_its_result_and_begins_nothing() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("work", "a")]);
    actions(&mut machine);
    machine.apply(Fact::OutOfTime {
        state: spent(Resource::TimeS),
        call: None,
    });
    finish_call(&mut machine, 0, "late");
    assert_eq!(
        actions(&mut machine),
        ["ended Budget: the run's budget is spent: 9 of 8 s"]
    );
    assert_eq!(story(&machine), ["assistant ", "a late"]);
}

#[test]
fn a_finish_that_succeeds_while_the_last_turn_is_stopped_finishes_the_run() {
    let mut machine = start(rules(9));
    answer(&mut machine, "", &[("finish", "f")]);
    actions(&mut machine);
    machine.apply(Fact::OutOfTime {
        state: spent(Resource::TimeS),
        call: None,
    });
    finish_call(&mut machine, 0, "done");
    assert_eq!(
        actions(&mut machine),
        [r#"finished finish {"reason":"done"}"#]
    );
}
