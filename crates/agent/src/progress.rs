//! The visible progress of a sub-agent, from its events.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cantle_core::event::{Event, EventKind};
use cantle_core::ids::RunId;
use cantle_core::ledger::{CallPurpose, Ledger, ModelCall};

/// The progress of one sub-agent and those below it.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<ProgressState>);

/// The progress at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressState {
    pub(crate) turns: u32,
    /// The tool that was started last, while it runs.
    pub(crate) running_tool: Option<String>,
    /// The latest text of the model.
    pub(crate) last_text: String,
    /// The model of the run that started last.
    model: String,
    /// The answered model calls of the sub-agent and those below it.
    pub(crate) ledger: Ledger,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, ProgressState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn snapshot(&self) -> ProgressState {
        self.lock().clone()
    }

    /// The answered model calls so far.
    pub(crate) fn ledger(&self) -> Ledger {
        self.lock().ledger.clone()
    }

    /// Adds an event of the sub-agent's run, or of one below it.
    pub(crate) fn update(&self, event: &Event, run: RunId) {
        if event.kind.is_delta() {
            return;
        }
        let mut state = self.lock();
        let is_own = event.run == run;
        match &event.kind {
            EventKind::RunStarted { model, .. } => state.model.clone_from(model),
            EventKind::RunResumed { turns } if is_own => state.turns = *turns,
            EventKind::ModelAnswered {
                turn,
                text,
                usage,
                usage_estimated,
                cost_usd,
                list_price_date,
                duration,
                ..
            } => {
                let mut call = ModelCall::new(&state.model, CallPurpose::Turn, *usage, *duration);
                call.estimated = *usage_estimated;
                call.cost_usd = *cost_usd;
                call.list_price_date.clone_from(list_price_date);
                state.ledger.model_calls.push(call);
                if is_own {
                    state.turns = *turn;
                    if !text.trim().is_empty() {
                        state.last_text.clone_from(text);
                    }
                }
            }
            EventKind::ToolStarted { tool, .. } if is_own => {
                state.running_tool = Some(tool.clone());
            }
            EventKind::ToolFinished { .. } if is_own => state.running_tool = None,
            _ => {}
        }
    }
}
