//! Performs what the machine says: asks the model, runs calls, writes facts down, tells those who
//! watch.
//!
//! Every fact is in the journal before the machine hears it, and on the disk before anything is done
//! that follows from it.

mod below;
mod gate;
mod model;

use std::collections::HashMap;
use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::event::EventKind;
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::llm::{LlmClient, ToolSpecs};
use cantle_core::message::ToolCall;
use cantle_core::sandbox::Sandbox;
use cantle_core::tool::{AskUser, DynTool};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, Span};

pub(crate) use self::gate::{Asked, Gate};
use crate::approval::Decision;
use crate::budget::{Account, Notice};
use crate::calls::{self, Call};
use crate::error::{RunError, RunErrorKind};
use crate::hub::Hub;
use crate::journal::{Journal, JournalError, Left, RunStore};
use crate::machine::{Action, CallOutcome, CallStart, End, Fact, Machine};
use crate::run::Ending;
use crate::skills::Skills;
use crate::spans;
use crate::sub_agent::{Background, Caller};
use crate::time::unix_seconds;

/// How long the last turn may take once a budget of time is spent.
const LAST_TURN: Duration = Duration::from_secs(60);

/// What to do where a run can't be written down.
pub(crate) const JOURNAL_ADVICE: &str =
    "Make room on the disk or the directory writable; then the run can be resumed.";

/// What a run needs besides the machine.
pub(crate) struct Driver {
    pub(crate) run: RunId,
    pub(crate) depth: u32,
    pub(crate) client: Arc<dyn LlmClient>,
    pub(crate) tools: Arc<HashMap<String, DynTool>>,
    pub(crate) finish_tools: Vec<String>,
    pub(crate) specs: ToolSpecs,
    pub(crate) sandbox: Option<Arc<dyn Sandbox>>,
    pub(crate) user: Arc<dyn AskUser>,
    pub(crate) hub: Arc<Hub>,
    pub(crate) ending: Ending,
    pub(crate) gate: Arc<Gate>,
    pub(crate) account: Arc<Account>,
    pub(crate) journal: Option<Journal>,
    /// Where runs are kept, and with this one those of its sub-agents.
    pub(crate) store: Option<RunStore>,
    pub(crate) skills: Option<Arc<Skills>>,
    /// The sub-agents that work in the background.
    pub(crate) background: Arc<Background>,
    /// Those of an earlier process that did not end in it.
    pub(crate) left: Vec<Left>,
    /// What is told meanwhile, by the user and of sub-agents.
    pub(crate) said: UnboundedReceiver<Fact>,
}

/// The calls that are being decided on or running.
struct Running {
    /// Tells the calls to end.
    token: CancellationToken,
    tasks: JoinSet<(usize, Step)>,
    calls: HashMap<usize, Pending>,
    /// Calls that start as soon as what is known of them is on the disk.
    ready: Vec<Ready>,
}

/// A call that is being decided on or running.
struct Pending {
    call: ToolCall,
    since: Instant,
    /// What it was given, once it runs.
    caller: Option<Arc<Caller>>,
}

/// A call that starts as soon as what is known of it is on the disk.
struct Ready {
    index: usize,
    call: ToolCall,
    /// Whether its arguments are others than the model's.
    edited: bool,
}

/// What came of a task.
enum Step {
    /// A call may run, or not.
    Decided(Decision),
    /// A call ended.
    Finished(Box<CallOutcome>),
    /// A hook of a call panicked.
    Failed(RunError),
}

impl From<JournalError> for RunError {
    fn from(error: JournalError) -> Self {
        Self::new(RunErrorKind::Journal, error.to_string()).with_advice(JOURNAL_ADVICE)
    }
}

