//! The sub-agents of `cantle run --sub-agents FILE`: a TOML table for each, under its name.
//!
//! A sub-agent has the settings of the run, except for those that its table replaces, and works under the run's
//! policy, approvals and budgets.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use cantle::agent::{Agent, Approvals, SubAgent};
use cantle::clients::limit::RateLimiter;
use cantle::core::llm::LlmClient;
use cantle::core::sandbox::Backend;
use cantle::core::tool::ChannelUser;
use cantle::python::PackageSet;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::agent;
use crate::client;
use crate::config::{ModelSource, RunConfig};
use crate::extra_tools::ExtraTools;
use crate::settings::file::{Layer, layer_of, names, names_of};
use crate::settings::layers::{Layers, Origin};
use crate::settings::{BudgetArgs, SandboxSettings, Settings};
use crate::trust::read_regular;
use crate::web::WebOffer;

/// Settings that belong to a model: those of the run don't apply to another one.
const OF_A_MODEL: [&str; 13] = [
    "max_tokens",
    "context_window",
    "effort",
    "temperature",
    "param",
    "vision",
    "stateful",
    "fallback_model",
    "price_input",
    "price_output",
    "price_cache_read",
    "price_cache_write",
    "model",
];

/// Settings that belong to a provider: those of the run don't apply to another one.
const OF_A_PROVIDER: [&str; 6] = ["provider", "base_url", "api", "server", "rpm", "tpm"];

/// A sub-agent as its table describes it.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct SubAgentTable {
    /// The name of the table.
    #[serde(default)]
    pub(crate) name: String,
    description: String,
    #[serde(default)]
    share_sandbox: bool,
    #[serde(default)]
    background: bool,
    #[serde(flatten)]
    budget: BudgetArgs,
    /// Settings that replace those of the run.
    #[serde(flatten)]
    settings: Layer,
}

/// The parts of a run that its sub-agents have in common.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) config: &'a RunConfig,
    pub(crate) client: &'a Arc<dyn LlmClient>,
    pub(crate) limiter: &'a RateLimiter,
    pub(crate) backend: &'a Arc<dyn Backend>,
    pub(crate) packages: Option<&'a PackageSet>,
    pub(crate) approvals: &'a Approvals,
    pub(crate) user: Option<&'a ChannelUser>,
    pub(crate) budget_usd: Option<f64>,
    /// Whether the run changes a directory itself. Its commands could move what is protected there before the sandbox of a
    /// sub-agent is opened, which would not protect it then: so there is only one.
    pub(crate) in_place: bool,
}

/// Reads the sub-agents in a file.
///
/// # Errors
/// If the file can't be read, or a table of it is invalid.
pub(crate) fn read(path: &Path) -> anyhow::Result<Vec<SubAgentTable>> {
    let shown = path.display();
    let (text, _) = read_regular(path)?.with_context(|| format!("there is no file {shown}"))?;
    let invalid = || format!("invalid sub-agents in {shown}");
    let tables: BTreeMap<String, Value> = toml::from_str(&text)
        .map_err(|error| anyhow!("{}", error.message()))
        .with_context(invalid)?;
    let directory = path.parent().unwrap_or(Path::new(""));
    let parse = |(name, table): (String, Value)| {
        SubAgentTable::parse(&name, table, directory).with_context(|| format!("[{name}]"))
    };
    let tables = tables.into_iter().map(parse);
    tables.collect::<anyhow::Result<_>>().with_context(invalid)
}

