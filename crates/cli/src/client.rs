//! The model that a run asks: a client for its dialect, or a recording.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use cantle::clients::anthropic::AnthropicClient;
use cantle::clients::chat::{ChatClient, Server};
use cantle::clients::fallback::Fallback;
use cantle::clients::http::{Dialect, HttpClientBuilder};
use cantle::clients::limit::{Limited, RateLimiter, RateLimits};
use cantle::clients::price::Priced;
use cantle::clients::record::Recorder;
use cantle::clients::replay::ReplayClient;
use cantle::clients::responses::ResponsesClient;
use cantle::clients::retry::{Retry, RetryPolicy};
use cantle::core::llm::{LlmClient, LlmError};
use cantle::core::secret::SecretText;

use crate::provider::{Api, Provider};
use crate::settings::{ServedModel, variable};
use crate::tape::{self, Playing};

/// A client, and what belongs to a recording where one is made or played.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) client: Arc<dyn LlmClient>,
    pub(crate) tape: Option<Tape>,
}

/// What becomes of the results of tools.
#[derive(Debug)]
pub(crate) enum Tape {
    Recording(tape::Recording),
    Playing(Playing),
}

/// A client for a model behind an endpoint. Not for use on a runtime.
pub(crate) fn served(model: &ServedModel) -> anyhow::Result<Asked> {
    let serving = &model.serving;
    serving.check()?;
    if serving.stateful == Some(true) && model.endpoint.api != Api::Responses {
        bail!("--stateful is for --api responses: no other provider keeps conversations");
    }
    let limits = (serving.rpm.is_some() || serving.tpm.is_some()).then(|| {
        let mut limits = RateLimits::default();
        limits.requests_per_minute = serving.rpm;
        limits.tokens_per_minute = serving.tpm;
        RateLimiter::new(limits)
    });
    let client = |slug: &str| {
        let client = match (model.endpoint.api, server(model)) {
            (Api::Chat, Some(server)) => {
                built(model, || ChatClient::builder(slug).server(server), &limits)
            }
            (Api::Chat, None) => built(model, || ChatClient::builder(slug), &limits),
            (Api::Responses, _) => {
                let stateful = serving.stateful.unwrap_or(false);
                let begun = || ResponsesClient::builder(slug).stateful(stateful);
                built(model, begun, &limits)
            }
            (Api::Messages, _) => built(model, || AnthropicClient::builder(slug), &limits),
        };
        client.map_err(|error| match error.advice() {
            Some(advice) => anyhow!("{error}. {advice}"),
            None => error.into(),
        })
    };
    let mut asked = client(&model.slug)?;
    if let Some(prices) = serving.prices() {
        asked = Arc::new(Priced::new(asked, prices));
    }
    let others = serving.fallback_model.iter().map(|slug| client(slug));
    let others = others.collect::<anyhow::Result<Vec<_>>>()?;
    if !others.is_empty() {
        asked = Arc::new(Fallback::new(asked, others));
    }
    match &model.record {
        Some(path) => recording(asked, model, path)
            .with_context(|| format!("failed to write the recording {}", path.display())),
        None => Ok(Asked {
            client: asked,
            tape: None,
        }),
    }
}

/// The same client, whose calls are written down.
fn recording(
    client: Arc<dyn LlmClient>,
    model: &ServedModel,
    path: &Path,
) -> anyhow::Result<Asked> {
    // A conversation is nobody else's to read.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    // Whatever key there is: a command may have found another one than ours.
    let own = model.endpoint.key.iter().map(|key| key.text.clone());
    let set = Provider::all_key_variables().filter_map(variable);
    let secrets = own.chain(set.map(|key| SecretText::new(key.trim())));
    let recorder = Recorder::new(client, options.open(path)?, secrets.collect())?;
    Ok(Asked {
        tape: Some(Tape::Recording(tape::Recording(recorder.results()))),
        client: Arc::new(recorder),
    })
}

/// Who serves it, where the address does not tell.
fn server(model: &ServedModel) -> Option<Server> {
    let litellm = is_litellm(model).then_some(Server::LiteLlm);
    model.serving.server.or(litellm)
}

fn is_litellm(model: &ServedModel) -> bool {
    model.endpoint.provider == Some(Provider::Litellm)
}

fn built<D: Dialect>(
    model: &ServedModel,
    begun: impl Fn() -> HttpClientBuilder<D>,
    limiter: &Option<RateLimiter>,
) -> Result<Arc<dyn LlmClient>, LlmError> {
    let told = || {
        let mut builder = begun()
            .base_url(&model.endpoint.base_url)
            .stream(model.stream);
        if let Some(key) = &model.endpoint.key {
            builder = builder.api_key(key.text.clone());
        }
        if let Some(tokens) = model.max_tokens {
            builder = builder.max_output_tokens(tokens);
        }
        if let Some(tokens) = model.context_window {
            builder = builder.context_window(tokens);
        }
        builder
    };
    let mut builder = told();
    // A proxy that can't say what it knows may still answer; and if not, the first turn says why.
    if is_litellm(model)
        && let Some(described) = described(told())
    {
        builder = described;
    }
    Ok(match limiter {
        // Refusals for the rate are the limiter's, and what else may pass is tried again around it.
        Some(limiter) => {
            let client = Limited::new(builder.max_retries(0).build()?, limiter.clone());
            Arc::new(Retry::new(client, RetryPolicy::default()))
        }
        None => Arc::new(builder.build()?),
    })
}

fn described<D: Dialect>(builder: HttpClientBuilder<D>) -> Option<HttpClientBuilder<D>> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().ok()?;
    runtime.block_on(builder.described_by_litellm()).ok()
}

/// A client that plays a recording.
pub(crate) fn recorded(json: &[u8]) -> anyhow::Result<Asked> {
    let client = ReplayClient::from_jsonl(json)?;
    let tape = client
        .plays_calls()
        .then(|| Tape::Playing(Playing::new(client.clone())));
    Ok(Asked {
        client: Arc::new(client),
        tape,
    })
}
