//! The driver: performs the actions of the state machine, and records facts.
//!
//! Every fact is in the journal before it is applied, and on disk before anything that follows from
//! it is done.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::event::{EventKind, Finish};
use cantle_core::message::ToolCall;
use cantle_core::tool::{Decision, Progress, ToolContext};
use futures_util::future::join_all;
use serde_json::json;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

use super::approve;
use super::resources::SessionResources;
use super::tool_call::ActiveCall;
use crate::budget::Account;
use crate::error::{RunError, RunErrorKind};
use crate::hooks::{AtFinish, guarded};
use crate::journal::{BackgroundAgentRecord, Journal};
use crate::rules::{
    Action, BudgetState, CallOutcome, Fact, Machine, RunEnd, StandingApproval, tool_started,
};
use crate::scope::{RunScope, SubAgentCall};
use crate::spans;
use crate::time::unix_seconds;

/// Maximum duration of the last turn once a time budget is exhausted.
pub(super) const LAST_TURN_TIME: Duration = Duration::from_secs(60);

/// Time in which cancelled calls may end by themselves.
const CANCEL_GRACE: Duration = Duration::from_secs(3);

/// The part of the grace that a sub-agent's calls get. The rest is for the sub-agent's own end.
const SUB_AGENT_GRACE: f64 = 0.6;

/// Drives one run.
pub(super) struct Driver {
    pub(super) scope: Arc<RunScope>,
    pub(super) resources: Arc<SessionResources>,
    pub(super) machine: Machine,
    journal: Option<Journal>,
    pub(super) facts: UnboundedReceiver<Box<Fact>>,
    /// Cancels the calls of the turn.
    calls_token: CancellationToken,
    tasks: JoinSet<(usize, CallTaskResult)>,
    /// Calls that are being decided on or run, by their index in the turn.
    calls: BTreeMap<usize, ActiveCall>,
    /// Calls that start as soon as the facts so far are on disk.
    ready: Vec<(usize, ActiveCall)>,
}

/// The result of a task that works on a call.
enum CallTaskResult {
    Decided(Decision, Option<StandingApproval>),
    Finished(Box<CallOutcome>),
    /// A hook panicked.
    HookFailed(RunError),
}

impl Driver {
    pub(super) fn new(
        scope: Arc<RunScope>,
        resources: Arc<SessionResources>,
        machine: Machine,
        journal: Option<Journal>,
        facts: UnboundedReceiver<Box<Fact>>,
    ) -> Self {
        Self {
            calls_token: scope.cancellation.child_token(),
            scope,
            resources,
            machine,
            journal,
            facts,
            tasks: JoinSet::new(),
            calls: BTreeMap::new(),
            ready: Vec::new(),
        }
    }

    /// Drives the run to its end. `unfinished` are the background sub-agents to resume.
    pub(super) async fn drive(&mut self, unfinished: Vec<BackgroundAgentRecord>) -> RunEnd {
        if !unfinished.is_empty() {
            self.resume_background_agents(unfinished).await;
        }
        let end = self.perform_actions().await;
        if end.is_err() && !self.calls.is_empty() {
            // They end like those of a cancelled run, so that what sub-agents used is in the ledger.
            self.scope.cancellation.cancel();
            // The first error is the one to report.
            let _ = self.stop_calls("The run failed").await;
        }
        self.tasks.shutdown().await;
        let closed = self.close(end.is_ok()).await;
        // The first error is the one to report.
        end.and_then(|finish| closed.map(|()| finish))
    }

    /// The state of the run, and its journal, whose end is not written yet.
    pub(super) fn into_parts(self) -> (Machine, Option<Journal>) {
        (self.machine, self.journal)
    }

    async fn perform_actions(&mut self) -> RunEnd {
        loop {
            while let Some(action) = self.machine.next() {
                match action {
                    Action::AskModel { turn } => self.ask_model(turn).await?,
                    // On the heap: summaries are rare.
                    Action::Summarize { attempt } => Box::pin(self.summarize(attempt)).await?,
                    Action::StartCall {
                        index,
                        call,
                        decision,
                        restarted,
                    } => self.admit(index, call, decision, restarted)?,
                    Action::AcceptText { finish } => self.accept_text(&finish).await?,
                    Action::Emit(event) => self.scope.hub.emit(*event),
                    Action::End(end) => return end,
                }
            }
            self.start_ready().await?;
            self.wait().await?;
        }
    }

