//! What a journal tells at a glance, for lists of runs: without its conversation, and without its media.

use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use cantle_core::event::RunStatus;
use cantle_core::ledger::Ledger;
use cantle_core::sandbox::SandboxHandle;
use cantle_core::usage::TokenUsage;
use serde::Deserialize;
use serde_json::Value;

use super::reading::Lines;
use super::store::{KeptRun, KeptStatus, StoreError};
use crate::machine::FreshSandbox;

#[derive(Deserialize)]
struct HeaderGlance {
    run: cantle_core::ids::RunId,
    time: f64,
    identity: Value,
    note: Value,
    task: String,
    sandbox: Option<SandboxHandle>,
}

#[derive(Deserialize)]
struct LineGlance {
    fact: Option<FactGlance>,
    status: Option<RunStatus>,
    error: Option<String>,
}

#[derive(Deserialize)]
struct FactGlance {
    kind: String,
    call: Option<CallGlance>,
    outcome: Option<OutcomeGlance>,
    /// Of a sub-agent in the background.
    ledger: Option<Ledger>,
    fresh: Option<FreshSandbox>,
}

#[derive(Deserialize)]
struct CallGlance {
    usage: TokenUsage,
    cost_usd: Option<f64>,
}

#[derive(Deserialize)]
struct OutcomeGlance {
    sub_agent: Option<Ledger>,
}

/// Tokens, and what they cost as far as somebody said.
#[derive(Clone, Copy, Debug, Default)]
struct Spent {
    tokens: u64,
    cost_usd: Option<f64>,
}

impl Spent {
    fn add(&mut self, tokens: u64, cost_usd: Option<f64>) {
        self.tokens += tokens;
        let costs = [self.cost_usd, cost_usd];
        self.cost_usd = costs.into_iter().flatten().reduce(|a, b| a + b);
    }

    fn add_ledger(&mut self, ledger: &Ledger) {
        let tokens = ledger.reported_usage() + ledger.estimated_usage();
        self.add(tokens.total(), ledger.cost_usd());
    }
}

/// Reads a journal of a run that nobody works on.
pub(super) fn kept_run(lines: &mut Lines, directory: &Path) -> Result<KeptRun, StoreError> {
    let modified = lines.modified();
    let header = lines.header()?;
    let header: HeaderGlance =
        serde_json::from_slice(&header).map_err(|error| lines.unreadable(&error.to_string()))?;
    let text = |key: &str| {
        let text = header.identity.get(key).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let begun = UNIX_EPOCH + Duration::try_from_secs_f64(header.time).unwrap_or_default();
    let mut kept = KeptRun {
        run: header.run,
        agent: text("agent"),
        model: text("model"),
        task: header.task,
        status: KeptStatus::Interrupted,
        error: None,
        turns: 0,
        tokens: 0,
        cost_usd: None,
        begun,
        latest: modified.unwrap_or(begun),
        sandbox: header.sandbox,
        note: header.note,
        directory: directory.to_owned(),
    };
    let mut spent = Spent::default();
    // By sub-agents that have not ended: when they go on, their own journals say it again.
    let mut open = Spent::default();
    while let Some(line) = lines.next()? {
        let line: LineGlance =
            serde_json::from_slice(&line).map_err(|error| lines.wrong(&error.to_string()))?;
        kept.status = line
            .status
            .map_or(KeptStatus::Interrupted, KeptStatus::Ended);
        kept.error = line.error;
        let Some(fact) = line.fact else { continue };
        kept.turns += u32::from(fact.kind == "model_answered");
        if let Some(call) = &fact.call {
            spent.add(call.usage.total(), call.cost_usd);
        }
        if let Some(ledger) = fact.outcome.and_then(|outcome| outcome.sub_agent) {
            spent.add_ledger(&ledger);
        }
        match (fact.kind.as_str(), &fact.ledger) {
            ("sub_agent_left", Some(ledger)) => open.add_ledger(ledger),
            (_, Some(ledger)) => spent.add_ledger(ledger),
            ("resumed", None) => {
                open = Spent::default();
                if let Some(fresh) = fact.fresh {
                    kept.sandbox = fresh.handle;
                }
            }
            _ => {}
        }
    }
    spent.add(open.tokens, open.cost_usd);
    (kept.tokens, kept.cost_usd) = (spent.tokens, spent.cost_usd);
    Ok(kept)
}