impl Driver {
    /// Drives the machine to its end.
    pub(crate) async fn drive(&mut self, machine: &mut Machine) -> End {
        let mut running = Running {
            token: self.ending.cancellation.child_token(),
            tasks: JoinSet::new(),
            calls: HashMap::new(),
            ready: Vec::new(),
        };
        if !self.left.is_empty() {
            self.take_up().await;
        }
        let end = self.loop_until_end(&mut running, machine).await;
        running.tasks.shutdown().await;
        let ended = self.end_background(machine, end.is_ok()).await;
        let ended = match ended {
            Ok(()) => self.commit().await,
            Err(error) => Err(error),
        };
        match ended {
            Ok(()) => end,
            // What ended it first is what there is to say.
            Err(error) => end.and(Err(error)),
        }
    }

    async fn loop_until_end(&mut self, running: &mut Running, machine: &mut Machine) -> End {
        loop {
            while let Some(action) = machine.next() {
                match action {
                    Action::AskModel { turn } => self.ask_model(machine, turn).await?,
                    Action::Summarize { attempt } => self.summarize(machine, attempt).await?,
                    Action::StartCall(start) => self.admit(running, machine, start)?,
                    Action::CallRefused { call, text } => {
                        self.emit_finished(&call, &text, Duration::ZERO);
                    }
                    Action::Say { text } => self.hub.emit(EventKind::UserMessage { text }),
                    Action::TurnDropped { turn } => self.hub.emit(EventKind::TurnDropped { turn }),
                    Action::HistorySummarized { replaced } => {
                        self.hub.emit(EventKind::HistorySummarized { replaced });
                    }
                    Action::End(end) => return end,
                }
            }
            self.start_ready(running, machine).await?;
            self.wait(running, machine).await?;
        }
    }

    /// Waits for the next thing that happens.
    async fn wait(&mut self, running: &mut Running, machine: &mut Machine) -> Result<(), RunError> {
        let grace = if machine.is_last_turn() {
            LAST_TURN
        } else {
            Duration::ZERO
        };
        let time = self.account.time_left(grace);
        tokio::select! {
            // A call that ends because it was cancelled must not start the next one.
            biased;
            () = self.ending.cancellation.cancelled() => {
                self.tell(machine, Fact::Cancelled { call: None })?;
                self.wind_down(running, machine, "The run was cancelled").await
            }
            joined = running.tasks.join_next() => match joined {
                Some(Ok((index, step))) => self.step(running, machine, index, step),
                // `Call::run` catches panics, and nothing aborts a task before this loop ends.
                Some(Err(_)) | None => {
                    Err(RunError::new(RunErrorKind::Internal, "a tool call was lost"))
                }
            },
            Some(fact) = self.said.recv() => self.tell(machine, fact),
            () = over(time.map(|(left, _)| left)) => {
                match time {
                    Some((_, state)) if machine.is_last_turn() => {
                        self.tell(machine, Fact::OutOfTime { state, call: None })?;
                    }
                    _ => self.note_budgets(machine)?,
                }
                self.wind_down(running, machine, "The run's time was over").await
            }
        }
    }

    fn step(
        &self,
        running: &mut Running,
        machine: &mut Machine,
        index: usize,
        step: Step,
    ) -> Result<(), RunError> {
        match step {
            Step::Finished(outcome) => self.finish(running, machine, index, outcome),
            Step::Decided(decision) => {
                let Some(Pending { call, .. }) = running.calls.remove(&index) else {
                    return Ok(());
                };
                let fact = Fact::CallDecided {
                    index,
                    decision: decision.clone(),
                };
                self.tell(machine, fact)?;
                self.decided(running, machine, index, call, decision)
            }
            Step::Failed(error) => Err(error),
        }
    }

    /// Starts a call, or asks who has to be asked first.
    fn admit(
        &self,
        running: &mut Running,
        machine: &mut Machine,
        start: CallStart,
    ) -> Result<(), RunError> {
        let CallStart {
            index,
            call,
            decision,
            again,
        } = start;
        match decision {
            Some(decision) => self.decided(running, machine, index, call, decision),
            None if again || self.gate.is_open() => {
                running.ready.push(Ready {
                    index,
                    call,
                    edited: false,
                });
                Ok(())
            }
            None => {
                let gate = Arc::clone(&self.gate);
                let hub = Arc::clone(&self.hub);
                let tools = Arc::clone(&self.tools);
                let token = running.token.clone();
                let pending = Pending {
                    call: call.clone(),
                    since: Instant::now(),
                    caller: None,
                };
                running.calls.insert(index, pending);
                running.tasks.spawn(async move {
                    let decided = gate.decide(&call, &tools, &hub, &token).await;
                    (index, decided.map_or_else(Step::Failed, Step::Decided))
                });
                Ok(())
            }
        }
    }

