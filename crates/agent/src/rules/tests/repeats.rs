//! A model that does the same over and over.

use std::num::NonZeroU32;

use super::*;

/// Makes the call and gives it this result; what the machine then wants.
fn again(machine: &mut Machine, tool: &str, result: &str) -> Vec<String> {
    let id = format!("c{}", machine.turns());
    answer(machine, "", &[(tool, &id)]);
    actions(machine);
    finish_call(machine, 0, result);
    actions(machine)
}

#[test]
fn repetition_is_warned_of_at_the_third_time_and_ends_the_run_at_the_sixth() {
    let mut machine = start(rules(30));
    let said: Vec<Vec<String>> = (0..6).map(|_| again(&mut machine, "work", "no")).collect();
    let told = |count: u32, ask: u32| {
        vec![
            format!(
                "say You have now made the same call with the same result {count} times in a row. \
                 Doing it again will not help: try something else, or finish and report the \
                 obstacle."
            ),
            format!("ask {ask}"),
        ]
    };
    let expected = [
        vec!["ask 2".to_owned()],
        vec!["ask 3".to_owned()],
        told(3, 4),
        told(4, 5),
        told(5, 6),
        vec![
            "ended NoProgress: the model made the same call with the same result 6 times in a row"
                .to_owned(),
        ],
    ];
    assert_eq!(said, expected);
}

#[test]
fn another_result_another_call_or_a_word_between_begins_the_count_anew() {
    let mut machine = start(rules(60));
    for other in [("work", "yes"), ("look", "no")] {
        for _ in 0..2 {
            again(&mut machine, "work", "no");
        }
        again(&mut machine, other.0, other.1);
    }
    for _ in 0..2 {
        again(&mut machine, "work", "no");
    }
    answer(&mut machine, "let me think", &[]);
    actions(&mut machine);
    for _ in 0..2 {
        let next = again(&mut machine, "work", "no");
        assert_eq!(next.len(), 1, "{next:?}");
    }
}

#[test]
fn polling_is_no_repetition() {
    let mut tools = tools();
    tools.insert(
        "poll".to_owned(),
        ToolTraits {
            polls: true,
            ..ToolTraits::default()
        },
    );
    let mut machine = Machine::new(
        rules(30),
        Arc::new(tools),
        vec![Message::user("the task").into()],
    );
    actions(&mut machine);
    for turn in 0..20 {
        let next = again(&mut machine, "poll", "not yet");
        assert_eq!(next, [format!("ask {}", turn + 2)]);
    }
}

#[test]
fn refused_calls_count_as_much_as_calls_that_ran() {
    let mut machine = start(rules(30));
    for _ in 0..5 {
        answer(&mut machine, "", &[("wrok", "a")]);
    }
    actions(&mut machine);
    answer(&mut machine, "", &[("wrok", "a")]);
    let ended =
        "ended NoProgress: the model made the same call with the same result 6 times in a row";
    assert_eq!(actions(&mut machine).last().unwrap(), ended);
}

#[test]
fn a_resumed_run_counts_repetition_anew() {
    let mut machine = start(rules(30));
    for _ in 0..6 {
        again(&mut machine, "work", "no");
    }
    machine.apply(Fact::Resumed {
        rules: rules(30),
        lost_state: None,
        new_sandbox: None,
        time: 1.0,
    });
    assert_eq!(actions(&mut machine), ["ask 7"]);
    assert_eq!(again(&mut machine, "work", "no"), ["ask 8"]);
}

#[test]
fn going_round_in_a_small_circle_is_noticed_too() {
    for period in 2..=4_u32 {
        let mut machine = start(rules(60));
        let mut turn = 0;
        let mut told = Vec::new();
        let end = loop {
            turn += 1;
            let next = again(&mut machine, "work", &format!("{}", turn % period));
            match next.first() {
                Some(said) if said.starts_with("say ") => told.push((turn, said.clone())),
                Some(ended) if ended.starts_with("ended ") => break (turn, ended.clone()),
                _ => {}
            }
        };
        let turns: Vec<u32> = told.iter().map(|(turn, _)| *turn).collect();
        assert_eq!(turns, [3 * period, 4 * period, 5 * period]);
        let expected = format!(
            "say You have now made the same {period} calls one after the other, with the same results, 3 \
             times in a row."
        );
        assert!(told[0].1.starts_with(&expected), "{}", told[0].1);
        assert_eq!(end.0, 6 * period);
        assert!(end.1.starts_with("ended NoProgress"), "{}", end.1);
    }
}

#[test]
fn a_circle_of_five_is_none() {
    let mut machine = start(rules(60));
    for turn in 0..40 {
        let next = again(&mut machine, "work", &format!("{}", turn % 5));
        assert_eq!(next.len(), 1, "{next:?}");
    }
}

/// Such as `sleep 30; tail -1 log`.
#[test]
fn calls_that_take_long_are_no_repetition() {
    let mut machine = start(rules(30));
    for turn in 2..20 {
        answer(&mut machine, "", &[("work", &format!("c{turn}"))]);
        actions(&mut machine);
        let mut outcome = outcome("still running", true);
        outcome.duration = Duration::from_secs(30);
        machine.apply(Fact::CallFinished {
            index: 0,
            outcome: Box::new(outcome),
        });
        assert_eq!(actions(&mut machine), [format!("ask {turn}")]);
    }
}

#[test]
fn the_number_of_repeats_is_a_setting() {
    for (max_repeats, expected) in [(None, 29), (NonZeroU32::new(2), 2), (NonZeroU32::new(9), 9)] {
        let mut machine = start(Rules {
            max_repeats,
            ..rules(29)
        });
        while !machine.has_finished() && machine.turns() < 29 {
            if again(&mut machine, "work", "no")
                .last()
                .unwrap()
                .contains("NoProgress")
            {
                break;
            }
        }
        assert_eq!(machine.turns(), expected);
    }
}
