//! The visible progress of a sub-agent, from its events.

use std::collections::HashMap;
use std::time::Duration;

use cantle_core::event::{Event, EventKind};
use cantle_core::ids::RunId;
use cantle_core::ledger::{CallPurpose, Ledger, ModelCall};
use cantle_core::usage::TokenUsage;
use parking_lot::Mutex;

/// The progress of one sub-agent and those below it.
#[derive(Debug, Default)]
pub(crate) struct SubAgentProgress(Mutex<ProgressState>);

/// The progress at one moment.
#[derive(Clone, Debug, Default)]
pub(crate) struct ProgressState {
    pub(crate) turns: u32,
    /// The tool that was started last, while it runs.
    pub(crate) running_tool: Option<String>,
    /// The latest text of the model.
    pub(crate) last_text: String,
    /// The models of the sub-agent's run and of those below it.
    models: HashMap<RunId, String>,
    /// The model calls of the sub-agent and those below it, as far as events report them; once its run
    /// has ended, the ledger of the run.
    pub(crate) ledger: Ledger,
}

impl ProgressState {
    /// The ledger entry of a model call of a run.
    fn model_call(
        &self,
        run: RunId,
        purpose: CallPurpose,
        usage: TokenUsage,
        cost_usd: Option<f64>,
    ) -> ModelCall {
        let model = self.models.get(&run).map_or("", String::as_str);
        let mut call = ModelCall::new(model, purpose, usage, Duration::ZERO);
        call.cost_usd = cost_usd;
        call
    }
}

impl SubAgentProgress {
    pub(crate) fn snapshot(&self) -> ProgressState {
        self.0.lock().clone()
    }

    /// The model calls so far.
    pub(crate) fn ledger(&self) -> Ledger {
        self.0.lock().ledger.clone()
    }

