//! Model metadata from a LiteLLM proxy.

use std::time::Duration;

use cantle_core::content::MediaKind;
use cantle_core::llm::{InputModalities, LlmError, LlmErrorKind, PriceSource, Prices};
use reqwest::header::HeaderMap;
use serde::Deserialize;
use tokio::time::timeout;

use super::HttpClientBuilder;
use super::body::{body_chunks, read_body};
use super::builder::{authorized, display_url, endpoint_url, http_client};
use super::dialect::{Dialect, bearer_token};
use super::errors::ErrorContext;
use super::proxy::proxy_for;

/// Short, because the proxy answers from memory.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum size of the list of models in bytes.
const MAX_LIST_BYTES: usize = 16 << 20;

const PATH: &str = "/model/info";

impl<D: Dialect> HttpClientBuilder<D> {
    /// Queries the LiteLLM proxy at the base URL for the model's context window, prices and abilities.
    ///
    /// Explicit settings take precedence. If the proxy has several deployments of that name, the first
    /// one is used, with the smallest of their windows. Requires a Tokio runtime with time and I/O.
    ///
    /// # Errors
    /// Those of [`build`](Self::build) for an invalid base URL or key; those of a call if the proxy is
    /// unreachable, does not answer within 5 seconds, or rejects the request.
    pub async fn described_by_litellm(mut self) -> Result<Self, LlmError> {
        let url = endpoint_url(&self.settings.base_url, PATH)?;
        let key = self.trimmed_key();
        let errors = ErrorContext {
            proxy: proxy_for(&url)?,
            base_url: display_url(&url, PATH),
            path: PATH,
            response: "a list of models",
            model: self.settings.model.clone(),
            key,
        };
        let bearer = errors.key.as_ref().map(bearer_token);
        let headers = authorized(HeaderMap::new(), bearer)?;
        let http = http_client(&url, headers, self.timeouts.connect, errors.proxy.as_ref())?;
        let query = async {
            let response = http.get(url).send().await;
            let response = response.map_err(|error| errors.request_failed(error))?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = read_body(body_chunks(response, MAX_LIST_BYTES, TIMEOUT)).await?;
            if !status.is_success() {
                return Err(errors.status_error(status.as_u16(), &headers, &body));
            }
            errors.parse_body::<ModelList>(&headers, &body)
        };
        let Ok(list) = timeout(TIMEOUT, query).await else {
            let (base_url, seconds) = (&errors.base_url, TIMEOUT.as_secs());
            let message = format!("no response from {base_url}{PATH} within {seconds} s");
            return Err(LlmError::new(LlmErrorKind::Timeout, message));
        };
        self.apply(&list?);
        Ok(self)
    }

    fn apply(&mut self, list: &ModelList) {
        let models = list.data.iter();
        let deployments = || {
            models
                .clone()
                .filter(|model| model.model_name == self.settings.model)
        };
        let windows = deployments().filter_map(|model| model.model_info.max_input_tokens);
        let window = windows.filter(|&window| window > 0).min();
        let info = deployments().next().map(|model| &model.model_info);
        self.settings.set_default_window(window);
        self.prices = self.prices.or_else(|| info?.prices());
        let input_modalities = self.input_modalities.take();
        self.input_modalities = input_modalities.or_else(|| info?.input_modalities());
    }
}

#[derive(Debug, Deserialize)]
struct ModelList {
    data: Vec<Deployment>,
}

#[derive(Debug, Deserialize)]
struct Deployment {
    model_name: String,
    #[serde(default)]
    model_info: DeploymentInfo,
}

#[derive(Debug, Default, Deserialize)]
struct DeploymentInfo {
    max_input_tokens: Option<u64>,
    input_cost_per_token: Option<f64>,
    output_cost_per_token: Option<f64>,
    cache_read_input_token_cost: Option<f64>,
    cache_creation_input_token_cost: Option<f64>,
    supports_vision: Option<bool>,
    supports_audio_input: Option<bool>,
    supports_video_input: Option<bool>,
}

impl DeploymentInfo {
    fn prices(&self) -> Option<Prices> {
        let (input, output) = (self.input_cost_per_token?, self.output_cost_per_token?);
        // Models without a configured price are listed with a price of 0.
        if input <= 0.0 && output <= 0.0 {
            return None;
        }
        let mut prices =
            Prices::per_million(input * 1e6, output * 1e6).from_source(PriceSource::Provider);
        let (read, write) = (
            self.cache_read_input_token_cost,
            self.cache_creation_input_token_cost,
        );
        prices.cache_read = read.unwrap_or(prices.cache_read);
        prices.cache_write = write.unwrap_or(prices.cache_write);
        Some(prices)
    }

    fn input_modalities(&self) -> Option<InputModalities> {
        let images = self.supports_vision?;
        let media = [
            (MediaKind::Image, Some(images)),
            (MediaKind::Audio, self.supports_audio_input),
            (MediaKind::Video, self.supports_video_input),
        ];
        let supported = media.into_iter().filter(|(_, takes)| *takes == Some(true));
        let media: Vec<_> = supported.map(|(kind, _)| kind).collect();
        Some(InputModalities::new(media.clone()).with_tool_results(media))
    }
}
