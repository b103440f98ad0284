//! What the control plane answers where it doesn't do what was asked.

use axum::Json;
use axum::response::{IntoResponse, Response};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use http::{HeaderValue, StatusCode};
use serde_json::json;

/// A request of the control plane that is refused, in the API's own shape.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    status: StatusCode,
    message: String,
    code: Option<&'static str>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
            code: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(crate) fn no_sandbox(id: &str) -> Self {
        Self::new(StatusCode::NOT_FOUND, format!("sandbox {id} doesn't exist"))
    }

    /// Something the API has, and this server doesn't.
    pub(crate) fn unsupported(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_IMPLEMENTED, message)
    }

    /// There are too many already.
    pub(crate) fn full(message: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, message)
    }

    pub(crate) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the server is stopping")
    }

    /// The same with a code for programs.
    #[must_use]
    pub(crate) fn with_code(mut self, code: &'static str) -> Self {
        self.code = Some(code);
        self
    }

    /// A sandbox that could not be opened.
    pub(crate) fn not_opened(error: &SandboxError) -> Self {
        let advice = error.advice().map(|advice| format!(" {advice}"));
        let message = format!("{error}{}", advice.unwrap_or_default());
        match error.kind() {
            SandboxErrorKind::Unenforceable | SandboxErrorKind::InvalidInput => {
                Self::bad_request(message)
            }
            _ => Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
                .with_code("sandbox_create_failed"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = json!({ "code": self.status.as_u16(), "message": self.message });
        if let (Some(code), Some(fields)) = (self.code, body.as_object_mut()) {
            fields.insert("error_code".to_owned(), code.into());
        }
        let mut response = (self.status, Json(body)).into_response();
        // Asking again helps nobody: what is full stays so until its owner does something.
        if matches!(self.status.as_u16(), 429 | 502..=504) {
            let headers = response.headers_mut();
            headers.insert("should-retry", HeaderValue::from_static("false"));
        }
        response
    }
}
