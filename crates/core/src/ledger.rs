//! The ledger: what was paid and used, written when it happens.
//!
//! Every model call is an entry, also one that failed, was retried, was dropped from the history or
//! made a summary. A call whose response carried no usage is estimated, marked so, and never mixed
//! into the reported sums. Sub-agents are ledgers below this one.

use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::metadata::Metadata;
use crate::usage::TokenUsage;

/// The accounts of one run, and below it those of its sub-agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ledger {
    /// Model calls in the order they ended.
    pub model_calls: Vec<ModelCall>,
    /// Tool calls added up, by tool, in the order the tools were first used.
    pub tools: IndexMap<String, ToolAccount>,
    /// What sub-agents paid and used, one ledger a run, by the sub-agent's tool name.
    pub sub_agents: IndexMap<String, Vec<Ledger>>,
}

/// One model call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelCall {
    /// The model, as its client names it.
    pub model: String,
    /// What the call was for, and what became of it.
    pub purpose: CallPurpose,
    /// Its tokens: the provider's numbers, or an estimate where `estimated`.
    pub usage: TokenUsage,
    /// Whether `usage` is our estimate because the response carried none.
    #[serde(default)]
    pub estimated: bool,
    /// What the provider said it cost, or given prices come to, in US dollars.
    #[serde(default)]
    pub cost_usd: Option<f64>,
    /// The model that answered, in the provider's words; `None` where it did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// From the request to the end of the response.
    #[serde(rename = "duration_s", with = "crate::seconds")]
    pub duration: Duration,
}

impl ModelCall {
    /// A call with these facts; not estimated, no cost.
    pub fn new(
        model: impl Into<String>,
        purpose: CallPurpose,
        usage: TokenUsage,
        duration: Duration,
    ) -> Self {
        Self {
            model: model.into(),
            purpose,
            usage,
            estimated: false,
            cost_usd: None,
            served_by: None,
            duration,
        }
    }

    /// Whether it used tokens, and nobody said what they cost.
    #[must_use]
    pub fn is_of_unknown_cost(&self) -> bool {
        self.cost_usd.is_none() && self.usage.total() > 0
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's signature")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What a model call was for, and what became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallPurpose {
    /// A turn that is part of the history.
    Turn,
    /// A summary of the history.
    Summary,
    /// A turn that overflow recovery took out of the history again.
    DroppedTurn,
    /// A call that failed after tokens had flowed.
    Failed,
    /// A call that was cancelled while tokens flowed.
    Cancelled,
}

/// The calls of one tool, added up.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolAccount {
    /// How often it was called.
    pub calls: u64,
    /// How many of the calls were not successful.
    pub failures: u64,
    /// How many of the calls never began: they were refused.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// How many near-misses in the arguments were mended.
    #[serde(default)]
    pub repairs: u64,
    /// Time spent in it; calls that ran side by side each count in full.
    #[serde(rename = "duration_s", with = "crate::seconds")]
    pub duration: Duration,
    /// What it reported about its work.
    #[serde(default)]
    pub metadata: Metadata,
}

impl Ledger {
    /// Writes down a tool call.
    pub fn record_tool(
        &mut self,
        name: &str,
        success: bool,
        duration: Duration,
        metadata: Option<Metadata>,
    ) {
        let account = self.account(name);
        account.calls += 1;
        account.failures += u64::from(!success);
        account.duration += duration;
        if let Some(metadata) = metadata {
            account.metadata.add(metadata);
        }
    }

    /// Writes down a call that never began.
    pub fn record_refused(&mut self, name: &str) {
        self.record_tool(name, false, Duration::ZERO, None);
        self.account(name).refused += 1;
    }

    /// Writes down how many near-misses in a call's arguments were mended.
    pub fn record_repairs(&mut self, name: &str, repairs: u32) {
        if repairs > 0 {
            self.account(name).repairs += u64::from(repairs);
        }
    }

    fn account(&mut self, name: &str) -> &mut ToolAccount {
        self.tools.entry(name.to_owned()).or_default()
    }

    /// Tokens that providers reported, here and in all sub-agents.
    #[must_use]
    pub fn reported_usage(&self) -> TokenUsage {
        self.sum(|call| !call.estimated)
    }

    /// Tokens estimated for calls whose response carried no usage, here and in all sub-agents.
    #[must_use]
    pub fn estimated_usage(&self) -> TokenUsage {
        self.sum(|call| call.estimated)
    }

