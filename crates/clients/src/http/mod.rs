//! What all clients over HTTP share: the endpoint and its key, certificates, time-outs, refusals in
//! one vocabulary, and answers that come as a whole or as server-sent events.
//!
//! A dialect (see [`Dialect`]) says what a request looks like and what an answer means; nothing here
//! knows one of them. A client keeps nothing of a conversation, and reads nothing from the environment
//! but where certificates are and which proxy leads to its address.

mod builder;
mod dialect;
mod endpoint;
mod errors;
#[cfg(feature = "chat")]
mod fitted;
mod litellm;
mod media;
mod overflow;
mod parts;
mod proxy;
mod retry_after;
mod stream;
#[cfg(any(feature = "chat", feature = "responses"))]
mod strict;
mod timeouts;
mod tls;
mod transport;

use std::fmt;
use std::sync::Arc;

use cantle_core::llm::{ChatRequest, ChatStream, LlmClient, LlmError, ModelInfo};

pub use self::builder::HttpClientBuilder;
pub(crate) use self::builder::invalid;
pub use self::dialect::Dialect;
pub(crate) use self::dialect::{
    Common, Next, OneBehindTheOther, Turn, served_by, unencodable, with_unique_ids,
};
use self::endpoint::Endpoint;
pub(crate) use self::errors::Diagnosis;
#[cfg(feature = "chat")]
pub(crate) use self::fitted::Fitted;
#[cfg(any(feature = "chat", feature = "responses"))]
pub(crate) use self::media::data_url;
#[cfg(any(feature = "anthropic", feature = "responses"))]
pub(crate) use self::media::image_for;
pub(crate) use self::media::not_for_here;
#[cfg(feature = "chat")]
pub(crate) use self::media::unsupported_media;
#[cfg(any(feature = "anthropic", feature = "responses"))]
pub(crate) use self::parts::listed;
pub(crate) use self::parts::parts_of;
#[cfg(any(feature = "chat", feature = "responses"))]
pub(crate) use self::strict::can_be_strict;
pub use self::timeouts::Timeouts;
use crate::price::priced;
use crate::retry::{RetryPolicy, retrying};

/// A model behind an endpoint that speaks the dialect `D`.
///
/// Cloning it is cheap, and clones share their connections. It needs a tokio runtime with time and
/// I/O.
pub struct HttpClient<D: Dialect> {
    endpoint: Arc<Endpoint<D>>,
    retries: RetryPolicy,
}

impl<D: Dialect> HttpClient<D> {
    /// Starts a client for `model`, the provider's name for it.
    pub fn builder(model: impl Into<String>) -> HttpClientBuilder<D> {
        HttpClientBuilder::new(model.into())
    }

    /// The body that a request is sent with: for those who want to see or measure it.
    ///
    /// # Errors
    /// Where a message holds what the model or the dialect can't take.
    pub fn request_body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        self.endpoint.body(request)
    }
}

impl<D: Dialect> Clone for HttpClient<D> {
    fn clone(&self) -> Self {
        Self {
            endpoint: Arc::clone(&self.endpoint),
            retries: self.retries.clone(),
        }
    }
}

impl<D: Dialect> LlmClient for HttpClient<D> {
    fn model(&self) -> &ModelInfo {
        &self.endpoint.model
    }

    fn stream(&self, request: ChatRequest) -> ChatStream {
        let endpoint = Arc::clone(&self.endpoint);
        let stream = retrying(self.retries.clone(), move || {
            endpoint::call(Arc::clone(&endpoint), request.clone())
        });
        match self.endpoint.model.prices {
            Some(prices) => priced(stream, prices),
            None => stream,
        }
    }
}

impl<D: Dialect> fmt::Debug for HttpClient<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(D::CLIENT)
            .field("model", &self.endpoint.model)
            .field("base_url", &self.endpoint.diagnosis.base_url)
            .field("retries", &self.retries.max_retries)
            .finish_non_exhaustive()
    }
}
