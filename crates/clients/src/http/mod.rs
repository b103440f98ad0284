//! HTTP client that all dialects share: endpoint, API key, TLS, timeouts, error mapping, and
//! responses as a whole or as server-sent events.
//!
//! A [`Dialect`] defines the format of requests and responses. A client keeps no conversation state,
//! and reads nothing from the environment except certificate and proxy settings.

mod body;
mod builder;
mod call;
mod connection_errors;
mod dialect;
mod encoding;
mod endpoint;
mod errors;
mod litellm;
mod media;
mod output_limit;
mod overflow;
mod proxy;
mod retry_after;
mod settings;
mod stream;
mod strict;
mod surrogates;
#[cfg(test)]
pub(crate) mod testing;
mod timeouts;
mod usage;

use std::fmt;
use std::sync::Arc;

use cantle_core::llm::{ChatRequest, ChatStream, LlmClient, LlmError, ModelInfo};

pub use self::builder::HttpClientBuilder;
pub use self::dialect::Dialect;
pub(crate) use self::dialect::{
    TurnAssembler, WireProtocol, bearer_token, incomplete_response, unencodable,
};
pub(crate) use self::encoding::{
    call_arguments, call_name, content_parts, encode_list, marked_inputs,
};
use self::endpoint::Endpoint;
pub(crate) use self::errors::{ErrorContext, filled_window};
pub(crate) use self::media::{check_image_type, data_url, unsupported_block, unsupported_media};
pub(crate) use self::output_limit::OutputLimit;
pub(crate) use self::settings::{ClientSettings, invalid};
pub(crate) use self::strict::supports_strict_mode;
pub use self::timeouts::Timeouts;
pub(crate) use self::usage::{ReportedCost, TokenDetails, disjoint_usage};
use crate::price::with_prices;
use crate::retry::Retrier;

/// A model behind an HTTP endpoint that speaks the dialect `D`.
///
/// Clones are cheap and share connections. Requires a Tokio runtime with time and I/O enabled.
pub struct HttpClient<D: Dialect> {
    endpoint: Arc<Endpoint<D>>,
    retrier: Retrier,
}

impl<D: Dialect> HttpClient<D> {
    /// Creates a builder of a client for `model`, the provider's name for it.
    pub fn builder(model: impl Into<String>) -> HttpClientBuilder<D> {
        HttpClientBuilder::new(model.into())
    }

    /// Returns the body that would be sent for a request.
    ///
    /// # Errors
    /// If the model or the dialect does not support the content of a message.
    pub fn request_body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        self.endpoint.body(request)
    }
}

impl<D: Dialect> Clone for HttpClient<D> {
    fn clone(&self) -> Self {
        Self {
            endpoint: Arc::clone(&self.endpoint),
            retrier: self.retrier.clone(),
        }
    }
}

impl<D: Dialect> LlmClient for HttpClient<D> {
    fn model(&self) -> &ModelInfo {
        &self.endpoint.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let endpoint = Arc::clone(&self.endpoint);
        let open = move |request| call::stream(Arc::clone(&endpoint), request);
        let stream = self.retrier.stream(request, open);
        match self.endpoint.model.prices {
            Some(prices) => with_prices(stream, prices),
            None => stream,
        }
    }
}

impl<D: Dialect> fmt::Debug for HttpClient<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(D::CLIENT)
            .field("model", &self.endpoint.model)
            .field("base_url", &self.endpoint.errors.base_url)
            .field("retry_for", &self.retrier.policy.period)
            .finish_non_exhaustive()
    }
}
