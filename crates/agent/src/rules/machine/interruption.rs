//! Stopping, cancelling and resuming a run.

use std::time::Duration;

use cantle_core::event::Finish;
use cantle_core::message::Message;
use serde_json::Value;

use super::events::tool_finished;
use super::{Activity, Machine, Status, TextAnswerCounter};
use crate::error::RunError;
use crate::rules::action::Action;
use crate::rules::budget::BudgetPhase;
use crate::rules::fact::CallOutcome;
use crate::rules::overflow::OverflowCounter;
use crate::rules::settings::Rules;
use crate::rules::turn::INTERRUPTED;

impl Machine {
    /// Ends the run, even while calls run.
    pub(super) fn stop(&mut self, error: RunError) {
        if !self.has_ended() {
            self.actions.clear();
            self.abandon_request();
            self.end(Err(error));
        }
    }

    pub(super) fn cancel(&mut self) {
        if !matches!(self.status, Status::Running) {
            return;
        }
        self.status = Status::Cancelling;
        self.actions.clear();
        self.abandon_request();
        match self.activity {
            // Running calls observe their token and report; the others never start.
            Activity::Calling(_) => {
                self.refuse_waiting("The run was cancelled before this call started.");
            }
            _ => self.end(Err(RunError::cancelled())),
        }
    }

    /// Forgets a summary that was asked for.
    pub(super) fn abandon_request(&mut self) {
        if matches!(self.activity, Activity::Summarizing(_)) {
            self.activity = Activity::Asking;
        }
    }

    /// Continues the run where its facts end. Messages and calls are not repeated.
    pub(super) fn resume(
        &mut self,
        rules: Rules,
        lost_state: Option<String>,
        has_new_sandbox: bool,
        time: f64,
    ) {
        self.rules = rules;
        self.actions.clear();
        self.near_budgets.clear();
        self.budget = BudgetPhase::Available;
        self.overflows = OverflowCounter::default();
        self.repeats.reset();
        self.empty_answers = 0;
        self.has_failed_summary = false;
        self.text_answers = TextAnswerCounter::default();
        self.has_background_processes = false;
        self.ledger.resumed();
        self.pending_messages.extend(lost_state.map(Into::into));
        let status = std::mem::replace(&mut self.status, Status::Running);
        let had_ended = matches!(status, Status::Ended(_));
        // A finished run was interrupted while it was closed. It finishes again, unless the files
        // that it delivers are gone.
        if let Status::Ended(Some(finish)) = status
            && !(has_new_sandbox && delivers_files(&finish))
        {
            return self.end(Ok(Some(finish)));
        }
        let last = self.messages().last();
        let ends_with_turn = last.is_some_and(|message| matches!(**message, Message::Assistant(_)));
        match &mut self.activity {
            Activity::Calling(turn) => {
                for (index, call) in turn.interrupted() {
                    let outcome = CallOutcome::failure(INTERRUPTED, Duration::ZERO, time);
                    self.ledger.tool_call(&call.name, &outcome);
                    let event = Box::new(tool_finished(&call, &outcome));
                    self.actions.push_back(Action::Emit(event));
                    turn.call_finished(index, outcome);
                }
                turn.reschedule_unfinished();
                turn.start_calls(&mut self.actions);
                self.end_turn_if_done();
            }
            Activity::Summarizing(attempt) => {
                let attempt = *attempt;
                self.summarize(attempt);
            }
            Activity::Asking if had_ended || ends_with_turn => self.next_turn(!ends_with_turn),
            Activity::Asking => {
                // The model was being asked: the conversation lacks only newer messages.
                self.push_pending_messages();
                self.request_turn();
            }
        }
    }

    /// Refuses the calls of the turn that have not started.
    pub(super) fn refuse_waiting(&mut self, text: &str) {
        if let Some(mut turn) = self.take_turn() {
            for call in turn.refuse_waiting(text) {
                self.refused(&call, text);
            }
            self.activity = Activity::Calling(turn);
            self.end_turn_if_done();
        }
    }
}

/// Whether a finish call names files.
fn delivers_files(finish: &Finish) -> bool {
    let paths = finish.params.get("paths").and_then(Value::as_array);
    paths.is_some_and(|paths| !paths.is_empty())
}