impl SubAgentTable {
    /// Parses a table of a file in `directory`.
    fn parse(name: &str, table: Value, directory: &Path) -> anyhow::Result<Self> {
        let mut parsed: Self = serde_json::from_value(table)?;
        name.clone_into(&mut parsed.name);
        let budget = &parsed.budget;
        let has_no_money = budget.budget_usd.is_some_and(|dollars| dollars <= 0.0);
        let used_up = [
            ("budget_usd", has_no_money),
            ("budget_tokens", budget.budget_tokens == Some(0)),
            ("budget_calls", budget.budget_calls == Some(0)),
        ];
        if let Some((name, _)) = used_up.iter().find(|(_, is_used_up)| *is_used_up) {
            bail!("`{name}`: expected a number above 0");
        }
        let of_the_run = names_of::<SandboxSettings>();
        let known: Vec<_> = names()
            .into_iter()
            .filter(|name| !of_the_run.contains(name))
            .collect();
        let mut settings = Layer::new();
        for (name, value) in parsed.settings {
            if !known.contains(&name) {
                let known = known.join(", ");
                bail!(
                    "`{name}` can't be set here: a sub-agent has `description`, `share_sandbox`, `background`, \
                     `budget_usd`, `budget_tokens`, `budget_time`, `budget_calls` and the settings {known}"
                );
            }
            let setting = Map::from_iter([(name.clone(), value)]);
            let setting: Settings = serde_json::from_value(setting.into())
                .map_err(|error| anyhow!("`{name}`: {error}"))?;
            settings.extend(layer_of(&setting)?);
        }
        if let Some(Value::String(prompt)) = settings.get_mut("system_prompt")
            && let Some(file) = prompt.strip_prefix('@')
        {
            let path = directory.join(file);
            let text = read_regular(&path)?.map(|(text, _)| text);
            *prompt = text.with_context(|| format!("there is no file {}", path.display()))?;
        }
        parsed.settings = settings;
        Ok(parsed)
    }

    /// Returns the sub-agent, and the web tools that it has.
    ///
    /// # Errors
    /// If a setting is invalid, or its provider can't be used.
    pub(crate) async fn build(&self, caller: &Caller<'_>) -> anyhow::Result<(SubAgent, WebOffer)> {
        let run = caller.config;
        let layers = self.layers(&run.layers);
        let config = RunConfig::with_policy(layers, run.policy.clone(), None)?;
        let settings = &config.settings;
        let client = match (&config.model, &run.model) {
            (ModelSource::Endpoint(name, endpoint), ModelSource::Endpoint(_, of_run))
                if settings.model != run.settings.model =>
            {
                let own_limiter;
                let limiter = if endpoint.base_url == of_run.base_url {
                    caller.limiter
                } else {
                    own_limiter = client::limiter(&settings.model);
                    &own_limiter
                };
                client::connect(name, endpoint, &settings.model, limiter).await?
            }
            _ => Arc::clone(caller.client),
        };
        let info = client.model();
        client::check_cost_budget(caller.budget_usd.or(self.budget.budget_usd), info)?;
        let tools = ExtraTools::for_model(&config.model, info, settings);
        let approvals = caller.approvals.clone().for_sub_agent();
        let mut builder = Agent::builder(&self.name, client).approvals(approvals);
        if let Some(user) = caller.user {
            builder = builder.user(user.clone());
        }
        let (backend, packages) = (caller.backend, caller.packages);
        builder = tools.add_to(builder, backend, &run.policy, packages, settings, false)?;
        let backend = Arc::clone(caller.backend);
        let agent = agent::complete(builder, backend, run.policy.clone(), settings, None)?;
        let mut sub_agent = SubAgent::new(&agent, &self.description).budget(self.budget.into());
        if self.share_sandbox || caller.in_place {
            sub_agent = sub_agent.share_sandbox();
        }
        if self.background {
            sub_agent = sub_agent.background();
        }
        Ok((sub_agent, tools.web))
    }

    /// Returns its settings above those of the run.
    fn layers(&self, of_run: &Layers) -> Layers {
        let sets = |name: &&str| self.settings.contains_key(*name);
        // The instructions of the run are for its own task.
        let mut dropped = vec!["system_prompt"];
        let has_provider = ["provider", "base_url"].iter().any(sets);
        if has_provider {
            dropped.extend(OF_A_PROVIDER);
        }
        if has_provider || sets(&"model") {
            dropped.extend(OF_A_MODEL);
        }
        of_run.below(Origin::SubAgent, self.settings.clone(), &dropped)
    }
}
