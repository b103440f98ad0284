//! The client that answers a run's model calls: over HTTP, or from a recording.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use cantle::clients::anthropic::AnthropicClient;
use cantle::clients::chat::{ChatClient, Server};
use cantle::clients::fallback::Fallback;
use cantle::clients::http::{Dialect, HttpClientBuilder};
use cantle::clients::limit::{RateLimiter, RateLimits};
use cantle::clients::price::Priced;
use cantle::clients::record::Recorder;
use cantle::clients::replay::ReplayClient;
use cantle::clients::responses::ResponsesClient;
use cantle::core::content::MediaKind;
use cantle::core::llm::{InputModalities, LlmClient, LlmError, ModelInfo};
use cantle::core::secret::SecretText;

use crate::args::RunArgs;
use crate::config::{ModelSource, RunConfig};
use crate::endpoint::Endpoint;
use crate::environment::variable;
use crate::provider::{Api, Provider};
use crate::replay::{RecordHooks, ReplayHooks};
use crate::settings::{ModelSettings, Switch};

/// The client of a run, with the hooks that record or replay the results of its tools.
pub(crate) struct RunClient {
    pub(crate) llm: Arc<dyn LlmClient>,
    pub(crate) limiter: RateLimiter,
    pub(crate) record: Option<RecordHooks>,
    pub(crate) replay: Option<ReplayHooks>,
}

impl RunClient {
    /// Builds the client of a model, or of a recording.
    ///
    /// # Errors
    /// Also if a budget of costs can't be enforced.
    pub(crate) async fn open(config: &RunConfig, args: &RunArgs) -> anyhow::Result<Self> {
        let settings = &config.settings.model;
        let limiter = limiter(settings);
        let (llm, record, replay) = match &config.model {
            ModelSource::Endpoint(name, endpoint) => {
                let client = connect(name, endpoint, settings, &limiter);
                let client = Box::pin(client).await?;
                check_cost_budget(args.budget.budget_usd, client.model())?;
                let (llm, record) = match &args.record {
                    Some(path) => recorded(client, endpoint, path)?,
                    None => (client, None),
                };
                (llm, record, None)
            }
            ModelSource::Recording(path) => {
                let json = fs::read(path);
                let json = json.with_context(|| format!("failed to read {}", path.display()))?;
                let replayed = replay(&json).with_context(|| path.display().to_string());
                let (llm, hooks) = replayed?;
                (llm, None, hooks)
            }
        };
        Ok(Self {
            llm,
            limiter,
            record,
            replay,
        })
    }
}

/// Returns the rate limit that settings ask for.
pub(crate) fn limiter(settings: &ModelSettings) -> RateLimiter {
    let mut limits = RateLimits::default();
    limits.requests_per_minute = settings.rpm.map(Into::into);
    limits.tokens_per_minute = settings.tpm.map(Into::into);
    RateLimiter::new(limits)
}

/// Builds the client for a model behind an endpoint.
pub(crate) async fn connect(
    model: &str,
    endpoint: &Endpoint,
    settings: &ModelSettings,
    limiter: &RateLimiter,
) -> anyhow::Result<Arc<dyn LlmClient>> {
    if settings.stateful == Some(true) && endpoint.api != Api::Responses {
        bail!("--stateful needs --api responses: no other provider stores conversations");
    }
    let prices = settings.prices()?;
    let build = async |model: &str, limiter: RateLimiter| {
        let client = client(model, endpoint, settings, limiter).await;
        client.map_err(|error| match error.advice() {
            Some(advice) => anyhow!("{error}. {advice}"),
            None => error.into(),
        })
    };
    let mut client = build(model, limiter.clone()).await?;
    if let Some(prices) = prices {
        client = Arc::new(Priced::new(client, prices));
    }
    if !settings.fallback_model.is_empty() {
        let mut fallbacks = Vec::new();
        for model in &settings.fallback_model {
            // A rate limit error of one model must not delay the next one.
            fallbacks.push(build(model, limiter.for_other_model()).await?);
        }
        client = Arc::new(Fallback::new(client, fallbacks));
    }
    Ok(client)
}

/// Wraps a client so that its calls are recorded, and returns the hooks that record tool results.
fn recorded(
    client: Arc<dyn LlmClient>,
    endpoint: &Endpoint,
    path: &Path,
) -> anyhow::Result<(Arc<dyn LlmClient>, Option<RecordHooks>)> {
    let failed = || format!("failed to write the recording {}", path.display());
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    // All keys are removed: a command may have printed another one than the endpoint's.
    let key = endpoint.key.iter().map(|key| key.text.clone());
    let set = Provider::all_key_variables().filter_map(variable);
    let secrets = key.chain(set.map(|key| SecretText::new(key.trim())));
    let file = options.open(path).with_context(failed)?;
    let recorder = Recorder::new(client, file, secrets.collect()).with_context(failed)?;
    let hooks = RecordHooks(recorder.results());
    Ok((Arc::new(recorder), Some(hooks)))
}

