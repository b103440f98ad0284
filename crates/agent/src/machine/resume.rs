//! Going on with a run in another process: what the facts of the first one leave open.

use std::time::Duration;

use cantle_core::event::Finish;
use cantle_core::message::Message;
use serde_json::Value;

use super::{Action, CallOutcome, Machine, Rules};

/// The result of a call that began in a process that is gone. Nobody knows whether it had its
/// effect, so it is not run again.
pub(super) const INTERRUPTED: &str = "Interrupted: the program that ran this call ended before its result was \
                           written down. It may have done all, some or nothing of its work. It is \
                           not run again by itself; look at what is there before you repeat it.";

/// What stands in a conversation in the place of a call's result that goes on with the run.
pub(super) const SUSPENDED: &str =
    "Not done yet: the run was cancelled. This call goes on where the run does.";

impl Machine {
    /// Takes up a run where its facts end. Nothing that was told or begun is told or begun again.
    pub(super) fn resumed(
        &mut self,
        rules: Rules,
        lost: Option<String>,
        fresh_sandbox: bool,
        time: f64,
    ) {
        self.rules = rules;
        self.actions.clear();
        self.cancelled = false;
        self.near.clear();
        self.spent = None;
        self.told_last = false;
        self.last_chance = false;
        self.overflows = super::Overflows::default();
        self.empty_answers = 0;
        self.repeats.reset();
        self.left_running = false;
        self.left.clear();
        self.said.extend(lost.map(Into::into));
        let had_ended = std::mem::take(&mut self.ended);
        // It had finished, and what comes after that was cut short; unless the files are gone with which
        // it had.
        let finish = self.finish.take();
        if let Some(finish) = finish.filter(|finish| !fresh_sandbox || !names_files(finish)) {
            return self.end(Ok(finish));
        }

        if let Some(mut turn) = self.turn.take() {
            for index in turn.interrupted() {
                let outcome = CallOutcome::failure(INTERRUPTED, Duration::ZERO, time);
                if let Some(name) = turn.name(index) {
                    self.ledger.record_tool(name, false, Duration::ZERO, None);
                }
                turn.finished(index, outcome);
            }
            turn.hand_out_again();
            self.actions.extend(turn.next_calls());
            self.turn = Some(turn);
            return self.end_turn_if_done();
        }
        if let Some(attempt) = self.summarizing.take() {
            return self.summarize(attempt);
        }
        if had_ended {
            let answered = !self
                .messages
                .last()
                .is_some_and(|message| matches!(**message, Message::Assistant(_)));
            return self.go_on(answered);
        }
        // The model was being asked; what it is asked is in the conversation already, but for what
        // came up since.
        self.tell_said();
        self.actions.push_back(Action::AskModel {
            turn: self.turns + 1,
        });
    }

    /// Whether a process that runs in the sandbox is lost with ours.
    pub(crate) fn has_left_running(&self) -> bool {
        self.left_running
    }
}

/// Whether a finish call hands over files.
fn names_files(finish: &Finish) -> bool {
    let paths = finish.params.get("paths").and_then(Value::as_array);
    paths.is_some_and(|paths| !paths.is_empty())
}
