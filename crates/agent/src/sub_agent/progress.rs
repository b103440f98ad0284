//! What a sub-agent is seen to do, from its events.

use std::sync::{Mutex, MutexGuard, PoisonError};

use cantle_core::event::{Event, EventKind};
use cantle_core::ids::RunId;
use cantle_core::ledger::{CallPurpose, Ledger, ModelCall};

/// What has been seen of one sub-agent and those below it.
#[derive(Debug, Default)]
pub(crate) struct Progress(Mutex<Seen>);

#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    pub(super) turns: u32,
    /// The tool that began last, while it works.
    pub(super) tool: Option<String>,
    /// What it said last.
    pub(super) last_words: String,
    /// Its model calls that were answered, and those of the ones below.
    pub(super) ledger: Ledger,
    model: String,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What has been seen so far.
    pub(super) fn seen(&self) -> Seen {
        self.lock().clone()
    }

    /// What it used so far, as far as answers said; `None` where there was none.
    pub(crate) fn ledger(&self) -> Option<Ledger> {
        let seen = self.lock();
        (!seen.ledger.model_calls.is_empty()).then(|| seen.ledger.clone())
    }

    /// Looks at an event of the sub-agent's run, or of one below.
    pub(super) fn note(&self, event: &Event, run: RunId) {
        if event.kind.is_delta() {
            return;
        }
        let mut seen = self.lock();
        let is_own = event.run == run;
        match &event.kind {
            EventKind::RunStarted { model, .. } => seen.model.clone_from(model),
            EventKind::RunResumed { turns } if is_own => seen.turns = *turns,
            EventKind::ModelAnswered {
                turn,
                text,
                usage,
                usage_estimated,
                cost_usd,
                duration,
                ..
            } => {
                let mut call = ModelCall::new(&seen.model, CallPurpose::Turn, *usage, *duration);
                call.estimated = *usage_estimated;
                call.cost_usd = *cost_usd;
                seen.ledger.model_calls.push(call);
                if is_own {
                    seen.turns = *turn;
                    if !text.trim().is_empty() {
                        seen.last_words.clone_from(text);
                    }
                }
            }
            EventKind::ToolStarted { tool, .. } if is_own => seen.tool = Some(tool.clone()),
            EventKind::ToolFinished { .. } if is_own => seen.tool = None,
            _ => {}
        }
    }
}