    /// Asks the hooks whether an answer in text ends the run.
    async fn accept_text(&mut self, finish: &Finish) -> Result<(), RunError> {
        let Some(hooks) = self.resources.agent.hooks.clone() else {
            return self.record(Fact::TextAccepted);
        };
        // The hook may wait for long.
        self.commit().await?;
        let fact = tokio::select! {
            biased;
            decided = guarded("at_finish", hooks.at_finish(finish)) => match decided? {
                AtFinish::Accept => Fact::TextAccepted,
                AtFinish::Refuse { feedback } => Fact::TextRefused { feedback },
            },
            () = self.scope.cancellation.cancelled() => Fact::Cancelled { call: None },
            state = out_of_time(&self.scope.budget) => Fact::OutOfTime { state, call: None },
        };
        self.record(fact)
    }

    /// Ends background sub-agents, and commits the journal.
    async fn close(&mut self, is_finished: bool) -> Result<(), RunError> {
        let suspend = !is_finished && self.scope.can_resume();
        self.scope.background.end(suspend, self.grace()).await;
        self.receive_facts()?;
        self.commit().await
    }

    /// Waits for the next fact.
    async fn wait(&mut self) -> Result<(), RunError> {
        let is_last_turn = self.machine.is_last_turn();
        let grace = if is_last_turn {
            LAST_TURN_TIME
        } else {
            Duration::ZERO
        };
        let limit = self.scope.budget.time_left(grace);
        tokio::select! {
            // A call that ends because it was cancelled must not start the next one.
            biased;
            () = self.scope.cancellation.cancelled() => {
                self.record(Fact::Cancelled { call: None })?;
                self.stop_calls("The run was cancelled").await
            }
            joined = self.tasks.join_next() => match joined {
                Some(Ok((index, result))) => {
                    self.call_task_ended(index, result)?;
                    // Time can run out just before the timer below does.
                    if !is_last_turn && self.machine.is_last_turn() {
                        self.stop_calls("The run's time was over").await?;
                    }
                    Ok(())
                }
                // Calls catch panics, and no task is aborted before this loop ends.
                Some(Err(_)) | None => {
                    Err(RunError::new(RunErrorKind::Internal, "a tool call was lost"))
                }
            },
            Some(fact) = self.facts.recv() => self.record(*fact),
            () = sleep(limit.map(|(left, _)| left)) => {
                match limit {
                    Some((_, state)) if is_last_turn => {
                        self.record(Fact::OutOfTime { state, call: None })?;
                    }
                    _ => self.record_budget_notices(Fact::BudgetExhausted)?,
                }
                self.stop_calls("The run's time was over").await
            }
        }
    }

    fn call_task_ended(&mut self, index: usize, result: CallTaskResult) -> Result<(), RunError> {
        match result {
            CallTaskResult::Finished(outcome) => self.finish_call(index, outcome),
            CallTaskResult::HookFailed(error) => Err(error),
            CallTaskResult::Decided(decision, standing) => {
                let Some(call) = self.calls.remove(&index) else {
                    return Ok(());
                };
                if let Some(standing) = standing {
                    self.record(Fact::ApprovedAlways(standing))?;
                }
                let fact = Fact::CallDecided {
                    index,
                    decision: decision.clone(),
                };
                self.record(fact)?;
                self.apply_decision(index, call, decision)
            }
        }
    }

    /// Schedules a call, or requests a decision on it.
    fn admit(
        &mut self,
        index: usize,
        call: Arc<ToolCall>,
        decision: Option<Decision>,
        restarted: bool,
    ) -> Result<(), RunError> {
        let agent = &self.resources.agent;
        let refusal = approve::refusal(&self.resources, &call);
        let call = ActiveCall::new(call);
        if let Some(decision) = refusal.or(decision) {
            return self.apply_decision(index, call, decision);
        }
        if restarted || (agent.hooks.is_none() && agent.approvals.allow_all()) {
            self.ready.push((index, call));
            return Ok(());
        }
        let (scope, resources) = (Arc::clone(&self.scope), Arc::clone(&self.resources));
        let (cancellation, request) = (self.calls_token.clone(), Arc::clone(&call.call));
        self.calls.insert(index, call);
        self.tasks.spawn(async move {
            let decided = approve::decide(&scope, &resources, &request, &cancellation).await;
            let result = match decided {
                Ok((decision, standing)) => CallTaskResult::Decided(decision, standing),
                Err(error) => CallTaskResult::HookFailed(error),
            };
            (index, result)
        });
        Ok(())
    }

    fn apply_decision(
        &mut self,
        index: usize,
        mut call: ActiveCall,
        decision: Decision,
    ) -> Result<(), RunError> {
        match decision {
            Decision::Edit { arguments, by_hook } => call.edit(arguments, by_hook),
            Decision::Reject { reason } => {
                let outcome = not_run(format!("Not run: {reason}"));
                return self.record_outcome(index, outcome);
            }
            _ => {}
        }
        self.ready.push((index, call));
        Ok(())
    }

