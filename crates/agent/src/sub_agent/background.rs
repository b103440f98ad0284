//! The sub-agents that work for one run in the background: each is a task, and what the model can ask
//! about. Whoever drives the run hears of their ends as facts, on the way that the user's words take.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::call::Done;
use super::progress::Progress;
use super::words;
use crate::journal::Left;
use crate::machine::{Fact, SubAgentEnded};

/// Sub-agents that may work for one run at a time.
const MAX_WORKING: usize = 16;

/// The sub-agents that one run has begun in the background. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Background {
    /// Where their ends are told.
    heard: UnboundedSender<Fact>,
    /// Tells all of them to end.
    token: CancellationToken,
    changed: watch::Sender<()>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    tasks: JoinSet<()>,
    /// By their numbers.
    agents: BTreeMap<u64, Agent>,
    next: u64,
    /// Whether the run has ended, and what it leaves goes on with it.
    left_open: bool,
}

#[derive(Debug)]
struct Agent {
    left: Left,
    token: CancellationToken,
    progress: Arc<Progress>,
    /// Calls that wait for its end.
    waiting: usize,
    /// What came of it.
    result: Option<String>,
}

impl Background {
    /// Nobody yet; `cancellation` is that of the run.
    pub(crate) fn new(heard: UnboundedSender<Fact>, cancellation: &CancellationToken) -> Self {
        Self {
            heard,
            token: cancellation.child_token(),
            changed: watch::Sender::new(()),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes one that ended before the run went on in this process.
    pub(crate) fn had_ended(&self, left: Left, result: String) {
        let mut state = self.state();
        state.next = state.next.max(left.number + 1);
        let agent = Agent {
            token: CancellationToken::new(),
            progress: Arc::default(),
            waiting: 0,
            result: Some(result),
            left,
        };
        state.agents.insert(agent.left.number, agent);
    }

    /// Makes sure that nobody new gets the number of one that was there before.
    pub(crate) fn had_begun(&self, left: &Left) {
        let mut state = self.state();
        state.next = state.next.max(left.number + 1);
    }

    /// The one that a call began.
    pub(super) fn of_call(&self, call_id: &str) -> Option<Left> {
        let state = self.state();
        let mut agents = state.agents.values();
        let agent = agents.find(|agent| agent.left.call_id == call_id)?;
        Some(agent.left.clone())
    }

    /// Why no other one may begin.
    pub(super) fn is_full(&self) -> Option<String> {
        let state = self.state();
        let working = state.agents.values().filter(|it| it.result.is_none());
        let working = working.count();
        (working >= MAX_WORKING).then(|| {
            format!("{working} sub-agents work for you already. Wait for one of them, or stop one")
        })
    }

    /// A name for a new one.
    pub(super) fn name(&self, tool: &str, call_id: &str) -> Left {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        Left {
            id: format!("{tool}-{}", number + 1),
            number,
            tool: tool.to_owned(),
            call_id: call_id.to_owned(),
        }
    }

    /// Begins to attend to one. `work` gets the token that ends it.
    pub(super) fn attend<F>(
        self: &Arc<Self>,
        left: Left,
        progress: Arc<Progress>,
        work: impl FnOnce(CancellationToken) -> F,
    ) where
        F: Future<Output = Done> + Send + 'static,
    {
        let token = self.token.child_token();
        let work = work(token.clone());
        let (this, number) = (Arc::downgrade(self), left.number);
        let mut state = self.state();
        let agent = Agent {
            left,
            token,
            progress,
            waiting: 0,
            result: None,
        };
        state.agents.insert(number, agent);
        state.tasks.spawn(async move {
            let done = work.await;
            if let Some(this) = this.upgrade() {
                this.ended(number, done);
            }
        });
    }

    /// Takes in one that has ended already.
    pub(super) fn take_in(&self, left: Left, done: Done) {
        let number = left.number;
        let agent = Agent {
            left,
            token: CancellationToken::new(),
            progress: Arc::default(),
            waiting: 0,
            result: None,
        };
        self.state().agents.insert(number, agent);
        self.ended(number, done);
    }

    fn ended(&self, number: u64, done: Done) {
        let mut state = self.state();
        let Some(agent) = state.agents.get_mut(&number) else {
            return;
        };
        let ledger = Box::new(done.ledger.unwrap_or_default());
        let tool = agent.left.tool.clone();
        let fact = if done.open {
            Fact::SubAgentLeft { tool, ledger }
        } else {
            Fact::SubAgentEnded(SubAgentEnded {
                id: agent.left.id.clone(),
                tool,
                result: done.said.text.clone(),
                awaited: agent.waiting > 0,
                ledger,
            })
        };
        // Where nobody listens any more, the run is gone.
        let _ = self.heard.send(fact);
        agent.result = Some(done.said.text);
        drop(state);
        self.changed.send_replace(());
    }

    /// Whether one that is told to end goes on with the run.
    pub(super) fn leaves_open(&self) -> bool {
        self.state().left_open
    }

    /// How those of a tool stand, or one of them.
    ///
    /// # Errors
    /// Where there is none of that id; names those that there are.
    pub(super) fn look(&self, tool: &str, id: Option<&str>) -> Result<String, String> {
        let numbers = self.numbers(tool, id)?;
        let state = self.state();
        let agents = numbers.iter().filter_map(|number| state.agents.get(number));
        let texts: Vec<_> = agents.map(Agent::text).collect();
        if texts.is_empty() {
            return Ok("None has begun.".to_owned());
        }
        Ok(texts.join("\n"))
    }

    /// Waits until one has ended, or without an id, until one of those that work has; `None` where it
    /// has not by then.
    pub(super) async fn wait(
        &self,
        tool: &str,
        id: Option<&str>,
        time: Duration,
    ) -> Result<Option<String>, String> {
        let mut numbers = self.numbers(tool, id)?;
        if id.is_none() {
            let state = self.state();
            let works = |number: &u64| state.agents.get(number).is_some_and(Agent::works);
            numbers.retain(works);
            drop(state);
            if numbers.is_empty() {
                return self.look(tool, None).map(Some);
            }
        }
        let mut changed = self.changed.subscribe();
        let waiting = Waiting::new(self, numbers);
        let ended = async {
            loop {
                if let Some(text) = waiting.ended() {
                    return Some(text);
                }
                // The sender lives as long as this does.
                changed.changed().await.ok()?;
            }
        };
        Ok(tokio::time::timeout(time, ended).await.ok().flatten())
    }

    /// Tells one to end.
    ///
    /// # Errors
    /// Where there is none of that id; names those that there are.
    pub(super) fn stop(&self, tool: &str, id: &str) -> Result<(), String> {
        let numbers = self.numbers(tool, Some(id))?;
        let state = self.state();
        for agent in numbers.iter().filter_map(|number| state.agents.get(number)) {
            agent.token.cancel();
        }
        Ok(())
    }

    fn numbers(&self, tool: &str, id: Option<&str>) -> Result<Vec<u64>, String> {
        let state = self.state();
        let of_tool = state.agents.iter().filter(|(_, it)| it.left.tool == tool);
        let Some(id) = id else {
            return Ok(of_tool.map(|(number, _)| *number).collect());
        };
        let mut ids = Vec::new();
        for (number, agent) in of_tool {
            if agent.left.id == id {
                return Ok(vec![*number]);
            }
            ids.push(agent.left.id.as_str());
        }
        if ids.is_empty() {
            return Err(format!("there is no `{id}`: none has begun"));
        }
        Err(format!("there is no `{id}`; there are: {}", ids.join(", ")))
    }

    /// Ends those that work, at the end of the run: lets them do so by themselves, then abandons them.
    /// Where the run can go on, they go on with it.
    pub(crate) async fn end(&self, leave_open: bool, grace: Duration) {
        let mut tasks = {
            let mut state = self.state();
            state.left_open = leave_open;
            std::mem::take(&mut state.tasks)
        };
        if tasks.is_empty() {
            return;
        }
        self.token.cancel();
        let all = async { while tasks.join_next().await.is_some() {} };
        // Those that took too long are seen to below.
        let _ = tokio::time::timeout(grace, all).await;
        tasks.shutdown().await;
        let working: Vec<_> = {
            let state = self.state();
            let agents = state.agents.iter().filter(|(_, agent)| agent.works());
            agents
                .map(|(number, agent)| (*number, agent.progress.ledger()))
                .collect()
        };
        for (number, ledger) in working {
            let mut done = Done::not_begun("it was stopped with the run of its caller");
            done.ledger = ledger;
            done.open = leave_open;
            self.ended(number, done);
        }
    }
}

impl Agent {
    fn works(&self) -> bool {
        self.result.is_none()
    }

    fn text(&self) -> String {
        match &self.result {
            Some(result) => words::ended(&self.left.id, result),
            None => words::working(&self.left.id, &self.progress.seen()),
        }
    }
}

/// A call that waits for the end of one of these.
struct Waiting<'a> {
    background: &'a Background,
    numbers: Vec<u64>,
}

impl<'a> Waiting<'a> {
    fn new(background: &'a Background, numbers: Vec<u64>) -> Self {
        let mut state = background.state();
        for number in &numbers {
            if let Some(agent) = state.agents.get_mut(number) {
                agent.waiting += 1;
            }
        }
        drop(state);
        Self {
            background,
            numbers,
        }
    }

    /// Those that have ended.
    fn ended(&self) -> Option<String> {
        let state = self.background.state();
        let agents = self.numbers.iter().filter_map(|it| state.agents.get(it));
        let ended = agents.filter(|agent| !agent.works());
        let texts: Vec<_> = ended.map(Agent::text).collect();
        (!texts.is_empty()).then(|| texts.join("\n"))
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.background.state();
        for number in &self.numbers {
            if let Some(agent) = state.agents.get_mut(number) {
                agent.waiting -= 1;
            }
        }
    }
}
