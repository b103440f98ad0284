//! The background sub-agents of one run: their tasks, ids and results. Their ends reach the driver as
//! facts, through the channel of user messages.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cantle_core::ledger::Ledger;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::journal::BackgroundAgentRecord;
use crate::progress::{ProgressState, SubAgentProgress};
use crate::rules::{Fact, SubAgentEnded};

/// Maximum number of sub-agents that work for one run at a time.
const MAX_WORKING: usize = 16;

/// The background sub-agents of one run.
#[derive(Debug)]
pub(crate) struct Background {
    facts: UnboundedSender<Box<Fact>>,
    /// Cancels all of them.
    cancellation: CancellationToken,
    /// Notified when one has ended.
    ended: Notify,
    state: Mutex<BackgroundState>,
}

#[derive(Debug, Default)]
struct BackgroundState {
    tasks: JoinSet<()>,
    /// By their numbers.
    agents: BTreeMap<u64, BackgroundAgent>,
    next_number: u64,
    /// Numbers of the sub-agents that are being started.
    starting: BTreeSet<u64>,
    /// Whether the run has ended and unfinished sub-agents continue with it.
    suspends: bool,
}

#[derive(Debug)]
struct BackgroundAgent {
    record: BackgroundAgentRecord,
    cancellation: CancellationToken,
    progress: Arc<SubAgentProgress>,
    /// Ids of the calls that wait for its end, or waited when an earlier process recorded it.
    waiting_calls: Vec<String>,
    result: Option<String>,
}

/// The end of a sub-agent's run, for the calling run's ledger.
#[derive(Debug, Default)]
pub(crate) struct SubAgentReport {
    pub(crate) ledger: Ledger,
    /// Whether the sub-agent was stopped with the calling run, and continues with it.
    pub(crate) suspended: bool,
}

/// The state of a background sub-agent.
#[derive(Debug)]
pub(crate) enum BackgroundStatus {
    /// It works: its id and progress.
    Working(String, Box<ProgressState>),
    /// It has ended: its id and result.
    Ended(String, String),
}

impl BackgroundState {
    /// The sub-agents of a tool, or the one with this id.
    fn select(&self, tool: &str, id: Option<&str>) -> Result<Vec<&BackgroundAgent>, String> {
        let agents = self.agents.values();
        let mut of_tool: Vec<_> = agents.filter(|it| it.record.tool == tool).collect();
        let Some(id) = id else { return Ok(of_tool) };
        let ids: Vec<_> = of_tool.iter().map(|it| it.record.id.as_str()).collect();
        if ids.is_empty() {
            return Err(format!("there is no `{id}`: none was started"));
        }
        if !ids.contains(&id) {
            return Err(format!("there is no `{id}`; there are: {}", ids.join(", ")));
        }
        of_tool.retain(|agent| agent.record.id == id);
        Ok(of_tool)
    }

    fn new_record(&mut self, tool: &str, call_id: &str) -> BackgroundAgentRecord {
        let number = self.next_number;
        self.next_number += 1;
        BackgroundAgentRecord {
            id: format!("{tool}-{}", number + 1),
            number,
            tool: tool.to_owned(),
            call_id: call_id.to_owned(),
        }
    }
}

impl BackgroundAgent {
    fn new(record: BackgroundAgentRecord) -> Self {
        Self {
            record,
            cancellation: CancellationToken::new(),
            progress: Arc::default(),
            waiting_calls: Vec::new(),
            result: None,
        }
    }

    fn is_working(&self) -> bool {
        self.result.is_none()
    }

    fn is_awaited_by(&self, call_id: &str) -> bool {
        self.waiting_calls.iter().any(|it| it == call_id)
    }

    fn status(&self) -> BackgroundStatus {
        let id = self.record.id.clone();
        match &self.result {
            Some(result) => BackgroundStatus::Ended(id, result.clone()),
            None => BackgroundStatus::Working(id, Box::new(self.progress.snapshot())),
        }
    }
}

impl Background {
    /// An empty registry; `cancellation` is that of the run.
    pub(crate) fn new(facts: UnboundedSender<Box<Fact>>, cancellation: &CancellationToken) -> Self {
        Self {
            facts,
            cancellation: cancellation.child_token(),
            ended: Notify::new(),
            state: Mutex::default(),
        }
    }

    /// Restores a sub-agent of an earlier process: with its result if it had ended. The number of one
    /// that had not is reserved.
    pub(crate) fn restore(&self, record: &BackgroundAgentRecord, ended: Option<&SubAgentEnded>) {
        let mut state = self.state.lock();
        state.next_number = state.next_number.max(record.number + 1);
        if let Some(ended) = ended {
            let mut agent = BackgroundAgent::new(record.clone());
            agent.result = Some(ended.result.clone());
            agent.waiting_calls.clone_from(&ended.awaited_by);
            state.agents.insert(record.number, agent);
        }
    }

