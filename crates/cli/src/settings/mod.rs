//! The settings: one declaration for flags, `CANTLE_*` variables, `cantle.toml` and `--help`.
//!
//! A field's name is its key in `cantle.toml`, with dashes its flag, and in upper case, after `CANTLE_`, its variable.
//! [`layers`] merges the origins of settings; [`crate::config`] turns the result into the configuration of a run, and
//! [`crate::saved_settings`] keeps it for resuming.

pub(crate) mod file;
pub(crate) mod layers;
mod values;

use std::num::{NonZeroU32, NonZeroU64};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::bail;
use cantle::agent::Budget;
use cantle::clients::chat::Server;
use cantle::clients::retry::RetryPolicy;
use cantle::core::llm::Prices;
use cantle::core::policy::{HostPattern, Preset};
use cantle::python::PackageSpecifier;
use clap::ArgAction;
use clap::builder::{FalseyValueParser, NonEmptyStringValueParser};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub(crate) use self::layers::Given;
pub(crate) use self::values::{
    AllowedHost, Limit, OptionalTool, Param, Search, Size, Switch, parse_age, parse_duration,
};
use crate::backend::BackendArg;
use crate::provider::{Api, Provider};

/// Everything that can be set by flag, by variable and in `cantle.toml`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) model: ModelSettings,

    /// Instructions that are added to the built-in system prompt; `@FILE` reads them from a file
    #[arg(long, value_name = "TEXT|@FILE", value_parser = NonEmptyStringValueParser::new(),
        help_heading = "Model")]
    pub(crate) system_prompt: Option<String>,

    /// Maximum number of turns (model calls with their tool calls) [default: 30]
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) max_turns: Option<NonZeroU32>,

    /// Number of times that the same calls may have the same results before the run ends; 0 for no limit [default: 6]
    ///
    /// Calls that take 10 s or longer do not count.
    #[arg(long, value_name = "N", help_heading = "Limits")]
    pub(crate) max_repeats: Option<u32>,

    /// Require a call of the finish tool, even if the model only answers in text
    ///
    /// Otherwise the run ends with its last answer if the model still answers in text after a reminder.
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new(),
        help_heading = "Limits")]
    pub(crate) strict_finish: Option<bool>,

    /// Maximum duration of one command, such as 300, 90s, 5m or 1h [default: 300]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    #[serde(with = "values::duration")]
    pub(crate) timeout: Option<Duration>,

    /// Run the commands of one turn in parallel instead of one after another
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new(),
        help_heading = "Sandbox")]
    pub(crate) parallel_commands: Option<bool>,

    /// Optional tools for the model, separated by commas: browser, calculator, python, web
    ///
    /// `browser`: a browser in the sandbox, which needs Chromium there and reaches the hosts that commands reach.
    /// `python`: executes code and keeps its variables from call to call, with the sandbox's Python. `web`: reads web
    /// pages, from this machine and not from the sandbox; data can leave through it.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        hide_possible_values = true,
        help_heading = "Sandbox"
    )]
    pub(crate) tools: Vec<OptionalTool>,

    /// Search service of the web tools, which are offered then: brave, tavily, exa or searxng
    ///
    /// Its key is BRAVE_API_KEY, TAVILY_API_KEY or EXA_API_KEY; the address of SearXNG is SEARXNG_URL.
    #[arg(
        long,
        value_name = "SERVICE",
        hide_possible_values = true,
        help_heading = "Sandbox"
    )]
    pub(crate) search: Option<Search>,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) packages: PackageSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) keep: KeepSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) sandbox: SandboxSettings,
}

/// Python packages.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Python packages")]
pub(crate) struct PackageSettings {
    /// Package for Python code, such as pandas or 'pandas>=2,<3'; can be repeated
    ///
    /// Packages are installed once, from the index that pip and uv are configured with, in a sandbox that reaches that
    /// index and nothing else. Code sees them read-only and needs no network. In `cantle run`, they are for the tool
    /// `python` of --tools.
    #[arg(long, value_name = "SPEC", value_delimiter = ';')]
    pub(crate) package: Vec<PackageSpecifier>,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) source: PackageSourceSettings,
}

