//! What a LiteLLM proxy knows of its models.

use std::time::Duration;

use cantle_core::content::MediaKind;
use cantle_core::llm::{Abilities, LlmError, LlmErrorKind, Prices};
use cantle_core::secret::SecretText;
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use serde::Deserialize;
use tokio::time::timeout;

use super::HttpClientBuilder;
use super::builder::{address, connection, for_people};
use super::dialect::Dialect;
use super::errors::Diagnosis;
use super::proxy::on_the_way;

/// It has its list in memory, so it need not be waited for as long as a model.
const PATIENCE: Duration = Duration::from_secs(5);

const PATH: &str = "/model/info";

impl<D: Dialect> HttpClientBuilder<D> {
    /// Asks the LiteLLM proxy at the base URL what it knows of the model: its context window, its
    /// prices and its abilities. What was given before wins; what the proxy does not know stays
    /// unknown. Where several deployments go by the model's name, the first counts, with the smallest
    /// of their windows. Needs a tokio runtime with time and I/O.
    ///
    /// # Errors
    /// As [`build`](Self::build) where the base URL or the key can't be used, and as a call where the
    /// proxy can't be reached, does not answer within 5 seconds, or refuses.
    pub async fn described_by_litellm(mut self) -> Result<Self, LlmError> {
        let url = address(&self.base_url, PATH)?;
        let key = self.key();
        let diagnosis = Diagnosis {
            way: on_the_way(&url)?,
            base_url: for_people(&url, PATH),
            path: PATH,
            answer: "a list of models",
            model: self.model.clone(),
            key,
        };
        let headers = headers(diagnosis.key.as_ref())?;
        let http = connection(&url, headers, self.timeouts.connect, diagnosis.way.as_ref())?;
        let asked = async {
            let response = http.get(url).send().await;
            let response = response.map_err(|error| diagnosis.no_response(error))?;
            let (status, headers) = (response.status(), response.headers().clone());
            let body = response.bytes().await;
            let body = body.map_err(|error| diagnosis.no_response(error))?;
            if !status.is_success() {
                return Err(diagnosis.refused(status.as_u16(), &headers, &body));
            }
            let read = serde_json::from_slice::<Listed>(&body);
            read.map_err(|error| diagnosis.no_answer(&headers, &body, &error.to_string()))
        };
        let Ok(listed) = timeout(PATIENCE, asked).await else {
            let (at, patience) = (&diagnosis.base_url, PATIENCE.as_secs());
            let message = format!("no answer from {at}{PATH} within {patience} s");
            return Err(LlmError::new(LlmErrorKind::Timeout, message));
        };
        self.fill_in(&listed?);
        Ok(self)
    }

    fn fill_in(&mut self, listed: &Listed) {
        let ours = || {
            listed
                .data
                .iter()
                .filter(|model| model.model_name == self.model)
        };
        let windows = ours().filter_map(|model| model.model_info.max_input_tokens);
        let window = windows.filter(|&window| window > 0).min();
        // An output limit that was given is not to be refused for what the proxy says.
        let fits = |window: &u64| self.max_output_tokens.is_none_or(|limit| limit <= *window);
        self.context_window = self.context_window.or(window.filter(fits));
        let info = ours().next().map(|model| &model.model_info);
        self.prices = self.prices.or_else(|| info?.prices());
        let abilities = self.abilities.take();
        self.abilities = abilities.or_else(|| info?.abilities());
    }
}

fn headers(key: Option<&SecretText>) -> Result<HeaderMap, LlmError> {
    let mut headers = HeaderMap::new();
    if let Some(key) = key {
        let bearer = HeaderValue::try_from(format!("Bearer {}", key.expose()));
        let mut bearer = bearer.map_err(|_| super::builder::unusable_key())?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    Ok(headers)
}

#[derive(Debug, Deserialize)]
struct Listed {
    data: Vec<Model>,
}

#[derive(Debug, Deserialize)]
struct Model {
    model_name: String,
    #[serde(default)]
    model_info: Info,
}

#[derive(Debug, Default, Deserialize)]
struct Info {
    max_input_tokens: Option<u64>,
    input_cost_per_token: Option<f64>,
    output_cost_per_token: Option<f64>,
    cache_read_input_token_cost: Option<f64>,
    cache_creation_input_token_cost: Option<f64>,
    supports_vision: Option<bool>,
    supports_audio_input: Option<bool>,
    supports_video_input: Option<bool>,
}

impl Info {
    fn prices(&self) -> Option<Prices> {
        let (input, output) = (self.input_cost_per_token?, self.output_cost_per_token?);
        // What nobody has set a price for is listed as free.
        if input <= 0.0 && output <= 0.0 {
            return None;
        }
        let mut prices = Prices::per_million(input * 1e6, output * 1e6);
        prices.cache_read = self
            .cache_read_input_token_cost
            .unwrap_or(prices.cache_read);
        prices.cache_write = self
            .cache_creation_input_token_cost
            .unwrap_or(prices.cache_write);
        Some(prices)
    }

    fn abilities(&self) -> Option<Abilities> {
        let images = self.supports_vision?;
        let media = [
            (MediaKind::Image, images),
            (MediaKind::Audio, self.supports_audio_input == Some(true)),
            (MediaKind::Video, self.supports_video_input == Some(true)),
        ];
        let media: Vec<_> = media
            .into_iter()
            .filter_map(|(kind, takes)| takes.then_some(kind))
            .collect();
        Some(Abilities::new(media.clone()).with_tool_results(media))
    }
}
