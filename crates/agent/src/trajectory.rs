//! The messages of a kept run and its sub-agents, for exports.

use std::collections::HashMap;

use cantle_core::ledger::ModelCall;
use cantle_core::message::{AssistantMessage, Message, SharedMessage};
use cantle_core::tool::ToolSpec;

use crate::events::MAX_DEPTH;
use crate::journal::{KeptRun, RunStore, StoreError};
use crate::rules::{Fact, is_summary};

/// All messages of a kept run.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Trajectory {
    /// The run.
    pub run: KeptRun,
    /// The call of the parent's model that started this run, if it is a sub-agent's.
    pub call_id: Option<String>,
    /// The tools that the model could call.
    pub tools: Vec<ToolSpec>,
    /// The conversations that the model had, each with the instructions: one up to each summary, and the last one. Turns
    /// that were dropped are in none.
    pub conversations: Vec<Vec<Message>>,
    /// Number of messages at the head of the first conversation that the run began with, the task being the last.
    pub given: usize,
    /// The model calls, by the ids of their [`AssistantMessage`]s.
    pub model_calls: HashMap<String, ModelCall>,
    /// The runs of sub-agents, in the order of their calls.
    pub sub_agents: Vec<Trajectory>,
}

impl Trajectory {
    /// Returns the messages in order, each once: summaries follow what they replaced.
    pub fn messages(&self) -> impl Iterator<Item = &Message> {
        let conversations = self.conversations.iter().enumerate();
        conversations.flat_map(|(index, messages)| {
            let repeated = match index {
                0 => 0,
                _ => messages.iter().take_while(|it| !is_summary(it)).count(),
            };
            messages.iter().skip(repeated)
        })
    }
}

impl RunStore {
    /// Returns the messages of a run of this store, and of its sub-agents. Blocks.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`](crate::StoreErrorKind::NotFound), or an error of reading a journal.
    pub fn trajectory(&self, run: KeptRun) -> Result<Trajectory, StoreError> {
        self.trajectory_of(run, None, 0)
    }

    fn trajectory_of(
        &self,
        run: KeptRun,
        call_id: Option<String>,
        depth: u32,
    ) -> Result<Trajectory, StoreError> {
        let content = self.read(run.run)?;
        let (tools, given) = (content.header.tool_specs(), content.header.messages.len());
        let answers = content.facts.iter().filter_map(|fact| match fact {
            Fact::ModelAnswered { message, call, .. } => Some((message.id.clone(), call.clone())),
            _ => None,
        });
        let model_calls = answers.collect();
        let (latest, replaced, _) = content.replay().into_parts();
        let conversations = conversations(&latest, &replaced);
        let mut trajectory = Trajectory {
            run,
            call_id,
            tools,
            conversations,
            given,
            model_calls,
            sub_agents: Vec::new(),
        };
        if depth < MAX_DEPTH {
            trajectory.sub_agents = self.sub_agents_of(&trajectory, depth + 1)?;
        }
        Ok(trajectory)
    }

    fn sub_agents_of(
        &self,
        parent: &Trajectory,
        depth: u32,
    ) -> Result<Vec<Trajectory>, StoreError> {
        let mut sub_agents = Vec::new();
        let answers = parent.messages().filter_map(|message| match message {
            Message::Assistant(message) => Some(message),
            _ => None,
        });
        for call in answers.flat_map(AssistantMessage::tool_calls) {
            let store = self.of_call(parent.run.run, &call.id);
            for run in store.list()?.0.into_iter().rev() {
                sub_agents.push(store.trajectory_of(run, Some(call.id.clone()), depth)?);
            }
        }
        Ok(sub_agents)
    }
}

/// Returns whole conversations: each part that a summary replaced followed what precedes the summary.
fn conversations(latest: &[SharedMessage], replaced: &[Vec<SharedMessage>]) -> Vec<Vec<Message>> {
    let kept = match replaced.is_empty() {
        true => 0,
        false => latest.iter().take_while(|it| !is_summary(it)).count(),
    };
    let whole = |part: &Vec<SharedMessage>| {
        let messages = latest.iter().take(kept).chain(part);
        messages.map(|message| Message::clone(message)).collect()
    };
    let last = latest.iter().map(|message| Message::clone(message));
    let replaced = replaced.iter().map(whole);
    replaced.chain([last.collect()]).collect()
}