    /// Starts the scheduled calls, once their starts are on disk.
    async fn start_ready(&mut self) -> Result<(), RunError> {
        let ready = std::mem::take(&mut self.ready);
        for (index, _) in &ready {
            self.scope.budget.tool_call();
            self.record(Fact::CallStarted {
                index: *index,
                time: unix_seconds(),
            })?;
        }
        self.commit().await?;
        for (index, call) in ready {
            self.start_call(index, call);
        }
        Ok(())
    }

    fn start_call(&mut self, index: usize, mut running: ActiveCall) {
        // The state machine starts only calls of known tools.
        let Some(tool) = self.resources.tools.get(&running.call.name) else {
            return;
        };
        let call = &running.call;
        self.scope.hub.emit_with(|| tool_started(call));
        let cx = self.tool_context(&call.id, &self.calls_token);
        let sub_agent = tool.sub_agent.as_ref();
        running.sub_agent = sub_agent.map(|_| Arc::new(SubAgentCall::new(&self.scope, &call.id)));
        running.started = Instant::now();
        let span = spans::tool(call);
        let (scope, resources) = (Arc::clone(&self.scope), Arc::clone(&self.resources));
        let executed = running.clone().execute(scope, resources, cx);
        self.calls.insert(index, running);
        let task = async move {
            let result = match executed.await {
                Ok(outcome) => {
                    if !outcome.success {
                        spans::failed(&Span::current(), &"tool_error");
                    }
                    CallTaskResult::Finished(Box::new(outcome))
                }
                Err(error) => {
                    spans::failed(&Span::current(), &error.kind());
                    CallTaskResult::HookFailed(error)
                }
            };
            (index, result)
        };
        self.tasks.spawn(task.instrument(span));
    }

    fn tool_context(&self, call_id: &str, cancellation: &CancellationToken) -> ToolContext {
        let mut cx = ToolContext::new(self.scope.run, call_id);
        cx.depth = self.scope.depth;
        cx.cancellation = cancellation.child_token();
        cx.principal
            .clone_from(&self.resources.run_options.principal);
        cx.sandbox.clone_from(&self.resources.sandbox);
        cx.user = Arc::clone(&self.resources.agent.user);
        cx.progress = Arc::new(CallProgress {
            scope: Arc::clone(&self.scope),
            call_id: call_id.to_owned(),
        });
        cx
    }

    fn finish_call(&mut self, index: usize, outcome: Box<CallOutcome>) -> Result<(), RunError> {
        let call = self.calls.remove(&index);
        // It ends after the run is resumed.
        if let Some(ActiveCall { call, .. }) = call
            && outcome.suspended
        {
            if let Some(ledger) = outcome.sub_agent {
                let tool = call.name.clone();
                self.record(Fact::SubAgentSuspended { tool, ledger })?;
            }
            return self.record(Fact::CallSuspended { index });
        }
        self.record_outcome(index, outcome)
    }

    fn record_outcome(&mut self, index: usize, outcome: Box<CallOutcome>) -> Result<(), RunError> {
        self.record_budget_notices(Fact::BudgetExhausted)?;
        self.record(Fact::CallFinished { index, outcome })
    }

    /// Cancels the calls, waits until they have ended, and abandons those that don't end in time.
    async fn stop_calls(&mut self, reason: &str) -> Result<(), RunError> {
        let deadline = tokio::time::sleep(self.grace());
        tokio::pin!(deadline);
        self.calls_token.cancel();
        // Waiting calls were refused before the others end.
        self.emit_pending();
        loop {
            let joined = tokio::select! {
                joined = self.tasks.join_next() => joined,
                () = &mut deadline => break,
            };
            let (index, result) = match joined {
                Some(Ok(joined)) => joined,
                Some(Err(_)) => continue,
                None => break,
            };
            let outcome = match result {
                CallTaskResult::Finished(outcome) => outcome,
                CallTaskResult::Decided(..) => self.not_begun(reason),
                // It is abandoned below, with what the sub-agent used.
                CallTaskResult::HookFailed(_) if self.has_sub_agent(index) => continue,
                CallTaskResult::HookFailed(error) => not_run(error.to_string()),
            };
            self.finish_call(index, outcome)?;
        }
        self.tasks.shutdown().await;
        self.calls_token = self.scope.cancellation.child_token();
        let abandoned: Vec<_> = self
            .calls
            .iter()
            .map(|(index, call)| {
                if !self.machine.has_started(*index) {
                    return (*index, self.not_begun(reason));
                }
                let tool = self.resources.tools.get(&call.call.name);
                let repeatable = tool.is_some_and(|tool| tool.tool.properties().repeatable);
                let outcome = call.abandoned(reason, repeatable, &self.scope);
                (*index, Box::new(outcome))
            })
            .collect();
        for (index, outcome) in abandoned {
            self.finish_call(index, outcome)?;
        }
        Ok(())
    }

