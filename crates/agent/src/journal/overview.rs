//! The overview of a kept run, read without its conversation and its media.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use cantle_core::event::RunStatus;
use cantle_core::ids::RunId;
use cantle_core::ledger::{Ledger, ModelCall};
use cantle_core::sandbox::SandboxHandle;
use cantle_core::seconds::unix_time;
use serde::Deserialize;
use serde_json::Value;

use super::error::StoreError;
use super::identity::Identity;
use super::reader::JournalReader;
use crate::rules::{LedgerFold, NewSandbox, Spending};

/// A run in a [`RunStore`](super::RunStore), as read from its journal.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeptRun {
    /// The run.
    pub run: RunId,
    /// The agent's name.
    pub agent: String,
    /// The model.
    pub model: String,
    /// The task, as text.
    pub task: String,
    /// The status.
    pub status: KeptStatus,
    /// The error, if the run did not finish.
    pub error: Option<String>,
    /// Number of turns, including dropped ones.
    pub turns: u32,
    /// Input and output tokens, including those of sub-agents.
    pub tokens: u64,
    /// Known cost in US dollars.
    pub cost_usd: Option<f64>,
    /// The part of it that was computed from list prices, and the latest date of these.
    pub list_price: Option<(f64, String)>,
    /// Start time.
    pub begun: SystemTime,
    /// Time of the last change.
    pub latest: SystemTime,
    /// The sandbox, if it outlives the process.
    pub sandbox: Option<SandboxHandle>,
    /// Data of the caller that began the run.
    pub note: Value,
    /// The run's directory.
    pub directory: PathBuf,
}

/// The status of a kept run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptStatus {
    /// A process works on it.
    Running,
    /// The process that worked on it ended before the run did.
    Interrupted,
    /// The run ended.
    Ended(RunStatus),
}

impl KeptStatus {
    /// Whether the run can be resumed.
    pub fn is_resumable(self) -> bool {
        !matches!(self, Self::Running | Self::Ended(RunStatus::Finished))
    }
}

#[derive(Deserialize)]
struct HeaderOverview {
    run: RunId,
    time: f64,
    identity: Identity,
    note: Value,
    task: String,
    sandbox: Option<SandboxHandle>,
}

#[derive(Deserialize)]
struct LineOverview {
    fact: Option<FactOverview>,
    status: Option<RunStatus>,
    error: Option<String>,
}

/// The fields of facts that change the ledger's totals or the sandbox.
#[derive(Deserialize)]
struct FactOverview {
    kind: String,
    call: Option<ModelCall>,
    outcome: Option<OutcomeOverview>,
    tool: Option<String>,
    ledger: Option<Ledger>,
    #[serde(rename = "fresh")]
    new_sandbox: Option<NewSandbox>,
}

#[derive(Deserialize)]
struct OutcomeOverview {
    sub_agent: Option<Ledger>,
}

impl FactOverview {
    fn add_to(self, fold: &mut LedgerFold) {
        if let Some(call) = self.call {
            fold.model_call(call);
        }
        let tool = self.tool.unwrap_or_default();
        if let Some(ledger) = self.outcome.and_then(|outcome| outcome.sub_agent) {
            fold.sub_agent(&tool, ledger);
        }
        match (self.kind.as_str(), self.ledger) {
            ("sub_agent_left", Some(ledger)) => fold.suspended_sub_agent(tool, ledger),
            (_, Some(ledger)) => fold.sub_agent(&tool, ledger),
            ("resumed", None) => fold.resumed(),
            _ => {}
        }
    }
}

/// Reads the overview of a run that no process works on.
pub(super) fn read(reader: &mut JournalReader, directory: &Path) -> Result<KeptRun, StoreError> {
    let modified = reader.modified();
    let header = reader.header_line()?;
    let header: HeaderOverview =
        serde_json::from_slice(&header).map_err(|error| reader.unreadable(&error.to_string()))?;
    let (agent, model) = header.identity.names();
    let begun = unix_time(header.time).unwrap_or(UNIX_EPOCH);
    let mut kept = KeptRun {
        run: header.run,
        agent: agent.to_owned(),
        model: model.to_owned(),
        task: header.task,
        status: KeptStatus::Interrupted,
        error: None,
        turns: 0,
        tokens: 0,
        cost_usd: None,
        list_price: None,
        begun,
        latest: modified.unwrap_or(begun),
        sandbox: header.sandbox,
        note: header.note,
        directory: directory.to_owned(),
    };
    let mut fold = LedgerFold::default();
    while let Some(line) = reader.next_line()? {
        let line: LineOverview =
            serde_json::from_slice(&line).map_err(|error| reader.line_error(&error.to_string()))?;
        kept.status = line
            .status
            .map_or(KeptStatus::Interrupted, KeptStatus::Ended);
        kept.error = line.error;
        let Some(mut fact) = line.fact else { continue };
        kept.turns += u32::from(fact.kind == "model_answered");
        if let Some(sandbox) = fact.new_sandbox.take() {
            kept.sandbox = sandbox.handle;
        }
        fact.add_to(&mut fold);
    }
    let ledger = fold.into_ledger();
    let (costs, spending) = (ledger.costs(), Spending::from(&ledger));
    kept.list_price = costs
        .list_price_usd
        .zip(costs.list_price_date.map(str::to_owned));
    (kept.tokens, kept.cost_usd) = (spending.tokens, spending.cost_usd);
    Ok(kept)
}