/// Where Python packages come from.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Python packages")]
pub(crate) struct PackageSourceSettings {
    /// Host that packages may come from, besides the index and the hosts of its files; can be repeated
    ///
    /// A package that is named with a URL needs it. With `,private`, as in mirror.example.org,private, the addresses of
    /// a host (also of the index) may be in a private network, but never this machine's.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) package_host: Vec<AllowedHost>,

    /// Look for newer versions of the packages, which otherwise stay as they were first installed
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) refresh_packages: Option<bool>,
}

/// Sandboxes of `cantle serve`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct ServeSettings {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) packages: PackageSourceSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) policy: PolicySettings,
}

/// Sandboxes of Python programs.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct PythonSettings {
    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) packages: PackageSettings,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) sandbox: SandboxSettings,
}

/// The sandboxes of finished runs that are kept.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Retention {
    /// The maximum age. Zero means none.
    pub(crate) age: Duration,
    /// The maximum size of all of them.
    pub(crate) size_bytes: u64,
}

/// The budget of a run, or of each call of a sub-agent.
#[derive(Clone, Copy, Debug, Default, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Limits")]
pub(crate) struct BudgetArgs {
    /// Maximum cost of the run in US dollars, as reported by the provider or computed from prices
    ///
    /// It is refused if the provider of a model does not report costs and its prices are unknown.
    #[arg(long, value_name = "USD", value_parser = values::parse_dollars)]
    pub(crate) budget_usd: Option<f64>,

    /// Maximum number of input and output tokens of the run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) budget_tokens: Option<u64>,

    /// Maximum duration of the run, such as 90s, 30m or 2h
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(with = "values::duration")]
    pub(crate) budget_time: Option<Duration>,

    /// Maximum number of tool calls of the run
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) budget_calls: Option<u64>,
}

impl From<BudgetArgs> for Budget {
    fn from(args: BudgetArgs) -> Self {
        let mut budget = Self::default();
        budget.cost_usd = args.budget_usd;
        budget.tokens = args.budget_tokens;
        budget.time = args.budget_time;
        budget.tool_calls = args.budget_calls;
        budget
    }
}

/// How long working directories of finished runs are kept.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Resuming")]
pub(crate) struct KeepSettings {
    /// Days for which a finished run keeps its working directory, for --continue; 0 for none [default: 7]
    ///
    /// Only on the local backend. A run that can be resumed always keeps its own.
    #[arg(long, value_name = "N")]
    pub(crate) keep_days: Option<u32>,

    /// Maximum total size of working directories of finished runs, such as 500M; the oldest are removed [default: 1G]
    #[arg(long, value_name = "SIZE")]
    pub(crate) keep_size: Option<Size>,
}

