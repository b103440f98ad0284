//! How a client is described, and what is refused.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::llm::{Abilities, LlmError, LlmErrorKind, ModelInfo, Prices};
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Url, redirect};
use serde_json::{Map, Value};

use super::dialect::{Common, Dialect};
use super::endpoint::Endpoint;
use super::errors::Diagnosis;
use super::proxy::{OnTheWay, on_the_way};
use super::timeouts::Timeouts;
use super::{HttpClient, tls};
use crate::retry::RetryPolicy;

/// Describes an [`HttpClient`].
pub struct HttpClientBuilder<D: Dialect> {
    pub(super) model: String,
    pub(super) base_url: String,
    api_key: Option<SecretText>,
    pub(super) context_window: Option<u64>,
    pub(super) max_output_tokens: Option<u64>,
    pub(super) abilities: Option<Abilities>,
    pub(super) prices: Option<Prices>,
    stream: bool,
    pub(super) timeouts: Timeouts,
    max_retries: u32,
    extra: Map<String, Value>,
    pub(crate) options: D::Options,
}

impl<D: Dialect> HttpClientBuilder<D> {
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            base_url: D::BASE_URL.to_owned(),
            api_key: None,
            context_window: None,
            max_output_tokens: None,
            abilities: None,
            prices: None,
            stream: true,
            timeouts: Timeouts::default(),
            max_retries: RetryPolicy::default().max_retries,
            extra: Map::new(),
            options: D::Options::default(),
        }
    }

    /// Where the API is; the dialect's path, such as `/chat/completions`, is added. Its maker's by
    /// default. A query, such as Azure's `api-version`, is kept.
    #[must_use]
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = base_url.into();
        self
    }

    /// The key for that endpoint, sent as the dialect sends it. White space around it is dropped;
    /// an empty one is none.
    #[must_use]
    pub fn api_key(mut self, key: impl Into<SecretText>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Tokens that input and output may have together.
    #[must_use]
    pub fn context_window(mut self, tokens: u64) -> Self {
        self.context_window = Some(tokens);
        self
    }

    /// Tokens that one turn may produce, reasoning included.
    #[must_use]
    pub fn max_output_tokens(mut self, tokens: u64) -> Self {
        self.max_output_tokens = Some(tokens);
        self
    }

    /// What the model takes beside text. Where it is not said, everything that the dialect has a
    /// place for is sent, and the provider decides.
    #[must_use]
    pub fn abilities(mut self, abilities: Abilities) -> Self {
        self.abilities = Some(abilities);
        self
    }

    /// What tokens cost: an answer whose cost the provider does not say costs what its tokens come
    /// to.
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = Some(prices);
        self
    }

    /// Whether answers are streamed, which is the default. The messages are the same either way.
    #[must_use]
    pub fn stream(mut self, stream: bool) -> Self {
        self.stream = stream;
        self
    }

    /// How long is waited for what.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// How often a call is tried again before its first event. 2 by default; see
    /// [`retry`](crate::retry) for what and when.
    #[must_use]
    pub fn max_retries(mut self, retries: u32) -> Self {
        self.max_retries = retries;
        self
    }

    /// Further parameters of the request, sent as they are.
    #[must_use]
    pub fn extra(mut self, parameters: Map<String, Value>) -> Self {
        self.extra = parameters;
        self
    }

    /// Makes the client. For an `https` address this reads the system's certificates from disk.
    ///
    /// # Errors
    /// [`LlmErrorKind::InvalidRequest`] where the model has no name, a limit is 0 or above the
    /// context window, the base URL is not an `http` address, the key can't be sent, a parameter is
    /// one that the client sets itself, no certificate can be read from where the environment
    /// says they are, or the proxy that it names can't be used.
    pub fn build(self) -> Result<HttpClient<D>, LlmError> {
        if self.model.trim().is_empty() {
            return Err(invalid("the model has no name"));
        }
        let owned = |name: &&String| D::OWNED.contains(&name.as_str());
        if let Some(name) = self.extra.keys().find(owned) {
            return Err(invalid(format!(
                "the extra parameter `{name}` is one that the client sets itself"
            )));
        }
        let url = address(&self.base_url, D::PATH)?;
        let key = self.key();

        let mut model =
            ModelInfo::new(&self.model).with_limits(self.context_window, self.max_output_tokens)?;
        model.abilities = self.abilities;
        model.prices = self.prices;
        let common = Common {
            model: &self.model,
            base_url: self.base_url.trim(),
            stream: self.stream,
            max_output_tokens: self.max_output_tokens,
            context_window: self.context_window,
            extra: &self.extra,
        };
        let dialect = D::new(self.options, &common)?;
        // Who made the dialects tells tokens and no costs.
        let own = || {
            self.base_url
                .trim()
                .starts_with(D::BASE_URL)
                .then_some(false)
        };
        model.reports_cost = dialect.reports_cost().or_else(own);

        let headers = headers(&dialect, key.as_ref())?;
        let way = on_the_way(&url)?;
        let http = connection(&url, headers, self.timeouts.connect, way.as_ref())?;
        let diagnosis = Diagnosis {
            way,
            base_url: for_people(&url, D::PATH),
            path: D::PATH,
            answer: D::ANSWER,
            model: self.model,
            key,
        };
        Ok(HttpClient {
            endpoint: Arc::new(Endpoint {
                model,
                dialect,
                url,
                http,
                streams: self.stream,
                timeouts: self.timeouts,
                diagnosis,
            }),
            retries: RetryPolicy::new(self.max_retries),
        })
    }

    /// The key as it is sent.
    pub(super) fn key(&self) -> Option<SecretText> {
        let key = self.api_key.as_ref()?.expose().trim();
        (!key.is_empty()).then(|| SecretText::new(key))
    }
}