    /// Returns the sub-agent that a call started.
    pub(crate) fn of_call(&self, call_id: &str) -> Option<BackgroundAgentRecord> {
        let state = self.state.lock();
        let mut agents = state.agents.values();
        let agent = agents.find(|agent| agent.record.call_id == call_id)?;
        Some(agent.record.clone())
    }

    /// Returns the record of a new sub-agent.
    pub(crate) fn new_record(&self, tool: &str, call_id: &str) -> BackgroundAgentRecord {
        self.state.lock().new_record(tool, call_id)
    }

    /// Returns the record of a new sub-agent, whose place is reserved until the guard is dropped: calls of one turn
    /// start side by side.
    ///
    /// # Errors
    /// The number of working sub-agents, if no other may start.
    pub(crate) fn reserve(
        &self,
        tool: &str,
        call_id: &str,
    ) -> Result<(BackgroundAgentRecord, StartingAgent<'_>), usize> {
        let mut state = self.state.lock();
        let agents = state.agents.iter().filter(|(_, it)| it.is_working());
        let begun = agents.filter(|(number, _)| !state.starting.contains(number));
        let working = begun.count() + state.starting.len();
        if working >= MAX_WORKING {
            return Err(working);
        }
        let record = state.new_record(tool, call_id);
        let number = record.number;
        state.starting.insert(number);
        let background = self;
        Ok((record, StartingAgent { background, number }))
    }

    /// Starts a sub-agent. `work` gets the token that cancels it, and calls [`ended`](Self::ended).
    pub(crate) fn spawn<F>(
        &self,
        record: BackgroundAgentRecord,
        progress: Arc<SubAgentProgress>,
        work: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let number = record.number;
        let mut agent = BackgroundAgent::new(record);
        agent.cancellation = self.cancellation.child_token();
        agent.progress = progress;
        let work = work(agent.cancellation.clone());
        let mut state = self.state.lock();
        // A set keeps tasks that have ended until they are joined.
        while state.tasks.try_join_next().is_some() {}
        state.agents.insert(number, agent);
        state.tasks.spawn(work);
    }

    /// Adds a sub-agent that has ended already.
    pub(crate) fn insert_ended(
        &self,
        record: BackgroundAgentRecord,
        result: String,
        report: Option<SubAgentReport>,
    ) {
        let number = record.number;
        let agent = BackgroundAgent::new(record);
        self.state.lock().agents.insert(number, agent);
        self.ended(number, result, report);
    }

    /// Records the end of a sub-agent.
    pub(crate) fn ended(&self, number: u64, result: String, report: Option<SubAgentReport>) {
        let mut state = self.state.lock();
        let Some(agent) = state.agents.get_mut(&number) else {
            return;
        };
        let report = report.unwrap_or_default();
        let (tool, ledger) = (agent.record.tool.clone(), Box::new(report.ledger));
        let fact = if report.suspended {
            Fact::SubAgentSuspended { tool, ledger }
        } else {
            Fact::SubAgentEnded(SubAgentEnded {
                id: agent.record.id.clone(),
                tool,
                result: result.clone(),
                awaited: !agent.waiting_calls.is_empty(),
                awaited_by: agent.waiting_calls.clone(),
                ledger,
            })
        };
        // Fails only after the end of the run.
        let _ = self.facts.send(Box::new(fact));
        agent.result = Some(result);
        drop(state);
        self.ended.notify_waiters();
    }

    /// Whether the run has ended and unfinished sub-agents continue with it.
    pub(crate) fn suspends(&self) -> bool {
        self.state.lock().suspends
    }

    /// Returns the status of one sub-agent of a tool, or of all.
    ///
    /// # Errors
    /// If there is none with this id; the message lists the ids.
    pub(crate) fn statuses(
        &self,
        tool: &str,
        id: Option<&str>,
    ) -> Result<Vec<BackgroundStatus>, String> {
        let state = self.state.lock();
        let agents = state.select(tool, id)?.into_iter();
        Ok(agents.map(BackgroundAgent::status).collect())
    }

    /// Waits until one sub-agent has ended: this one, or any that works. Returns those that have;
    /// `None` after the timeout. A call that an earlier process did not complete returns those it waited for.
    ///
    /// # Errors
    /// If there is none with this id; the message lists the ids.
    pub(crate) async fn wait(
        &self,
        tool: &str,
        id: Option<&str>,
        call_id: &str,
        timeout: Duration,
    ) -> Result<Option<Vec<BackgroundStatus>>, String> {
        let numbers: Vec<_> = {
            let state = self.state.lock();
            let agents = state.select(tool, id)?.into_iter();
            let awaited = agents
                .filter(|agent| id.is_some() || agent.is_working() || agent.is_awaited_by(call_id));
            awaited.map(|agent| agent.record.number).collect()
        };
        if numbers.is_empty() {
            return self.statuses(tool, None).map(Some);
        }
        let waiting = WaitingCall::new(self, call_id, numbers);
        let ended = async {
            loop {
                // Before the look, so that no end is missed.
                let next_end = self.ended.notified();
                let ended = waiting.ended();
                if !ended.is_empty() {
                    return ended;
                }
                next_end.await;
            }
        };
        Ok(tokio::time::timeout(timeout, ended).await.ok())
    }

