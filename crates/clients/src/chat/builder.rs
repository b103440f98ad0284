//! How a client is described, and what is refused.

use std::fmt;
use std::sync::Arc;

use cantle_core::llm::{LlmError, LlmErrorKind, ModelInfo};
use cantle_core::secret::SecretText;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Url, redirect};
use serde::Serialize;
use serde_json::{Map, Value};

use super::endpoint::Endpoint;
use super::errors::Diagnosis;
use super::timeouts::Timeouts;
use super::{ChatClient, tls};
use crate::retry::RetryPolicy;

const OPENAI: &str = "https://api.openai.com/v1";

/// Parameters that the client sets itself. `n` would ask for answers that nobody reads.
const OWNED: [&str; 9] = [
    "max_completion_tokens",
    "messages",
    "model",
    "n",
    "reasoning_effort",
    "stream",
    "stream_options",
    "tool_choice",
    "tools",
];

/// Describes a [`ChatClient`].
pub struct ChatClientBuilder {
    model: String,
    base_url: String,
    api_key: Option<SecretText>,
    context_window: Option<u64>,
    max_output_tokens: Option<u64>,
    reasoning_effort: Option<String>,
    stream: bool,
    timeouts: Timeouts,
    max_retries: u32,
    extra: Map<String, Value>,
}

impl ChatClientBuilder {
    pub(super) fn new(model: String) -> Self {
        Self {
            model,
            base_url: OPENAI.to_owned(),
            api_key: None,
            context_window: None,
            max_output_tokens: None,
            reasoning_effort: None,
            stream: true,
            timeouts: Timeouts::default(),
            max_retries: RetryPolicy::default().max_retries,
            extra: Map::new(),
        }
    }

    /// Where the API is; `/chat/completions` is added. OpenAI's by default. A query, such as Azure's
    /// `api-version`, is kept.
    #[must_use]
    pub fn base_url(mut self, base_url: impl Into<String>) -> Self {
        self.base_url = base_url.into();
        self
    }

    /// The key for that endpoint, sent as a bearer token. White space around it is dropped; an empty
    /// one is none.
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

    /// Tokens that one turn may produce, sent as `max_completion_tokens`. For a server that only
    /// knows `max_tokens`, leave it out and give that with [`extra`](Self::extra).
    #[must_use]
    pub fn max_output_tokens(mut self, tokens: u64) -> Self {
        self.max_output_tokens = Some(tokens);
        self
    }

    /// How hard a reasoning model thinks, in the provider's words, e.g. `high`.
    #[must_use]
    pub fn reasoning_effort(mut self, effort: impl Into<String>) -> Self {
        self.reasoning_effort = Some(effort.into());
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
    /// one that the client sets itself, or no certificate can be read from where the environment
    /// says they are.
    pub fn build(self) -> Result<ChatClient, LlmError> {
        if self.model.trim().is_empty() {
            return Err(invalid("the model has no name"));
        }
        if let Some(name) = self
            .extra
            .keys()
            .find(|name| OWNED.contains(&name.as_str()))
        {
            return Err(invalid(format!(
                "the extra parameter `{name}` is one that the client sets itself"
            )));
        }
        let url = address(&self.base_url)?;
        let key = self.api_key.map(|key| SecretText::new(key.expose().trim()));
        let key = key.filter(|key| !key.expose().is_empty());

        let head = Head {
            model: &self.model,
            stream: self.stream,
            stream_options: self.stream.then_some(StreamOptions {
                include_usage: true,
            }),
            max_completion_tokens: self.max_output_tokens,
            reasoning_effort: self.reasoning_effort.as_deref(),
            extra: &self.extra,
        };
        let mut head = serde_json::to_vec(&head).map_err(|error| {
            invalid("the parameters can't be written as JSON").with_source(error)
        })?;
        // The messages follow in the same object.
        head.pop();

        let tls = if url.scheme() == "https" {
            tls::trusting()?
        } else {
            tls::none()?
        };
        let http = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")))
            .default_headers(headers(key.as_ref())?)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .http1_only()
            .tcp_nodelay(true)
            .connect_timeout(self.timeouts.connect)
            .build()
            .map_err(|error| invalid("no HTTP client can be made").with_source(error))?;

        let diagnosis = Diagnosis {
            base_url: for_people(&url),
            model: self.model.clone(),
            key,
        };
        let model =
            ModelInfo::new(self.model).with_limits(self.context_window, self.max_output_tokens)?;
        Ok(ChatClient {
            endpoint: Arc::new(Endpoint {
                model,
                url,
                http,
                head,
                streams: self.stream,
                timeouts: self.timeouts,
                diagnosis,
            }),
            retries: RetryPolicy::new(self.max_retries),
        })
    }
}

/// The base URL may hold a password until it has been checked.
impl fmt::Debug for ChatClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChatClientBuilder")
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// The part of a request that is the same for all of a client's calls.
#[derive(Serialize)]
struct Head<'a> {
    model: &'a str,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

fn invalid(message: impl Into<String>) -> LlmError {
    LlmError::new(LlmErrorKind::InvalidRequest, message)
}

fn address(base_url: &str) -> Result<Url, LlmError> {
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
    if url
        .path()
        .trim_end_matches('/')
        .ends_with("/chat/completions")
    {
        return Err(invalid("the base URL must not end in /chat/completions")
            .with_advice("Leave that out: it is added to every request."));
    }
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(["chat", "completions"]);
    }
    Ok(url)
}

/// The base URL without its query, which may hold something secret.
fn for_people(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.as_str()
        .trim_end_matches("/chat/completions")
        .to_owned()
}

fn headers(key: Option<&SecretText>) -> Result<HeaderMap, LlmError> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if let Some(key) = key {
        // The error would show nothing of the key, but says nothing of use either.
        let mut bearer =
            HeaderValue::try_from(format!("Bearer {}", key.expose())).map_err(|_| {
                invalid("the API key holds characters that can't be sent")
                    .with_advice("Check that the key is one line of plain text.")
            })?;
        bearer.set_sensitive(true);
        headers.insert(AUTHORIZATION, bearer);
    }
    Ok(headers)
}
