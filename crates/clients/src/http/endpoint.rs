//! A model at a URL: sends requests and maps failed ones to errors.

use cantle_core::llm::{ChatRequest, LlmError, LlmErrorKind, ModelInfo};
use reqwest::{Response, Url};
use tokio::time::timeout;

use super::dialect::Dialect;
use super::errors::ErrorContext;
use super::timeouts::{Timeouts, seconds};

/// Number of bytes that are read of an error response.
const MAX_ERROR_BYTES: usize = 64 << 10;

/// A model at a URL, with everything that requests to it need.
pub(super) struct Endpoint<D> {
    pub(super) model: ModelInfo,
    pub(super) dialect: D,
    pub(super) url: Url,
    pub(super) http: reqwest::Client,
    /// Whether to request streamed responses.
    pub(super) stream: bool,
    pub(super) timeouts: Timeouts,
    pub(super) errors: ErrorContext,
}

impl<D: Dialect> Endpoint<D> {
    /// Sends the request, and the dialect's alternative if it fails and there is one.
    pub(super) async fn respond(&self, request: &ChatRequest) -> Result<Response, LlmError> {
        let error = match self.send(self.body(request)?).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        match self.dialect.fallback_body(request, &error) {
            Some(body) => self.send(body?).await,
            None => Err(error),
        }
    }

    pub(super) fn body(&self, request: &ChatRequest) -> Result<Vec<u8>, LlmError> {
        self.model.check_media(&request.messages)?;
        self.dialect.body(request)
    }

    async fn send(&self, body: Vec<u8>) -> Result<Response, LlmError> {
        let headers = self.dialect.headers();
        let request = self.http.post(self.url.clone()).headers(headers);
        let request = request.body(body).send();
        let Ok(response) = timeout(self.timeouts.first_byte, request).await else {
            let message = format!(
                "no response from {} within {}",
                self.errors.base_url,
                seconds(self.timeouts.first_byte)
            );
            return Err(LlmError::new(LlmErrorKind::Timeout, message));
        };
        let response = response.map_err(|error| self.errors.request_failed(error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        Err(self.error_response(response).await)
    }

    async fn error_response(&self, mut response: Response) -> LlmError {
        let mut body = Vec::new();
        // A body that breaks off is used as far as it came.
        while let Ok(Ok(Some(chunk))) = timeout(self.timeouts.idle, response.chunk()).await {
            let room = MAX_ERROR_BYTES - body.len();
            body.extend(chunk.into_iter().take(room));
            if body.len() == MAX_ERROR_BYTES {
                break;
            }
        }
        let status = response.status().as_u16();
        self.errors.status_error(status, response.headers(), &body)
    }
}
