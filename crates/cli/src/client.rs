//! The model that a run asks: a client for its dialect, or a recording.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, anyhow};
use cantle::clients::anthropic::AnthropicClient;
use cantle::clients::chat::{ChatClient, Server};
use cantle::clients::http::{Dialect, HttpClientBuilder};
use cantle::clients::record::Recorder;
use cantle::clients::replay::ReplayClient;
use cantle::clients::responses::ResponsesClient;
use cantle::core::llm::{LlmClient, LlmError};

use crate::provider::{Api, Provider};
use crate::settings::ServedModel;

/// A client for a model behind an endpoint. Not for use on a runtime.
pub(crate) fn served(model: &ServedModel) -> anyhow::Result<Arc<dyn LlmClient>> {
    let slug = model.slug.as_str();
    let client = match model.endpoint.api {
        Api::Chat if is_litellm(model) => {
            built(model, || ChatClient::builder(slug).server(Server::LiteLlm))
        }
        Api::Chat => built(model, || ChatClient::builder(slug)),
        Api::Responses => built(model, || ResponsesClient::builder(slug)),
        Api::Messages => built(model, || AnthropicClient::builder(slug)),
    };
    let client = client.map_err(|error| match error.advice() {
        Some(advice) => anyhow!("{error}. {advice}"),
        None => error.into(),
    })?;
    match &model.record {
        Some(path) => recording(client, model, path)
            .with_context(|| format!("failed to write the recording {}", path.display())),
        None => Ok(client),
    }
}

/// The same client, whose calls are written down.
fn recording(
    client: Arc<dyn LlmClient>,
    model: &ServedModel,
    path: &Path,
) -> anyhow::Result<Arc<dyn LlmClient>> {
    // A conversation is nobody else's to read.
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let secrets = model.endpoint.key.iter().map(|key| key.text.clone());
    let recorder = Recorder::new(client, options.open(path)?, secrets.collect())?;
    Ok(Arc::new(recorder))
}

fn is_litellm(model: &ServedModel) -> bool {
    model.endpoint.provider == Some(Provider::Litellm)
}

fn built<D: Dialect>(
    model: &ServedModel,
    begun: impl Fn() -> HttpClientBuilder<D>,
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
    Ok(Arc::new(builder.build()?))
}

fn described<D: Dialect>(builder: HttpClientBuilder<D>) -> Option<HttpClientBuilder<D>> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().ok()?;
    runtime.block_on(builder.described_by_litellm()).ok()
}

/// A client that plays a recording.
pub(crate) fn recorded(json: &[u8]) -> anyhow::Result<Arc<dyn LlmClient>> {
    Ok(Arc::new(ReplayClient::from_jsonl(json)?))
}
