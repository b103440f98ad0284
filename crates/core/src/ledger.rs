//! The ledger: tokens, cost and tool calls of a run.
//!
//! Every model call is an entry, including those that failed, were dropped from the history or made a
//! summary. The usage of a call whose response had none is estimated, marked, and summed separately.
//! Sub-agents have ledgers of their own below this one.

use std::time::Duration;

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::metadata::Metadata;
use crate::usage::{TokenUsage, is_zero};

/// Tokens, cost and tool calls of one run, and of its sub-agents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Ledger {
    /// Model calls in the order they ended.
    pub model_calls: Vec<ModelCall>,
    /// Totals by tool, in the order of first use.
    pub tools: IndexMap<String, ToolTotals>,
    /// Ledgers of sub-agent runs, by the sub-agent's tool name.
    pub sub_agents: IndexMap<String, Vec<Ledger>>,
}

/// One model call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ModelCall {
    /// The model's name in its client.
    pub model: String,
    /// Purpose and outcome of the call.
    pub purpose: CallPurpose,
    /// Token usage, as reported by the provider or estimated.
    pub usage: TokenUsage,
    /// Whether `usage` is an estimate because the response had none.
    #[serde(default)]
    pub estimated: bool,
    /// Cost in US dollars, as reported by the provider or computed from prices.
    pub cost_usd: Option<f64>,
    /// Date of the price list that `cost_usd` was computed from, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub list_price_date: Option<String>,
    /// The model that answered, as named by the provider.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub served_by: Option<String>,
    /// Time from the request to the end of the response.
    #[serde(rename = "duration_s", with = "crate::seconds")]
    pub duration: Duration,
}

impl ModelCall {
    /// Creates a call with reported usage and without cost.
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
            list_price_date: None,
            served_by: None,
            duration,
        }
    }

    /// Returns whether it used tokens at an unknown cost.
    pub fn has_unknown_cost(&self) -> bool {
        self.cost_usd.is_none() && self.usage.total() > 0
    }
}

/// Purpose and outcome of a model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum CallPurpose {
    /// A turn that is part of the history.
    Turn,
    /// A summary of the history.
    Summary,
    /// A turn that was dropped from the history after a context overflow.
    DroppedTurn,
    /// A call that failed after it used tokens.
    Failed,
    /// A call that was cancelled after it used tokens.
    Cancelled,
}

/// Totals over all calls of one tool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ToolTotals {
    /// Number of calls.
    pub calls: u64,
    /// Number of unsuccessful calls, without cancelled ones.
    pub failures: u64,
    /// Number of calls that were cancelled with their run.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cancelled: u64,
    /// Number of refused calls, which never started.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub refused: u64,
    /// Number of argument repairs.
    #[serde(default)]
    pub repairs: u64,
    /// Total duration; concurrent calls each count in full.
    #[serde(rename = "duration_s", with = "crate::seconds")]
    pub duration: Duration,
    /// Sum of the calls' metadata.
    #[serde(default)]
    pub metadata: Metadata,
}

/// Costs in US dollars by how they are known; `None` where there are none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Costs<'a> {
    /// Reported by the provider, or computed from its prices or the user's.
    pub reported_usd: Option<f64>,
    /// Computed from list prices.
    pub list_price_usd: Option<f64>,
    /// Latest date of these lists.
    pub list_price_date: Option<&'a str>,
    /// Computed from estimated tokens.
    pub estimated_usd: Option<f64>,
}

impl Ledger {
    /// Records a tool call.
    pub fn record_tool(
        &mut self,
        name: &str,
        success: bool,
        duration: Duration,
        metadata: Option<Metadata>,
    ) {
        let totals = self.totals(name);
        totals.calls += 1;
        totals.failures += u64::from(!success);
        totals.duration = totals.duration.saturating_add(duration);
        if let Some(metadata) = metadata {
            totals.metadata.add(metadata);
        }
    }

    /// Records a refused call, which never started.
    pub fn record_refused(&mut self, name: &str) {
        self.record_tool(name, false, Duration::ZERO, None);
        self.totals(name).refused += 1;
    }

    /// Turns the last failure of a tool into a cancelled call.
    pub fn record_cancelled(&mut self, name: &str) {
        let totals = self.totals(name);
        totals.failures = totals.failures.saturating_sub(1);
        totals.cancelled += 1;
    }

    /// Records argument repairs of a call.
    pub fn record_repairs(&mut self, name: &str, repairs: u32) {
        if repairs > 0 {
            self.totals(name).repairs += u64::from(repairs);
        }
    }

