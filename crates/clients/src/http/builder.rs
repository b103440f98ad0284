//! Builder of [`HttpClient`] and validation of its settings.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{InputModalities, LlmError, ModelInfo, Prices};
use cantle_core::secret::SecretText;
use cantle_tls::TlsOptions;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Url, redirect};
use serde_json::{Map, Value};

use super::HttpClient;
use super::dialect::Dialect;
use super::endpoint::Endpoint;
use super::errors::ErrorContext;
use super::proxy::{ProxyRoute, proxy_for};
use super::settings::{ClientSettings, invalid};
use super::timeouts::Timeouts;
use crate::limit::RateLimiter;
use crate::list_prices::{self, ListedModel};
use crate::retry::{Retrier, RetryPolicy};

/// Parameters that change the price of a request.
const PRICED_PARAMETERS: [&str; 3] = ["inference_geo", "service_tier", "speed"];

/// Builder of an [`HttpClient`].
#[must_use]
pub struct HttpClientBuilder<D: Dialect> {
    pub(super) settings: ClientSettings,
    api_key: Option<SecretText>,
    pub(super) input_modalities: Option<InputModalities>,
    pub(super) prices: Option<Prices>,
    pub(super) timeouts: Timeouts,
    retry: RetryPolicy,
    limiter: RateLimiter,
    pub(crate) options: D::Options,
}

impl<D: Dialect> HttpClientBuilder<D> {
    pub(super) fn new(model: String) -> Self {
        Self {
            settings: ClientSettings {
                model,
                base_url: D::BASE_URL.to_owned(),
                stream: true,
                ..ClientSettings::default()
            },
            api_key: None,
            input_modalities: None,
            prices: None,
            timeouts: Timeouts::default(),
            retry: RetryPolicy::default(),
            limiter: RateLimiter::default(),
            options: D::Options::default(),
        }
    }

    /// Sets the base URL; the dialect's path, such as `/chat/completions`, is appended.
    ///
    /// Defaults to the API of the dialect's vendor. A query, such as Azure's `api-version`, is kept.
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.settings.base_url = base_url.into().trim().to_owned();
        self
    }

    /// Sets the API key for the endpoint. Surrounding white space is removed; an empty key is ignored.
    pub fn api_key(mut self, key: impl Into<SecretText>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Sets the context window: the maximum number of input and output tokens together.
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.settings.context_window = Some(tokens);
        self
    }

    /// Sets the maximum number of output tokens of one turn, reasoning included.
    pub fn max_output_tokens(mut self, tokens: u64) -> Self {
        self.settings.max_output_tokens = Some(tokens);
        self
    }

    /// Sets the input types that the model accepts besides text.
    ///
    /// If unset, all media that the dialect supports are sent, and the provider decides.
    pub fn input_modalities(mut self, input_modalities: InputModalities) -> Self {
        self.input_modalities = Some(input_modalities);
        self
    }

    /// Sets the token prices. Those of the user replace costs that the provider reports.
    ///
    /// If unset, [list prices](crate::list_prices) apply to models at their provider's own endpoint.
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = Some(prices);
        self
    }

    /// Sets whether responses are streamed, which is the default. The messages are the same either way.
    pub fn stream(mut self, stream: bool) -> Self {
        self.settings.stream = stream;
        self
    }

    /// Sets the timeouts.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Sets how failed calls are repeated: by default for five minutes.
    pub fn retry(mut self, policy: RetryPolicy) -> Self {
        self.retry = policy;
        self
    }

    /// Sets the rate limiter, to share it with other clients of the same account. By default, a client
    /// and its clones have one of their own.
    pub fn limiter(mut self, limiter: RateLimiter) -> Self {
        self.limiter = limiter;
        self
    }

    /// Sets the reasoning effort, as the provider names it, e.g. `high`.
    ///
    /// It is sent as `reasoning_effort` (Chat Completions), `reasoning.effort` (Responses, OpenRouter), or
    /// `output_config.effort` with adaptive thinking (Messages).
    pub fn reasoning_effort(mut self, effort: impl Into<String>) -> Self {
        self.settings.reasoning_effort = Some(effort.into());
        self
    }

    /// Sets the sampling temperature. Many reasoning models accept their default only.
    pub fn temperature(mut self, temperature: f64) -> Self {
        self.settings.temperature = Some(temperature);
        self
    }

    /// Sets additional request parameters, which are sent unchanged.
    pub fn extra(mut self, parameters: Map<String, Value>) -> Self {
        self.settings.extra = parameters;
        self
    }

    /// Creates the client. For an `https` URL this reads the system's certificates from disk.
    ///
    /// # Errors
    /// [`InvalidRequest`](cantle_core::llm::LlmErrorKind::InvalidRequest) if the model has no name, a limit is 0 or exceeds the context
    /// window, the base URL is not an HTTP URL, the key is not a valid header value, a parameter is
    /// reserved or set twice, the temperature is negative or not finite, the configured certificates cannot be read, or the configured proxy cannot be used.
    pub fn build(mut self) -> Result<HttpClient<D>, LlmError> {
        if self.settings.model.trim().is_empty() {
            return Err(invalid("the model name is empty"));
        }
        let reserved = |name: &&String| D::RESERVED.contains(&name.as_str());
        if let Some(name) = self.settings.extra.keys().find(reserved) {
            return Err(invalid(format!(
                "the extra parameter `{name}` is reserved: the client sets it itself"
            )));
        }
        let url = endpoint_url(&self.settings.base_url, D::PATH)?;
        let key = self.trimmed_key();

        let listed = list_prices::at(&url).and_then(|list| list.model(&self.settings.model));
        let window = listed.and_then(|listed| listed.context_window);
        self.settings.set_default_window(window);
        let settings = &self.settings;
        let mut model = ModelInfo::new(&settings.model)
            .with_limits(settings.context_window, settings.max_output_tokens)?;
        model.parameters = settings.parameters()?;
        model.input_modalities = self.input_modalities;
        let has_list_price = !PRICED_PARAMETERS
            .iter()
            .any(|name| settings.extra.contains_key(*name));
        let listed = listed.filter(|_| has_list_price).map(ListedModel::prices);
        model.prices = self.prices.or(listed);
        model.highest_prices = list_prices::highest_for(&settings.model);
        let dialect = D::new(self.options, settings)?;
        // The vendors' own APIs report tokens but no cost.
        let is_vendor = settings.base_url.starts_with(D::BASE_URL);
        model.reports_cost = dialect.reports_cost().or(is_vendor.then_some(false));

        let json = HeaderValue::from_static("application/json");
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, json)]);
        let headers = authorized(headers, key.as_ref().map(|key| dialect.authorization(key)))?;
        let proxy = proxy_for(&url)?;
        let http = http_client(&url, headers, self.timeouts.connect, proxy.as_ref())?;
        let errors = ErrorContext {
            proxy,
            base_url: display_url(&url, D::PATH),
            path: D::PATH,
            response: D::RESPONSE,
            model: self.settings.model,
            key,
        };
        Ok(HttpClient {
            endpoint: Arc::new(Endpoint {
                model,
                dialect,
                url,
                http,
                stream: self.settings.stream,
                timeouts: self.timeouts,
                errors,
            }),
            retrier: Retrier::new(self.retry, self.limiter),
        })
    }

    /// Returns the key without surrounding white space, unless it is empty.
    pub(super) fn trimmed_key(&self) -> Option<SecretText> {
        let key = self.api_key.as_ref()?.expose().trim();
        (!key.is_empty()).then(|| SecretText::new(key))
    }
}