    /// Adds an event of the sub-agent's run, or of one below it.
    pub(crate) fn update(&self, event: &Event, run: RunId) {
        if event.kind.is_delta() {
            return;
        }
        let mut state = self.0.lock();
        let is_own = event.run == run;
        match &event.kind {
            EventKind::RunStarted { model, .. } => {
                state.models.insert(event.run, model.clone());
            }
            EventKind::RunResumed { turns, ledger } if is_own => {
                state.turns = *turns;
                state.ledger.clone_from(ledger);
            }
            // The ledger of its caller does not contain it before it ends.
            EventKind::RunResumed { ledger, .. } => {
                let calls = ledger.all_model_calls().cloned();
                state.ledger.model_calls.extend(calls);
            }
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
                let mut call = state.model_call(event.run, CallPurpose::Turn, *usage, *cost_usd);
                call.duration = *duration;
                call.estimated = *usage_estimated;
                call.list_price_date.clone_from(list_price_date);
                state.ledger.model_calls.push(call);
                if is_own {
                    state.turns = *turn;
                    if !text.trim().is_empty() {
                        state.last_text.clone_from(text);
                    }
                }
            }
            EventKind::HistorySummarized {
                usage,
                usage_estimated,
                cost_usd,
                duration,
                ..
            } => {
                let mut call = state.model_call(event.run, CallPurpose::Summary, *usage, *cost_usd);
                call.duration = *duration;
                call.estimated = *usage_estimated;
                state.ledger.model_calls.push(call);
            }
            EventKind::ModelRetry {
                usage, cost_usd, ..
            } => {
                let mut call = state.model_call(event.run, CallPurpose::Failed, *usage, *cost_usd);
                call.estimated = true;
                state.ledger.model_calls.push(call);
            }
            EventKind::ToolStarted { tool, .. } if is_own => {
                state.running_tool = Some(tool.clone());
            }
            EventKind::ToolFinished { .. } if is_own => state.running_tool = None,
            // It also has tool calls.
            EventKind::RunFinished { ledger, .. } if is_own => state.ledger.clone_from(ledger),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use cantle_core::event::RunStatus;

    use super::*;

    fn started(model: &str) -> EventKind {
        EventKind::RunStarted {
            agent: "helper".to_owned(),
            model: model.to_owned(),
            task: String::new(),
            max_turns: 1,
            tools: Vec::new(),
            sandbox: None,
            input_files: Vec::new(),
            parent_call: None,
        }
    }

    fn usage(input: u64) -> TokenUsage {
        TokenUsage {
            input,
            ..TokenUsage::default()
        }
    }

    fn answered(input: u64) -> EventKind {
        EventKind::ModelAnswered {
            turn: 1,
            text: String::new(),
            tool_calls: 0,
            usage: usage(input),
            usage_estimated: false,
            cost_usd: Some(1.0),
            list_price_date: None,
            served_by: None,
            stop: None,
            duration: Duration::from_secs(1),
        }
    }

    /// The ledger of a sub-agent's run after these events.
    fn ledger_after(run: RunId, events: impl IntoIterator<Item = (RunId, EventKind)>) -> Ledger {
        let progress = SubAgentProgress::default();
        for (number, (of, kind)) in (0..).zip(events) {
            let event = Event::new(Some(number), of, UNIX_EPOCH, kind);
            progress.update(&event, run);
        }
        progress.ledger()
    }

    #[test]
    fn the_ledger_of_a_run_that_ended_is_whole() {
        let run = RunId::new();
        let mut ledger = Ledger::default();
        ledger.record_tool("look", true, Duration::ZERO, None);
        ledger.model_calls = [1, 2]
            .map(|input| ModelCall::new("large", CallPurpose::Turn, usage(input), Duration::ZERO))
            .into();
        let finished = |turns: u32, ledger: &Ledger| EventKind::RunFinished {
            status: RunStatus::Cancelled,
            finish: None,
            error: None,
            turns,
            duration: Duration::ZERO,
            ledger: ledger.clone(),
        };
        let events = [
            (run, started("large")),
            (run, answered(2)),
            (RunId::new(), finished(1, &Ledger::default())),
            (run, finished(2, &ledger)),
        ];
        assert_eq!(ledger_after(run, events), ledger);
    }

    #[test]
    fn model_calls_of_earlier_processes_are_in_the_ledger() {
        let (run, nested) = (RunId::new(), RunId::new());
        let resumed = |input| {
            let mut ledger = Ledger::default();
            let call = ModelCall::new("large", CallPurpose::Turn, usage(input), Duration::ZERO);
            ledger.model_calls.push(call);
            EventKind::RunResumed { turns: 1, ledger }
        };
        let events = [
            (run, started("large")),
            (run, resumed(1)),
            (nested, started("large")),
            (nested, resumed(2)),
            (run, answered(4)),
        ];
        let ledger = ledger_after(run, events);
        let calls = ledger.model_calls.iter();
        assert_eq!(
            calls.map(|call| call.usage.input).collect::<Vec<_>>(),
            [1, 2, 4]
        );
    }

    #[test]
    fn each_model_call_counts_for_the_model_of_its_run() {
        use CallPurpose::{Failed, Summary, Turn};
        let (run, nested) = (RunId::new(), RunId::new());
        let retry = EventKind::ModelRetry {
            attempt: 2,
            after: Duration::ZERO,
            reason: "overloaded".to_owned(),
            discarded: String::new(),
            usage: usage(3),
            cost_usd: Some(1.0),
        };
        let summary = EventKind::HistorySummarized {
            replaced: 2,
            text: String::new(),
            usage: usage(4),
            usage_estimated: true,
            cost_usd: Some(1.0),
            duration: Duration::from_secs(2),
        };
        let events = [
            (run, started("large")),
            (run, answered(1)),
            (nested, started("small")),
            (nested, answered(2)),
            (run, retry),
            (run, summary),
            (run, answered(5)),
        ];
        let ledger = ledger_after(run, events);
        let calls = ledger.model_calls.iter();
        let calls: Vec<_> = calls
            .map(|call| (&*call.model, call.purpose, call.usage.input))
            .collect();
        let expected = [
            ("large", Turn, 1),
            ("small", Turn, 2),
            ("large", Failed, 3),
            ("large", Summary, 4),
            ("large", Turn, 5),
        ];
        assert_eq!(calls, expected);
        let summary = &ledger.model_calls[3];
        assert_eq!((summary.estimated, summary.duration.as_secs()), (true, 2));
        assert_eq!(ledger.cost_usd(), Some(5.0));
    }
}