/// The model, its provider and how requests are made.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelSettings {
    /// Model name, as its provider spells it
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) model: Option<String>,

    /// Model provider: determines the base URL and the variable that holds the key [default: openai]
    #[arg(long)]
    pub(crate) provider: Option<Provider>,

    /// Wire protocol [default: messages for Anthropic, responses for OpenAI itself, else chat]
    #[arg(long)]
    pub(crate) api: Option<Api>,

    /// Base URL of the API; it usually ends in /v1
    #[arg(long, value_name = "URL", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) base_url: Option<String>,

    /// Maximum number of output tokens of one model call
    #[arg(long, value_name = "N")]
    pub(crate) max_tokens: Option<u64>,

    /// Context window of the model in tokens, if the provider does not report it
    #[arg(long, value_name = "N")]
    pub(crate) context_window: Option<u64>,

    /// Reasoning effort, as the provider names it: mostly low, medium or high
    #[arg(long, value_name = "LEVEL", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) effort: Option<String>,

    /// Sampling temperature; many reasoning models refuse it
    #[arg(long, value_name = "N", value_parser = values::parse_temperature)]
    #[serde(deserialize_with = "values::temperature")]
    pub(crate) temperature: Option<f64>,

    /// Another parameter of requests, sent unchanged, such as top_p=0.9 or 'stop=["END"]'; can be repeated
    ///
    /// A JSON object sets several parameters.
    #[arg(long, value_name = "NAME=JSON")]
    pub(crate) param: Vec<Param>,

    /// Whether the model accepts images [default: as its provider reports]
    ///
    /// A model that does has the tool `view_image`.
    #[arg(long)]
    pub(crate) vision: Option<Switch>,

    /// Do not stream answers
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) no_stream: Option<bool>,

    /// Server type, if the URL does not reveal it
    ///
    /// Servers deviate from the Chat Completions protocol; vllm, for example, refuses an output limit
    /// that exceeds the rest of the context window.
    #[arg(long, value_parser = values::server())]
    #[serde(with = "values::server_name")]
    pub(crate) server: Option<Server>,

    /// Let the provider store the conversation (with --api responses)
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) stateful: Option<bool>,

    /// Another model of the same provider, used if the first one fails; can be repeated
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub(crate) fallback_model: Vec<String>,

    /// How long failed model calls are repeated, such as 90s or 5m [default: 5m]
    ///
    /// Rate limits, failures of the server, broken connections and timeouts are temporary. A server that has
    /// never answered is given up after 10 s, and any model but the last of --fallback-model too.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    #[serde(with = "values::duration")]
    pub(crate) retry_for: Option<Duration>,

    /// Do not repeat failed model calls
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) no_retry: Option<bool>,

    /// Price of a million input tokens in US dollars [default: as reported by the provider, or its list price]
    #[arg(long, value_name = "USD", value_parser = values::parse_price)]
    #[serde(deserialize_with = "values::price")]
    pub(crate) price_input: Option<f64>,

    /// Price of a million output tokens, including reasoning
    #[arg(long, value_name = "USD", value_parser = values::parse_price)]
    #[serde(deserialize_with = "values::price")]
    pub(crate) price_output: Option<f64>,

    /// Price of a million input tokens read from the prompt cache [default: --price-input]
    #[arg(long, value_name = "USD", value_parser = values::parse_price)]
    #[serde(deserialize_with = "values::price")]
    pub(crate) price_cache_read: Option<f64>,

    /// Price of a million input tokens written to the prompt cache [default: --price-input]
    #[arg(long, value_name = "USD", value_parser = values::parse_price)]
    #[serde(deserialize_with = "values::price")]
    pub(crate) price_cache_write: Option<f64>,

    /// Maximum number of requests per minute
    #[arg(long, value_name = "N")]
    pub(crate) rpm: Option<NonZeroU32>,

    /// Maximum number of input and output tokens per minute
    #[arg(long, value_name = "N")]
    pub(crate) tpm: Option<NonZeroU64>,
}

/// The backend and the policy of commands.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct SandboxSettings {
    /// Where commands run [default: local]
    ///
    /// `local`: on this machine, isolated by its kernel; `docker:IMAGE`, `dockerfile:PATH`: in a new
    /// container of an image, or of the image built from a Dockerfile; `container:ID`: in a running
    /// container; `remote`, `remote:TEMPLATE`: in a sandbox of an E2B-compatible service, with the key in
    /// E2B_API_KEY and optional addresses in E2B_API_URL and E2B_SANDBOX_URL.
    #[arg(long, value_name = "WHERE")]
    pub(crate) backend: Option<BackendArg>,

    #[command(flatten)]
    #[serde(flatten)]
    pub(crate) policy: PolicySettings,
}