    /// Tool calls that began, here and in all sub-agents.
    #[must_use]
    pub fn begun_calls(&self) -> u64 {
        let own = self.tools.values();
        let own: u64 = own
            .map(|account| account.calls.saturating_sub(account.refused))
            .sum();
        let below = self.sub_agents.values().flatten();
        own + below.map(Self::begun_calls).sum::<u64>()
    }

    /// Model calls that used tokens and whose cost nobody said, here and in all sub-agents.
    #[must_use]
    pub fn calls_of_unknown_cost(&self) -> u64 {
        let own = self.model_calls.iter();
        let own = own.filter(|call| call.is_of_unknown_cost()).count() as u64;
        let below = self.sub_agents.values().flatten();
        own + below.map(Self::calls_of_unknown_cost).sum::<u64>()
    }

    /// What providers said it cost, or given prices come to, in US dollars, here and in all sub-agents;
    /// `None` where nobody did.
    #[must_use]
    pub fn cost_usd(&self) -> Option<f64> {
        let own = self.model_calls.iter().filter_map(|call| call.cost_usd);
        let below = self
            .sub_agents
            .values()
            .flatten()
            .filter_map(Self::cost_usd);
        own.chain(below).reduce(|a, b| a + b)
    }

    fn sum(&self, which: fn(&ModelCall) -> bool) -> TokenUsage {
        let own: TokenUsage = self
            .model_calls
            .iter()
            .filter(|call| which(call))
            .map(|call| call.usage)
            .sum();
        let below: TokenUsage = self
            .sub_agents
            .values()
            .flatten()
            .map(|ledger| ledger.sum(which))
            .sum();
        own + below
    }

    /// Stirrup's view of run metadata: tools of the root by name, sub-agents flattened to dotted
    /// keys, tokens of the whole tree under `token_usage` at the root.
    ///
    /// ```
    /// use std::time::Duration;
    /// use cantle_core::ledger::Ledger;
    /// use cantle_core::metadata::Metadata;
    /// use serde_json::json;
    ///
    /// let mut child = Ledger::default();
    /// child.record_tool("web_search", true, Duration::ZERO, Some(Metadata::uses(1)));
    /// let mut ledger = Ledger::default();
    /// ledger.sub_agents.insert("researcher".into(), vec![child]);
    /// assert_eq!(
    ///     serde_json::to_value(ledger.dotted())?,
    ///     json!({"researcher": {"web_search": {"num_uses": 1}}})
    /// );
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    #[must_use]
    pub fn dotted(&self) -> Map<String, Value> {
        let mut view = Map::new();
        for (name, ledgers) in &self.sub_agents {
            flatten(name, &ledgers.iter().collect::<Vec<_>>(), &mut view);
        }
        for (name, metadata) in self.reports() {
            view.insert(name.to_owned(), json!(metadata));
        }
        let usage = self.reported_usage() + self.estimated_usage();
        if usage.total() > 0 {
            view.insert("token_usage".to_owned(), json!([usage]));
        }
        view
    }

    /// What tools reported. Not those that report nothing, and not sub-agents, whose own ledgers
    /// say it all.
    fn reports(&self) -> impl Iterator<Item = (&str, &Metadata)> {
        self.tools
            .iter()
            .filter(|(name, account)| {
                !account.metadata.is_empty() && !self.sub_agents.contains_key(*name)
            })
            .map(|(name, account)| (name.as_str(), &account.metadata))
    }
}

/// Adds the runs of one sub-agent under `key`, and those of its own sub-agents under `key.name`.
fn flatten(key: &str, runs: &[&Ledger], view: &mut Map<String, Value>) {
    let mut below: IndexMap<&str, Vec<&Ledger>> = IndexMap::new();
    let mut tools: IndexMap<&str, Metadata> = IndexMap::new();
    let mut usage = TokenUsage::default();
    for run in runs {
        for (name, ledgers) in &run.sub_agents {
            below.entry(name).or_default().extend(ledgers);
        }
        for (name, metadata) in run.reports() {
            tools.entry(name).or_default().add(metadata.clone());
        }
        usage += run
            .model_calls
            .iter()
            .map(|call| call.usage)
            .sum::<TokenUsage>();
    }
    for (name, runs) in below {
        flatten(&format!("{key}.{name}"), &runs, view);
    }
    let mut direct: Map<String, Value> = tools
        .into_iter()
        .map(|(name, metadata)| (name.to_owned(), json!(metadata)))
        .collect();
    if usage.total() > 0 {
        direct.insert("token_usage".to_owned(), json!(usage));
    }
    view.insert(key.to_owned(), Value::Object(direct));
}

#[cfg(test)]
mod tests;
