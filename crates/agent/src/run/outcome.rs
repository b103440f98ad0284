//! The outcome of a run.

use std::time::{Duration, Instant};

use cantle_core::event::{EventKind, Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::message::{Message, SharedMessage};
use cantle_core::sandbox::SavedOutputs;
use serde::de::DeserializeOwned;

use crate::error::RunError;
use crate::rules::{Machine, RunEnd};

/// The end of a run and its results.
#[derive(Debug)]
#[non_exhaustive]
pub struct Outcome {
    /// The run.
    pub run: RunId,
    /// The finish call that ended the run; present even if saving its files failed.
    pub finish: Option<Finish>,
    /// The error that ended the run.
    pub error: Option<RunError>,
    /// The conversation, including the system message.
    pub history: Vec<SharedMessage>,
    /// Parts of the conversation that summaries replaced, oldest first.
    pub summarized: Vec<Vec<SharedMessage>>,
    /// Tokens, cost and calls of the run and its sub-agents.
    pub ledger: Ledger,
    /// Files saved in the output directory, and refused files.
    pub outputs: SavedOutputs,
    /// Files of the sandbox, at most 20, that a run which ended with an answer in text did not deliver.
    pub undelivered: Vec<String>,
    /// Number of turns.
    pub turns: u32,
    /// Duration of the run.
    pub duration: Duration,
}

/// A run has no finish parameters of the expected type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidFinish(String);

impl Outcome {
    /// The outcome of a run that ended like this, without its state.
    pub(super) fn new(run: RunId, started: Instant, end: RunEnd) -> Self {
        let (finish, error) = match end {
            Ok(finish) => (finish, None),
            Err(error) => (None, Some(error)),
        };
        Self {
            run,
            finish,
            error,
            history: Vec::new(),
            summarized: Vec::new(),
            ledger: Ledger::default(),
            outputs: SavedOutputs::default(),
            undelivered: Vec::new(),
            turns: 0,
            duration: started.elapsed(),
        }
    }

    /// Adds the state in which the run ended.
    pub(super) fn with_state(mut self, machine: Machine) -> Self {
        self.turns = machine.turns();
        (self.history, self.summarized, self.ledger) = machine.into_parts();
        self
    }

    /// Returns the status.
    pub fn status(&self) -> RunStatus {
        match (&self.error, &self.finish) {
            (Some(error), _) => error.status(),
            (None, Some(_)) => RunStatus::Finished,
            (None, None) => RunStatus::AnsweredInText,
        }
    }

    /// Returns the text of the model's last answer that has any.
    pub fn last_text(&self) -> Option<String> {
        last_text(&self.history)
    }

    /// Returns the parameters of the finish call as the parameter type of its tool.
    ///
    /// # Errors
    /// If the run did not finish, or another finish tool was called.
    pub fn finish_as<T: DeserializeOwned>(&self) -> Result<T, InvalidFinish> {
        match (&self.finish, &self.error) {
            (Some(finish), _) => T::deserialize(&finish.params).map_err(|error| {
                InvalidFinish(format!("the parameters of `{}`: {error}", finish.tool))
            }),
            (None, Some(error)) => Err(InvalidFinish(format!("the run did not finish: {error}"))),
            (None, None) => {
                let reason = "the run did not finish: the model answered in text";
                Err(InvalidFinish(reason.to_owned()))
            }
        }
    }

    pub(super) fn event(&self) -> EventKind {
        EventKind::RunFinished {
            status: self.status(),
            finish: self.finish.clone(),
            error: self.error.as_ref().map(RunError::to_string),
            turns: self.turns,
            duration: self.duration,
            ledger: self.ledger.clone(),
        }
    }
}

/// Returns the text of the last answer in a conversation that has any.
pub(crate) fn last_text(messages: &[SharedMessage]) -> Option<String> {
    let mut texts = messages
        .iter()
        .rev()
        .filter_map(|message| match &**message {
            Message::Assistant(message) => Some(message.text()),
            _ => None,
        });
    texts.find(|text| !text.trim().is_empty())
}