/// The policy of commands.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Deserialize, Serialize)]
#[serde(default)]
#[command(next_help_heading = "Sandbox")]
pub(crate) struct PolicySettings {
    /// Sandbox policy: restricts what commands may do [default: workspace]
    ///
    /// `workspace`: read the system's programs, write the working directory, no network; `network`: like
    /// workspace, plus the hosts of --allow-host; `read_only`: write nothing, no network; `unconfined`:
    /// everything that you may do.
    #[arg(long, value_name = "NAME", value_parser = values::preset())]
    #[serde(with = "values::preset_name")]
    pub(crate) policy: Option<Preset>,

    /// Host that commands may reach, such as api.example.com or '*.example.org'; can be repeated
    ///
    /// With `,private`, as in mirror.example.org,private, its addresses may be in a private network, but never this machine's.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) allow_host: Vec<AllowedHost>,

    /// Host that neither commands nor web tools may reach, such as ads.example.org; can be repeated
    ///
    /// It removes hosts from those of --allow-host; without --allow-host, it applies to the web tools only.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    pub(crate) deny_host: Vec<HostPattern>,

    /// Resource limit, such as memory=2G, processes=64 or cpu_time=5m; can be repeated
    #[arg(long, value_name = "NAME=VALUE", value_delimiter = ',')]
    pub(crate) limit: Vec<Limit>,

    /// Directory or file that commands may read, such as a toolchain or a virtual environment; can be repeated
    ///
    /// It has the same path in the sandbox, and is read-only there. Only the local backend supports it.
    #[arg(long, value_name = "PATH", value_delimiter = ':')]
    pub(crate) read: Vec<PathBuf>,

    /// Run even if this machine can't enforce the whole policy, and list what is not enforced
    #[arg(long, action = ArgAction::SetTrue, value_parser = FalseyValueParser::new())]
    pub(crate) best_effort: Option<bool>,
}

impl Settings {
    /// Maximum number of turns of a run.
    pub(crate) fn max_turns(&self) -> u32 {
        self.max_turns.map_or(30, NonZeroU32::get)
    }

    /// Maximum duration of one command.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout.unwrap_or(Duration::from_secs(300))
    }
}

impl KeepSettings {
    /// Returns which working directories of finished runs are kept.
    pub(crate) fn retention(&self) -> Retention {
        let seconds = u64::from(self.keep_days.unwrap_or(7)).saturating_mul(24 * 60 * 60);
        Retention {
            age: Duration::from_secs(seconds),
            size_bytes: self.keep_size.as_ref().map_or(1 << 30, Size::bytes),
        }
    }
}

impl ModelSettings {
    /// Returns how failed model calls are repeated.
    pub(crate) fn retry(&self) -> RetryPolicy {
        match (self.no_retry, self.retry_for) {
            (Some(true), _) => RetryPolicy::never(),
            (_, Some(period)) => RetryPolicy::default().with_period(period),
            _ => RetryPolicy::default(),
        }
    }

    /// Returns the parameters of `param`.
    pub(crate) fn parameters(&self) -> Map<String, Value> {
        self.param.iter().flat_map(Param::parameters).collect()
    }

    /// Returns the prices of tokens, if they are set.
    ///
    /// # Errors
    /// If some are set, but not both `price_input` and `price_output`.
    pub(crate) fn prices(&self) -> anyhow::Result<Option<Prices>> {
        let (read, write) = (self.price_cache_read, self.price_cache_write);
        match (self.price_input, self.price_output) {
            (Some(input), Some(output)) => {
                let prices = Prices::per_million(input, output);
                let (read, write) = (read.unwrap_or(input), write.unwrap_or(input));
                Ok(Some(prices.with_cache_per_million(read, write)))
            }
            (None, None) if read.or(write).is_none() => Ok(None),
            _ => bail!("prices need both `price_input` and `price_output`"),
        }
    }
}

#[cfg(test)]
mod tests;
