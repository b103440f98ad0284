//! All rules together: made-up models and tools, in any order.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// A step of a generated model or tool.
#[derive(Clone, Debug)]
enum Move {
    Answer {
        text: bool,
        calls: Vec<u8>,
        success: bool,
    },
    Overflow,
    Fail,
    Budget,
    Time,
    Say,
    Stop,
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
        1 => Just(Move::Budget),
        1 => Just(Move::Time),
        1 => Just(Move::Say),
        1 => Just(Move::Stop),
        1 => (0_u8..4).prop_map(Move::CancelAfter),
    ];
    prop::collection::vec(one, 1..40)
}

fn spent(resource: Resource) -> BudgetState {
    BudgetState {
        resource,
        spent: 9.0,
        limit: 9.0,
    }
}

fn tool_name(number: u8) -> &'static str {
    ["work", "look", "look", "finish", "give_up", "unknown"][usize::from(number) % 6]
}

/// A run that is played, and what came of it.
struct Played {
    machine: Machine,
    facts: Vec<Fact>,
    /// The state after each fact, with the one before the first.
    states: Vec<String>,
    /// Calls in the order they started: by model call, id and name.
    started: Vec<(usize, String, String)>,
}

impl Played {
    fn begin(rules: Rules) -> Self {
        let machine = Machine::new(
            rules,
            Arc::new(tools()),
            vec![Message::user("the task").into()],
        );
        Self {
            states: vec![machine.state()],
            machine,
            facts: Vec::new(),
            started: Vec::new(),
        }
    }

    fn tell(&mut self, fact: Fact) {
        self.facts.push(fact.clone());
        self.machine.apply(fact);
        self.states.push(self.machine.state());
    }

    /// Plays the moves to the end of the run.
    fn played_out(mut self, moves: &[Move], picks: &[u8]) -> Self {
        let mut moves = moves.iter().cycle();
        let mut picks = picks.iter().cycle();
        let mut running: Vec<(usize, bool)> = Vec::new();
        let mut success = true;
        for _ in 0..2000 {
            match self.machine.next() {
                Some(Action::AskModel { .. } | Action::Summarize { .. }) => {
                    assert!(running.is_empty(), "the model is asked while calls run");
                    let summarizing = self.machine.is_summarizing();
                    match moves.next().unwrap() {
                        Move::Answer { text, .. } if summarizing => {
                            let text = if *text { "a summary" } else { " " };
                            self.tell(Fact::Summarized {
                                text: text.to_owned(),
                                files: vec!["a.txt".to_owned()],
                                call: model_call(1),
                            });
                        }
                        Move::Answer {
                            text,
                            calls,
                            success: yes,
                        } => {
                            success = *yes;
                            let calls = calls.iter().enumerate();
                            let names: Vec<_> = calls
                                .map(|(at, number)| (tool_name(*number), format!("c{at}")))
                                .collect();
                            let names: Vec<_> =
                                names.iter().map(|(n, id)| (*n, id.as_str())).collect();
                            let text = if *text { "text" } else { "" };
                            self.tell(answered(text, &names, StopReason::EndTurn));
                        }
                        Move::Overflow => self.tell(overflowed()),
                        Move::Fail => self.tell(Fact::ModelFailed(ModelFailure {
                            error: LlmError::new(LlmErrorKind::Server, "boom").into(),
                            call: failed_call(),
                        })),
                        Move::Budget => {
                            self.tell(Fact::BudgetExhausted(spent(Resource::Tokens)));
                            self.tell(answered("on", &[("work", "w")], StopReason::EndTurn));
                        }
                        Move::Time => {
                            self.tell(Fact::BudgetExhausted(spent(Resource::TimeS)));
                            self.tell(answered("on", &[("work", "w")], StopReason::EndTurn));
                        }
                        Move::Say => {
                            let content = "by the way".into();
                            self.tell(Fact::UserMessage { content });
                            self.tell(answered("on", &[("work", "w")], StopReason::EndTurn));
                        }
                        Move::Stop => self.tell(Fact::Stopped {
                            reason: "enough".to_owned(),
                        }),
                        Move::CancelAfter(_) => self.tell(Fact::Cancelled { call: None }),
                    }
                }
                Some(Action::StartCall { index, call, .. }) => {
                    let turn = self.machine.ledger().model_calls.len();
                    self.started
                        .push((turn, call.id.clone(), call.name.clone()));
                    self.tell(Fact::CallStarted { index, time: 1.0 });
                    running.push((index, success));
                }
                Some(Action::End(_)) => {
                    // Calls that run when time runs out are cancelled, and report.
                    let ended_by = |fact: &Fact| matches!(fact, Fact::OutOfTime { .. });
                    let out_of_time = self.facts.iter().any(ended_by);
                    assert!(
                        running.is_empty() || out_of_time,
                        "the run ends while calls run"
                    );
                    for (index, success) in std::mem::take(&mut running) {
                        let outcome = Box::new(outcome(&format!("result {index}"), success));
                        self.tell(Fact::CallFinished { index, outcome });
                    }
                    return self;
                }
                Some(_) => {}
                None => {
                    assert!(!running.is_empty(), "nothing to do and nothing to wait for");
                    match moves.clone().next() {
                        Some(Move::CancelAfter(0)) => self.tell(Fact::Cancelled { call: None }),
                        Some(Move::Time) if self.machine.is_last_turn() => {
                            self.tell(Fact::OutOfTime {
                                state: spent(Resource::TimeS),
                                call: None,
                            });
                        }
                        Some(Move::Time) => {
                            self.tell(Fact::BudgetExhausted(spent(Resource::TimeS)));
                        }
                        _ => {}
                    }
                    let pick = usize::from(*picks.next().unwrap()) % running.len();
                    let (index, success) = running.remove(pick);
                    let outcome = Box::new(outcome(&format!("result {index}"), success));
                    self.tell(Fact::CallFinished { index, outcome });
                }
            }
        }
        panic!("the run never ends");
    }
}