/// Builds a client that replays a recording, and returns the hooks that replay tool results, if it has any.
fn replay(json: &[u8]) -> anyhow::Result<(Arc<dyn LlmClient>, Option<ReplayHooks>)> {
    let client = ReplayClient::from_jsonl(json)?;
    let hooks = client
        .replays_calls()
        .then(|| ReplayHooks::new(client.clone()));
    Ok((Arc::new(client), hooks))
}

/// Builds the client for one model.
async fn client(
    model: &str,
    endpoint: &Endpoint,
    settings: &ModelSettings,
    limiter: RateLimiter,
) -> Result<Arc<dyn LlmClient>, LlmError> {
    let with = (endpoint, settings, limiter);
    match endpoint.api {
        Api::Chat => {
            let server = settings.server.or(match endpoint.provider {
                Some(Provider::Litellm) => Some(Server::LiteLlm),
                Some(Provider::Openrouter) => Some(Server::OpenRouter),
                _ => None,
            });
            let begin = || match server {
                Some(server) => ChatClient::builder(model).server(server),
                None => ChatClient::builder(model),
            };
            build(begin, with).await
        }
        Api::Responses => {
            let stateful = settings.stateful == Some(true);
            build(|| ResponsesClient::builder(model).stateful(stateful), with).await
        }
        Api::Messages => build(|| AnthropicClient::builder(model), with).await,
    }
}

async fn build<D: Dialect>(
    begin: impl Fn() -> HttpClientBuilder<D>,
    (endpoint, settings, limiter): (&Endpoint, &ModelSettings, RateLimiter),
) -> Result<Arc<dyn LlmClient>, LlmError> {
    let configured = || {
        let mut builder = begin()
            .base_url(&endpoint.base_url)
            .stream(settings.no_stream != Some(true))
            .extra(settings.parameters())
            .retry(settings.retry())
            .limiter(limiter.clone());
        if let Some(key) = &endpoint.key {
            builder = builder.api_key(key.text.clone());
        }
        if let Some(tokens) = settings.max_tokens {
            builder = builder.max_output_tokens(tokens);
        }
        if let Some(effort) = &settings.effort {
            builder = builder.reasoning_effort(effort);
        }
        if let Some(temperature) = settings.temperature {
            builder = builder.temperature(temperature);
        }
        if let Some(vision) = settings.vision {
            builder = builder.input_modalities(match vision {
                Switch::On => {
                    InputModalities::new([MediaKind::Image]).with_tool_results([MediaKind::Image])
                }
                Switch::Off => InputModalities::text_only(),
            });
        }
        if let Some(tokens) = settings.context_window {
            builder = builder.context_window(tokens);
        }
        builder
    };
    // If the proxy can't describe its models, it may still answer; otherwise the first turn fails.
    if endpoint.provider == Some(Provider::Litellm)
        && let Ok(described) = configured().described_by_litellm().await
    {
        return Ok(Arc::new(described.build()?));
    }
    Ok(Arc::new(configured().build()?))
}

/// Refuses a cost budget unless the cost of the model and its fallbacks is known: there are prices, or the
/// provider is known to report costs.
pub(crate) fn check_cost_budget(budget_usd: Option<f64>, info: &ModelInfo) -> anyhow::Result<()> {
    let (Some(_), Some(model)) = (budget_usd, info.without_cost()) else {
        return Ok(());
    };
    let advice = match model.slug == info.slug {
        true => "Set --price-input/--price-output or use --budget-tokens.",
        // Prices can be set for the model itself only.
        false => "Use --budget-tokens.",
    };
    bail!(
        "no price is known for {}, so --budget-usd can't be enforced. {advice}",
        model.slug
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cantle::core::llm::{ChatRequest, LlmClientExt as _, ToolSpecs};
    use cantle::core::message::Message;
    use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ServerOptions, Turn};

    use super::{connect, limiter};
    use crate::endpoint::Endpoint;
    use crate::settings::ModelSettings;

    #[tokio::test]
    async fn a_rate_limit_does_not_delay_the_fallback_model() {
        let refused = Reply::error(429).header("retry-after", "60");
        let refused = Turn::text("").fault_always(Fault::Reply(refused));
        let options = ServerOptions::new(Script::new().turn(Turn::text("Hi")))
            .model("limited", Script::new().turn(refused));
        let server = ScriptedServer::start(options).await.unwrap();
        let settings = ModelSettings {
            base_url: Some(server.url()),
            fallback_model: vec!["other".to_owned()],
            ..ModelSettings::default()
        };
        let endpoint = Endpoint::resolve(&settings, None, |_| None).unwrap();
        let limiter = limiter(&settings);
        let client = connect("limited", &endpoint, &settings, &limiter).await;
        let client = client.unwrap();
        let request = ChatRequest::new(vec![Message::user("Hi").into()], ToolSpecs::default());
        let call = tokio::time::timeout(Duration::from_secs(30), client.complete(request));
        assert_eq!(call.await.unwrap().unwrap().message.text(), "Hi");
    }
}