    fn decided(
        &self,
        running: &mut Running,
        machine: &mut Machine,
        index: usize,
        mut call: ToolCall,
        decision: Decision,
    ) -> Result<(), RunError> {
        let edited = matches!(decision, Decision::Edit { .. });
        match decision {
            Decision::Approve => {}
            Decision::Edit { arguments } => call.arguments = arguments,
            Decision::Reject { reason } => {
                let text = format!("Not run: {reason}");
                self.emit_finished(&call, &text, Duration::ZERO);
                let outcome = CallOutcome::failure(text, Duration::ZERO, unix_seconds());
                return self.tell_finished(machine, index, Box::new(outcome));
            }
        }
        running.ready.push(Ready {
            index,
            call,
            edited,
        });
        Ok(())
    }

    /// Starts the calls that may run, once it is on the disk that they do.
    async fn start_ready(
        &self,
        running: &mut Running,
        machine: &mut Machine,
    ) -> Result<(), RunError> {
        let ready = std::mem::take(&mut running.ready);
        for Ready { index, .. } in &ready {
            self.account.tool_call();
            let fact = Fact::CallStarted {
                index: *index,
                time: unix_seconds(),
            };
            self.tell(machine, fact)?;
        }
        self.commit().await?;
        for ready in ready {
            self.start(running, ready);
        }
        Ok(())
    }

    fn start(&self, running: &mut Running, ready: Ready) {
        let Ready {
            index,
            call,
            edited,
        } = ready;
        // The machine starts only calls of tools it was told of.
        let Some(tool) = self.tools.get(&call.name).cloned() else {
            return;
        };
        self.hub.emit(EventKind::ToolStarted {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            arguments: gate::shown(&call),
        });
        let (cx, caller) = self.context(&call.id, &running.token);
        let pending = Pending {
            call: call.clone(),
            since: Instant::now(),
            caller: Some(Arc::clone(&caller)),
        };
        running.calls.insert(index, pending);
        let call = Call {
            finishes: self.finish_tools.contains(&call.name),
            tool,
            call,
            cx,
            hooks: self.gate.hooks.clone(),
            edited,
            caller,
        };
        let span = spans::tool(&call.call);
        let call = async move {
            let step = match call.run().await {
                Ok(outcome) => {
                    if !outcome.success {
                        spans::failed(&Span::current(), &"tool_error");
                    }
                    Step::Finished(Box::new(outcome))
                }
                Err(error) => {
                    spans::failed(&Span::current(), &error.kind());
                    Step::Failed(error)
                }
            };
            (index, step)
        };
        running.tasks.spawn(call.instrument(span));
    }

    fn emit_finished(&self, call: &ToolCall, result: &str, duration: Duration) {
        self.hub.emit(EventKind::ToolFinished {
            call_id: call.id.clone(),
            tool: call.name.clone(),
            result: result.to_owned(),
            success: false,
            arguments_valid: true,
            duration,
        });
    }

    fn finish(
        &self,
        running: &mut Running,
        machine: &mut Machine,
        index: usize,
        outcome: Box<CallOutcome>,
    ) -> Result<(), RunError> {
        if let Some(Pending { call, .. }) = running.calls.remove(&index) {
            let tool = call.name.clone();
            self.hub.emit(EventKind::ToolFinished {
                call_id: call.id,
                tool: call.name,
                result: outcome.content.text(),
                success: outcome.success,
                arguments_valid: outcome.arguments_valid,
                duration: outcome.duration,
            });
            if outcome.open {
                return self.suspend(machine, index, tool, outcome.sub_agent);
            }
        }
        self.tell_finished(machine, index, outcome)
    }

