//! Error responses of the control plane.

use axum::Json;
use axum::response::{IntoResponse, Response};
use cantle_core::escape::shorten;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use http::{HeaderValue, StatusCode};
use serde_json::json;

use crate::connections::TooManyConnections;

pub(crate) type ApiResult<T> = Result<T, ApiError>;

/// Maximum length of an error's message, which may repeat a part of the request.
const MAX_MESSAGE_CHARS: usize = 8192;

/// Returns the message of an error response.
pub(crate) fn bounded(message: impl Into<String>) -> String {
    let message = message.into();
    if message.len() > MAX_MESSAGE_CHARS {
        return shorten(&message, MAX_MESSAGE_CHARS);
    }
    message
}

/// An error response of the control plane, in E2B's format.
#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
    /// A retry may succeed.
    is_temporary: bool,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: bounded(message),
            code: None,
            is_temporary: false,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn conflict(message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    pub(crate) fn sandbox_not_found(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("sandbox {id} doesn't exist"))
    }

    /// A feature of the API that this server does not have.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// A quota is used up.
    pub(crate) fn quota_exceeded(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
    }

    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// Adds a machine-readable code.
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// Converts a failure to open a sandbox.
    pub(crate) fn open_failed(error: &SandboxError) -> Self {
        let advice = error.advice().map(|advice| format!(". {advice}"));
        let message = format!("{error}{}", advice.unwrap_or_default());
        match error.kind() {
            SandboxErrorKind::Unenforceable | SandboxErrorKind::InvalidInput => {
                Self::bad_request(message)
            }
            _ => Self::internal(message).with_code("sandbox_create_failed"),
        }
    }
}

impl From<TooManyConnections> for ApiError {
    fn from(error: TooManyConnections) -> Self {
        Self {
            is_temporary: true,
            ..Self::quota_exceeded(error.to_string())
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = json!({ "code": self.status.as_u16(), "message": self.message });
        if let (Some(code), Some(fields)) = (self.code, body.as_object_mut()) {
            fields.insert("error_code".to_owned(), code.into());
        }
        let mut response = (self.status, Json(body)).into_response();
        // A retry would not help: a quota stays used up until its owner acts.
        if matches!(self.status.as_u16(), 429 | 502..=504) && !self.is_temporary {
            let headers = response.headers_mut();
            headers.insert("should-retry", HeaderValue::from_static("false"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_a_sentence_of_its_own() {
        let error = SandboxError::unavailable("no engine").with_advice("Start it.");
        assert_eq!(
            ApiError::open_failed(&error).message(),
            "no engine. Start it."
        );
    }
}