/// Creates the HTTP client for requests to `url`.
pub(super) fn http_client(
    url: &Url,
    headers: HeaderMap,
    connect_timeout: Duration,
    proxy: Option<&ProxyRoute>,
) -> Result<reqwest::Client, LlmError> {
    let tls = if url.scheme() == "https" || proxy.is_some_and(|proxy| proxy.uses_tls) {
        TlsOptions::new().build()
    } else {
        cantle_tls::without_roots()
    };
    let tls = tls.map_err(|error| {
        invalid(error.to_string())
            .with_advice(error.advice())
            .with_source(error.into_source())
    })?;
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(connect_timeout);
    let client = match proxy {
        Some(route) => client.proxy(route.proxy.clone()),
        None => client,
    };
    let failed = |error| invalid("failed to create the HTTP client").with_source(error);
    client.build().map_err(failed)
}

/// Omits the base URL, which may contain a password until `build` has checked it.
impl<D: Dialect> fmt::Debug for HttpClientBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&format!("{}Builder", D::CLIENT))
            .field("model", &self.settings.model)
            .finish_non_exhaustive()
    }
}

/// Parses the base URL and appends `path`.
pub(super) fn endpoint_url(base_url: &str, path: &str) -> Result<Url, LlmError> {
    let advice = "Write the base URL like http://localhost:8000/v1.";
    // The invalid text may be a misplaced key, so the error does not contain it.
    let refused = |message| invalid(message).with_advice(advice);
    let mut url = Url::parse(base_url.trim())
        .map_err(|error| refused("the base URL is not a URL").with_source(error))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refused("the base URL must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(
            invalid("the base URL must not contain a user name or a password")
                .with_advice("Set the key as the API key."),
        );
    }
    url.set_fragment(None);
    if url.path().trim_end_matches('/').ends_with(path) {
        return Err(invalid(format!("the base URL must not end in {path}"))
            .with_advice("Remove the suffix: it is appended to every request."));
    }
    if let Ok(mut segments) = url.path_segments_mut() {
        let added = path.split('/').filter(|segment| !segment.is_empty());
        segments.pop_if_empty().extend(added);
    }
    Ok(url)
}

/// Returns the base URL for messages, without its query, which may contain a secret.
pub(super) fn display_url(url: &Url, path: &str) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.as_str().trim_end_matches(path).to_owned()
}

/// Adds the name and the value of the authorization header, if any.
pub(super) fn authorized(
    mut headers: HeaderMap,
    authorization: Option<(&'static str, String)>,
) -> Result<HeaderMap, LlmError> {
    if let Some((name, value)) = authorization {
        let mut value = HeaderValue::try_from(value).map_err(|_| {
            invalid("the API key contains characters that are not allowed in an HTTP header")
                .with_advice("Check that the key is one line of plain text.")
        })?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}