    /// Cancels one sub-agent.
    ///
    /// # Errors
    /// If there is none with this id; the message lists the ids.
    pub(crate) fn stop(&self, tool: &str, id: &str) -> Result<(), String> {
        for agent in self.state.lock().select(tool, Some(id))? {
            agent.cancellation.cancel();
        }
        Ok(())
    }

    /// Ends the working sub-agents at the end of the run: cancels them, and aborts them after the
    /// grace. If `suspend`, they continue when the run is resumed.
    pub(crate) async fn end(&self, suspend: bool, grace: Duration) {
        let mut tasks = {
            let mut state = self.state.lock();
            state.suspends = suspend;
            std::mem::take(&mut state.tasks)
        };
        if tasks.is_empty() {
            return;
        }
        self.cancellation.cancel();
        let all = async { while tasks.join_next().await.is_some() {} };
        // The rest is aborted below.
        let _ = tokio::time::timeout(grace, all).await;
        tasks.shutdown().await;
        let aborted: Vec<_> = {
            let state = self.state.lock();
            let agents = state.agents.iter().filter(|(_, agent)| agent.is_working());
            agents
                .map(|(number, agent)| (*number, agent.progress.ledger()))
                .collect()
        };
        for (number, ledger) in aborted {
            let report = SubAgentReport {
                ledger,
                suspended: suspend,
            };
            let result = "The sub-agent was stopped with the run that called it.".to_owned();
            self.ended(number, result, Some(report));
        }
    }

    /// Aborts all tasks.
    pub(crate) fn abort(&self) {
        let tasks = std::mem::take(&mut self.state.lock().tasks);
        drop(tasks);
    }
}

/// The place of a sub-agent that is being started.
pub(crate) struct StartingAgent<'a> {
    background: &'a Background,
    number: u64,
}

impl Drop for StartingAgent<'_> {
    fn drop(&mut self) {
        self.background.state.lock().starting.remove(&self.number);
    }
}

/// A call that waits for the end of sub-agents, and returns their results.
struct WaitingCall<'a> {
    background: &'a Background,
    call_id: &'a str,
    numbers: Vec<u64>,
}

impl<'a> WaitingCall<'a> {
    fn new(background: &'a Background, call_id: &'a str, numbers: Vec<u64>) -> Self {
        let call = Self {
            background,
            call_id,
            numbers,
        };
        call.each(|agent| agent.waiting_calls.push(call_id.to_owned()));
        call
    }

    fn each(&self, mut visit: impl FnMut(&mut BackgroundAgent)) {
        let mut state = self.background.state.lock();
        for number in &self.numbers {
            if let Some(agent) = state.agents.get_mut(number) {
                visit(agent);
            }
        }
    }

    fn ended(&self) -> Vec<BackgroundStatus> {
        let mut ended = Vec::new();
        self.each(|agent| {
            if !agent.is_working() {
                ended.push(agent.status());
            }
        });
        ended
    }
}

impl Drop for WaitingCall<'_> {
    fn drop(&mut self) {
        self.each(|agent| agent.waiting_calls.retain(|it| it != self.call_id));
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use tokio::sync::mpsc;

    use super::*;

    /// Starts a sub-agent that works until it is stopped.
    fn spawn(background: &Background, record: &BackgroundAgentRecord) {
        background.spawn(record.clone(), Arc::default(), |stop| async move {
            stop.cancelled().await;
        });
    }

    #[tokio::test]
    async fn a_repeated_wait_returns_what_had_ended_before() {
        const TIMEOUT: Duration = Duration::from_secs(60);
        let (facts, mut received) = mpsc::unbounded_channel();
        let killed = Background::new(facts, &CancellationToken::new());
        let records = ["first", "second"].map(|call_id| killed.new_record("helper", call_id));
        for record in &records {
            spawn(&killed, record);
        }
        let mut wait = Box::pin(killed.wait("helper", None, "wait", TIMEOUT));
        assert!(wait.as_mut().now_or_never().is_none());
        killed.ended(records[0].number, "helped".to_owned(), None);
        let Fact::SubAgentEnded(ended) = *received.try_recv().unwrap() else {
            panic!("the sub-agent has not ended");
        };

        let (facts, _received) = mpsc::unbounded_channel();
        let resumed = Background::new(facts, &CancellationToken::new());
        resumed.restore(&records[0], Some(&ended));
        spawn(&resumed, &records[1]);
        let other = resumed.wait("helper", None, "other", TIMEOUT);
        assert!(other.now_or_never().is_none());
        let repeated = resumed.wait("helper", None, "wait", TIMEOUT).await;
        let statuses = repeated.unwrap().unwrap();
        assert!(
            matches!(&*statuses, [BackgroundStatus::Ended(id, result)] if id == "helper-1" && result == "helped"),
            "{statuses:?}"
        );
    }
}