    /// Leaves a call open that was stopped with the run.
    fn suspend(
        &self,
        machine: &mut Machine,
        index: usize,
        tool: String,
        used: Option<Box<Ledger>>,
    ) -> Result<(), RunError> {
        if let Some(ledger) = used {
            self.tell(machine, Fact::SubAgentLeft { tool, ledger })?;
        }
        self.tell(machine, Fact::CallSuspended { index })
    }

    fn tell_finished(
        &self,
        machine: &mut Machine,
        index: usize,
        outcome: Box<CallOutcome>,
    ) -> Result<(), RunError> {
        self.note_budgets(machine)?;
        self.tell(machine, Fact::CallFinished { index, outcome })
    }

    /// Lets calls that were told to end do so by themselves, and abandons those that don't.
    async fn wind_down(
        &self,
        running: &mut Running,
        machine: &mut Machine,
        why: &str,
    ) -> Result<(), RunError> {
        let deadline = tokio::time::sleep(self.grace());
        tokio::pin!(deadline);
        running.token.cancel();
        loop {
            tokio::select! {
                joined = running.tasks.join_next() => match joined {
                    Some(Ok((index, Step::Finished(outcome)))) => {
                        self.finish(running, machine, index, outcome)?;
                    }
                    // It was told to end before it had begun.
                    Some(Ok((index, Step::Decided(_)))) => {
                        let text = format!("Not run: {why} before this call had begun.");
                        let mut outcome =
                            CallOutcome::failure(text, Duration::ZERO, unix_seconds());
                        // Where the run goes on, it is decided on then.
                        outcome.open = self.store.is_some() && self.ending.leaves_open();
                        self.finish(running, machine, index, Box::new(outcome))?;
                    }
                    Some(Ok((index, Step::Failed(error)))) => {
                        let text = error.to_string();
                        let outcome = CallOutcome::failure(text, Duration::ZERO, unix_seconds());
                        self.finish(running, machine, index, Box::new(outcome))?;
                    }
                    Some(Err(_)) => {}
                    None => break,
                },
                () = &mut deadline => break,
            }
        }
        running.tasks.shutdown().await;
        running.token = self.ending.cancellation.child_token();
        let mut abandoned: Vec<_> = running
            .calls
            .iter()
            .map(|(index, pending)| {
                let tool = self.tools.get(&pending.call.name);
                let repeatable = tool.is_some_and(DynTool::repeatable);
                let caller = pending.caller.as_deref();
                let duration = pending.since.elapsed();
                let outcome = calls::abandoned(why, duration, repeatable, caller);
                (*index, outcome)
            })
            .collect();
        abandoned.sort_unstable_by_key(|(index, _)| *index);
        for (index, outcome) in abandoned {
            self.finish(running, machine, index, Box::new(outcome))?;
        }
        Ok(())
    }

    /// Tells the machine what was told meanwhile.
    fn take_said(&mut self, machine: &mut Machine) -> Result<(), RunError> {
        while let Ok(fact) = self.said.try_recv() {
            self.tell(machine, fact)?;
        }
        Ok(())
    }

    /// Tells the machine what it must know of budgets now.
    fn note_budgets(&self, machine: &mut Machine) -> Result<(), RunError> {
        for notice in self.account.notices() {
            let fact = match notice {
                Notice::Near(state) => Fact::BudgetNear(state),
                Notice::Spent(state) => Fact::BudgetSpent(state),
            };
            self.tell(machine, fact)?;
        }
        Ok(())
    }

    /// Writes a fact down, and tells the machine.
    fn tell(&self, machine: &mut Machine, fact: Fact) -> Result<(), RunError> {
        if let Some(journal) = &self.journal {
            journal.record(&fact)?;
        }
        machine.apply(fact);
        Ok(())
    }

    /// Waits until what was written down is on the disk.
    async fn commit(&self) -> Result<(), RunError> {
        match &self.journal {
            Some(journal) => Ok(journal.commit().await?),
            None => Ok(()),
        }
    }
}

/// Waits until this much time is over; for ever, where it is not limited.
async fn over(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => pending().await,
    }
}