    fn totals(&mut self, name: &str) -> &mut ToolTotals {
        self.tools.entry(name.to_owned()).or_default()
    }

    /// Returns the reported token usage, including sub-agents.
    pub fn reported_usage(&self) -> TokenUsage {
        let reported = self.all_model_calls().filter(|call| !call.estimated);
        reported.map(|call| call.usage).sum()
    }

    /// Returns the estimated token usage, including sub-agents.
    pub fn estimated_usage(&self) -> TokenUsage {
        let estimated = self.all_model_calls().filter(|call| call.estimated);
        estimated.map(|call| call.usage).sum()
    }

    /// Returns the number of started tool calls, including sub-agents.
    pub fn started_tool_calls(&self) -> u64 {
        let tools = self.tree().flat_map(|ledger| ledger.tools.values());
        tools
            .map(|totals| totals.calls.saturating_sub(totals.refused))
            .sum()
    }

    /// Returns the number of model calls with unknown cost, including sub-agents.
    pub fn calls_of_unknown_cost(&self) -> u64 {
        let unknown = self
            .all_model_calls()
            .filter(|call| call.has_unknown_cost());
        unknown.count() as u64
    }

    /// Returns the known cost in US dollars, including sub-agents; `None` if no call's cost is known.
    pub fn cost_usd(&self) -> Option<f64> {
        let costs = self.all_model_calls().filter_map(|call| call.cost_usd);
        costs.reduce(|a, b| a + b)
    }

    /// Returns the speed of each model in output tokens per second of its complete calls with reported usage, including
    /// those of sub-agents, in the order of first use.
    pub fn output_tokens_per_second(&self) -> IndexMap<&str, f64> {
        let mut totals: IndexMap<&str, (u64, Duration)> = IndexMap::new();
        let complete = |call: &&ModelCall| !call.estimated && call.usage.output_total() > 0;
        for call in self.all_model_calls().filter(complete) {
            let total = totals.entry(&call.model).or_default();
            total.0 = total.0.saturating_add(call.usage.output_total());
            total.1 = total.1.saturating_add(call.duration);
        }
        let known = totals.into_iter().filter(|(_, (_, time))| !time.is_zero());
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
        known
            .map(|(model, (tokens, time))| (model, tokens as f64 / time.as_secs_f64()))
            .collect()
    }

    /// Returns the parts of [`cost_usd`](Self::cost_usd) by how they are known.
    pub fn costs(&self) -> Costs<'_> {
        let mut costs = Costs::default();
        for call in self.all_model_calls() {
            let part = match (&call.list_price_date, call.estimated) {
                (_, true) => &mut costs.estimated_usd,
                (Some(date), false) => {
                    costs.list_price_date = costs.list_price_date.max(Some(date));
                    &mut costs.list_price_usd
                }
                (None, false) => &mut costs.reported_usd,
            };
            if let Some(cost) = call.cost_usd {
                *part = Some(part.unwrap_or_default() + cost);
            }
        }
        costs
    }

    /// Returns the model calls, including those of sub-agents.
    pub fn all_model_calls(&self) -> impl Iterator<Item = &ModelCall> {
        self.tree().flat_map(|ledger| &ledger.model_calls)
    }

    /// This ledger and all below it.
    fn tree(&self) -> Box<dyn Iterator<Item = &Self> + '_> {
        let below = self.sub_agents.values().flatten().flat_map(Self::tree);
        Box::new(std::iter::once(self).chain(below))
    }

    /// Returns the ledger in the format of Stirrup's run metadata: the run's tools by name,
    /// sub-agents flattened to dotted keys, and the usage of the whole tree under `token_usage`.
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
    ///     serde_json::to_value(ledger.stirrup_metadata())?,
    ///     json!({"researcher": {"web_search": {"num_uses": 1}}})
    /// );
    /// # Ok::<(), serde_json::Error>(())
    /// ```
    pub fn stirrup_metadata(&self) -> Map<String, Value> {
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

    /// Returns the metadata of tools that reported any, except sub-agents, which have ledgers.
    fn reports(&self) -> impl Iterator<Item = (&str, &Metadata)> {
        self.tools
            .iter()
            .filter(|(name, totals)| {
                !totals.metadata.is_empty() && !self.sub_agents.contains_key(*name)
            })
            .map(|(name, totals)| (name.as_str(), &totals.metadata))
    }
}

/// Adds the runs of one sub-agent under `key`, and those of its sub-agents under `key.name`.
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