/// Rules with little room, so that everything happens.
fn narrow_rules() -> Rules {
    Rules {
        turn_warning_threshold: 3,
        summarize_at: Some(0.7),
        context_window: Some(60),
        ..rules(8)
    }
}

fn play(moves: &[Move], picks: &[u8]) -> Played {
    Played::begin(narrow_rules()).played_out(moves, picks)
}

/// Every message, also those that summaries replaced.
fn all_messages(machine: &Machine) -> Vec<SharedMessage> {
    let replaced = machine.replaced().iter().flatten();
    replaced.chain(machine.messages()).cloned().collect()
}

fn check_results(machine: &Machine) -> Result<(), TestCaseError> {
    let all = all_messages(machine);
    let mut messages = all.iter().peekable();
    while let Some(message) = messages.next() {
        let Message::Assistant(turn) = &**message else {
            prop_assert!(
                !matches!(&**message, Message::Tool(_)),
                "a result without a call"
            );
            continue;
        };
        for call in turn.tool_calls() {
            let Some(Message::Tool(result)) = messages.next().map(|m| &**m) else {
                return Err(TestCaseError::fail("a call without a result"));
            };
            prop_assert_eq!(&result.tool_call_id, &call.id);
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn every_run_ends_and_every_call_has_exactly_one_result_in_call_order(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        check_results(&play(&moves, &picks).machine)?;
    }

    #[test]
    fn a_finish_call_starts_after_all_ordinary_calls_of_its_turn(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let started = play(&moves, &picks).started;
        let finishes = |name: &str| name == "finish" || name == "give_up";
        for pair in started.windows(2) {
            prop_assert!(pair[0].0 != pair[1].0 || !finishes(&pair[0].2) || finishes(&pair[1].2));
        }
    }

    #[test]
    fn every_model_call_is_in_the_ledger(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let machine = play(&moves, &picks).machine;
        let all = all_messages(&machine);
        let assistant = |m: &&SharedMessage| matches!(&***m, Message::Assistant(_));
        let kept = all.iter().filter(assistant).count();
        let calls = &machine.ledger().model_calls;
        let turns = calls.iter().filter(|call| call.purpose == CallPurpose::Turn).count();
        prop_assert_eq!(turns, kept);
        prop_assert_eq!(machine.ledger().reported_usage().input as usize, calls.len());
    }

    #[test]
    fn dropped_turns_and_summaries_never_change_earlier_messages(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let machine = play(&moves, &picks).machine;
        let first = machine.messages().first().map(|message| (**message).clone());
        prop_assert_eq!(first, Some(Message::user("the task")));
        let summaries = machine.messages().iter().filter(|it| is_summary(it)).count();
        prop_assert_eq!(summaries, usize::from(!machine.replaced().is_empty()));
    }

    #[test]
    fn any_prefix_of_a_journal_is_the_state_that_was_there(
        moves in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
    ) {
        let played = play(&moves, &picks);
        let mut again = Played::begin(narrow_rules()).machine;
        for (fact, state_then) in played.facts.iter().zip(&played.states[1..]) {
            let line = serde_json::to_string(fact).unwrap();
            again.apply(serde_json::from_str(&line).unwrap());
            prop_assert_eq!(&again.state(), state_then);
        }
    }

    #[test]
    fn a_resumed_run_repeats_nothing_and_ends_as_runs_do(
        moves in moves(),
        later in moves(),
        picks in prop::collection::vec(any::<u8>(), 1..20),
        cut in any::<prop::sample::Index>(),
    ) {
        let played = play(&moves, &picks);
        let cut = cut.index(played.facts.len() + 1);
        let mut resumed = Played::begin(narrow_rules());
        for fact in &played.facts[..cut] {
            resumed.machine.apply(fact.clone());
        }
        while resumed.machine.next().is_some() {}
        let turns = resumed.machine.turns();
        let finished = resumed.machine.has_finished();
        let begun: HashSet<String> = played.started
            .iter()
            .take(played.facts[..cut].iter().filter(|it| matches!(it, Fact::CallStarted { .. })).count())
            .map(|(_, id, _)| id.clone())
            .collect();
        resumed.tell(Fact::Resumed { rules: narrow_rules(), lost_state: None, new_sandbox: None, time: 2.0 });
        prop_assert_eq!(resumed.machine.turns(), turns);
        let resumed = resumed.played_out(&later, &picks);
        prop_assert!(!finished || (resumed.machine.turns() == turns && resumed.machine.has_finished()));
        check_results(&resumed.machine)?;
        for (_, id, _) in &resumed.started {
            prop_assert!(!begun.contains(id), "{} ran twice", id);
        }
    }
}
