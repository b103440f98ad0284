//! What a run that finished came to, as its journal alone tells.

use std::time::Duration;

use cantle_core::event::Finish;
use cantle_core::ledger::{CallPurpose, Ledger};
use cantle_core::sandbox::SandboxHandle;

use super::record::Files;
use crate::machine::Fact;

/// A run that finished.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) finish: Finish,
    /// The files that it handed over.
    pub(crate) files: Files,
    /// Its sandbox, which may still be there.
    pub(crate) sandbox: Option<SandboxHandle>,
    pub(crate) ledger: Ledger,
}

/// Accounts from facts alone, without the rules of the loop: every model call, and the tool calls that
/// ended.
#[derive(Debug, Default)]
pub(super) struct Accounts {
    pub(super) ledger: Ledger,
    /// The tools of the latest turn's calls.
    tools: Vec<String>,
}

impl Accounts {
    pub(super) fn note(&mut self, fact: Fact) {
        if let Some(call) = fact.model_call() {
            let mut call = call.clone();
            if matches!(fact, Fact::Summarized { .. }) {
                call.purpose = CallPurpose::Summary;
            }
            self.ledger.model_calls.push(call);
        }
        match fact {
            Fact::ModelAnswered { message, .. } => {
                self.tools = message.tool_calls().map(|it| it.name.clone()).collect();
            }
            Fact::CallFinished { index, outcome } => {
                let Some(tool) = self.tools.get(index) else {
                    return;
                };
                let (success, duration): (bool, Duration) = (outcome.success, outcome.duration);
                self.ledger
                    .record_tool(tool, success, duration, outcome.metadata);
                self.ledger.record_repairs(tool, outcome.repairs);
                if let Some(ledger) = outcome.sub_agent {
                    let ledgers = self.ledger.sub_agents.entry(tool.clone()).or_default();
                    ledgers.push(*ledger);
                }
            }
            Fact::SubAgentEnded(ended) => {
                let ledgers = self.ledger.sub_agents.entry(ended.tool).or_default();
                ledgers.push(*ended.ledger);
            }
            _ => {}
        }
    }
}