/// What requests to an address go through, and the proxy on the way to it.
pub(super) fn connection(
    url: &Url,
    headers: HeaderMap,
    connect: Duration,
    way: Option<&OnTheWay>,
) -> Result<reqwest::Client, LlmError> {
    let tls = if url.scheme() == "https" || way.is_some_and(|way| way.speaks_tls) {
        tls::trusting()?
    } else {
        tls::none()?
    };
    let client = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")))
        .default_headers(headers)
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(connect);
    let client = match way {
        Some(way) => client.proxy(way.proxy.clone()),
        None => client,
    };
    client
        .build()
        .map_err(|error| invalid("no HTTP client can be made").with_source(error))
}

/// The base URL may hold a password until it has been checked.
impl<D: Dialect> fmt::Debug for HttpClientBuilder<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(&format!("{}Builder", D::CLIENT))
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

pub(crate) fn invalid(message: impl Into<String>) -> LlmError {
    LlmError::new(LlmErrorKind::InvalidRequest, message)
}

pub(super) fn unusable_key() -> LlmError {
    invalid("the API key holds characters that can't be sent")
        .with_advice("Check that the key is one line of plain text.")
}

pub(super) fn address(base_url: &str, path: &str) -> Result<Url, LlmError> {
    let advice = "Write the base URL like http://localhost:8000/v1.";
    // What does not parse may be a key in the wrong place, so it is not repeated.
    let mut url = Url::parse(base_url.trim())
        .map_err(|error| invalid("the base URL is not a URL").with_source(error))
        .map_err(|error| error.with_advice(advice))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid("the base URL must begin with http:// or https://").with_advice(advice));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("the base URL must not hold a name or a password")
            .with_advice("Give the key as the API key."));
    }
    url.set_fragment(None);
    if url.path().trim_end_matches('/').ends_with(path) {
        return Err(invalid(format!("the base URL must not end in {path}"))
            .with_advice("Leave that out: it is added to every request."));
    }
    if let Ok(mut segments) = url.path_segments_mut() {
        let added = path.split('/').filter(|segment| !segment.is_empty());
        segments.pop_if_empty().extend(added);
    }
    Ok(url)
}

/// The base URL without its query, which may hold something secret.
pub(super) fn for_people(url: &Url, path: &str) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.as_str().trim_end_matches(path).to_owned()
}

fn headers<D: Dialect>(dialect: &D, key: Option<&SecretText>) -> Result<HeaderMap, LlmError> {
    let mut headers = dialect.headers();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = key {
        let (name, value) = dialect.authorization(key);
        // The error would show nothing of the key, but says nothing of use either.
        let mut value = HeaderValue::try_from(value).map_err(|_| unusable_key())?;
        value.set_sensitive(true);
        headers.insert(HeaderName::from_static(name), value);
    }
    Ok(headers)
}