    /// Whether a call has started a sub-agent.
    fn has_sub_agent(&self, index: usize) -> bool {
        let call = self.calls.get(&index);
        call.is_some_and(|call| call.sub_agent.is_some())
    }

    /// The outcome of a call that was stopped before it began.
    fn not_begun(&self, reason: &str) -> Box<CallOutcome> {
        let text = format!("Not run: {reason} before this call had begun.");
        let mut outcome = not_run(text);
        // The decision is requested again when the run is resumed.
        outcome.suspended = self.scope.suspends_calls();
        outcome
    }

    /// Resumes the background sub-agents that worked when an earlier process ended.
    async fn resume_background_agents(&self, records: Vec<BackgroundAgentRecord>) {
        let calls = records.into_iter().filter_map(|record| {
            let tool = self.resources.tools.get(&record.tool)?;
            let sub_agent = Arc::clone(tool.sub_agent.as_ref()?);
            let cx = self.tool_context(&record.call_id, &self.scope.cancellation);
            let call = Arc::new(SubAgentCall::new(&self.scope, &record.call_id));
            // The call that started it, made again, finds its journal and continues.
            Some(async move { sub_agent.call(json!({"action": "start"}), cx, call).await })
        });
        tokio::select! {
            resumed = join_all(calls) => {
                for error in resumed.into_iter().filter_map(Result::err) {
                    let message = format!("A background sub-agent can't be resumed: {error}");
                    self.scope.hub.emit(EventKind::Warning { message });
                }
            }
            () = self.scope.cancellation.cancelled() => {}
        }
    }

    /// The grace for calls to end by themselves. Calls of a sub-agent end before their caller's.
    fn grace(&self) -> Duration {
        let depth = i32::try_from(self.scope.depth).unwrap_or(i32::MAX);
        CANCEL_GRACE.mul_f64(SUB_AGENT_GRACE.powi(depth))
    }

    /// Records the facts that have been received from outside.
    pub(super) fn receive_facts(&mut self) -> Result<(), RunError> {
        while let Ok(fact) = self.facts.try_recv() {
            self.record(*fact)?;
        }
        Ok(())
    }

    /// Records new budget notices; `exhausted` is the fact of an exhausted budget.
    pub(super) fn record_budget_notices(
        &mut self,
        exhausted: fn(BudgetState) -> Fact,
    ) -> Result<(), RunError> {
        for state in self.scope.budget.notices() {
            self.record(if state.is_exhausted() {
                exhausted(state)
            } else {
                Fact::BudgetNear(state)
            })?;
        }
        Ok(())
    }

    /// Appends a fact to the journal, emits its event, and applies it.
    pub(super) fn record(&mut self, fact: Fact) -> Result<(), RunError> {
        if let Some(journal) = &self.journal {
            journal.record(&fact)?;
        }
        let hub = &self.scope.hub;
        if hub.is_watched()
            && let Some(event) = self.machine.event(&fact)
        {
            hub.emit(event);
        }
        self.machine.apply(fact);
        Ok(())
    }

    /// Emits the events that precede the next other action.
    pub(super) fn emit_pending(&mut self) {
        while let Some(event) = self.machine.next_event() {
            self.scope.hub.emit(event);
        }
    }

    /// Waits until the recorded facts are on disk.
    pub(super) async fn commit(&self) -> Result<(), RunError> {
        match &self.journal {
            Some(journal) => journal.commit().await,
            None => Ok(()),
        }
    }
}

/// The outcome of a call that did not run.
fn not_run(text: String) -> Box<CallOutcome> {
    let outcome = CallOutcome::failure(text, Duration::ZERO, unix_seconds());
    Box::new(outcome)
}

/// Sleeps; forever without a limit.
async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => pending().await,
    }
}

/// Waits until a time budget, including the time of the last turn, is exhausted.
pub(super) async fn out_of_time(budget: &Account) -> BudgetState {
    loop {
        match budget.time_left(LAST_TURN_TIME) {
            Some((left, state)) if left.is_zero() => return state,
            limit => sleep(limit.map(|(left, _)| left)).await,
        }
    }
}

#[derive(Debug)]
struct CallProgress {
    scope: Arc<RunScope>,
    call_id: String,
}

impl Progress for CallProgress {
    fn output(&self, text: &str) {
        self.scope.hub.emit_with(|| EventKind::ToolOutputDelta {
            call_id: self.call_id.clone(),
            text: text.to_owned(),
        });
    }
}
