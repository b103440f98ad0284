//! Errors of envd, as Connect RPC and as plain HTTP responses.

use axum::Json;
use axum::response::{IntoResponse, Response};
use cantle_core::sandbox::{InvalidPath, SandboxError, SandboxErrorKind};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;

use crate::accounts::ResourceExhausted;
use crate::api_error::bounded;
use crate::body::BodyError;
use crate::tasks::Interrupted;

/// The Connect RPC error codes in use (<https://connectrpc.com/docs/protocol/#error-codes>).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RpcCode {
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    Unimplemented,
    Internal,
    Unavailable,
    Unauthenticated,
}

impl RpcCode {
    pub(crate) fn status(self) -> StatusCode {
        match self {
            Self::Unknown | Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::InvalidArgument => StatusCode::BAD_REQUEST,
            Self::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::AlreadyExists => StatusCode::CONFLICT,
            Self::PermissionDenied => StatusCode::FORBIDDEN,
            Self::ResourceExhausted => StatusCode::TOO_MANY_REQUESTS,
            Self::Unimplemented => StatusCode::NOT_IMPLEMENTED,
            Self::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            Self::Unauthenticated => StatusCode::UNAUTHORIZED,
        }
    }
}

pub(crate) type Result<T, E = EnvdError> = std::result::Result<T, E>;

/// An error of an envd call.
#[derive(Clone, Debug)]
pub(crate) struct EnvdError {
    pub(crate) code: RpcCode,
    pub(crate) message: String,
    /// The status in plain HTTP, if it is not that of the code.
    plain_status: Option<StatusCode>,
    /// The sandbox is gone.
    pub(crate) is_gone: bool,
}

/// Response extension: the response is an error because the sandbox is gone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SandboxGone;

impl EnvdError {
    pub(crate) fn new(code: RpcCode, message: impl Into<String>) -> Self {
        Self {
            code,
            message: bounded(message),
            plain_status: None,
            is_gone: false,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(RpcCode::InvalidArgument, message)
    }

    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(RpcCode::Internal, message)
    }

    pub(crate) fn exhausted(message: impl Into<String>) -> Self {
        Self::new(RpcCode::ResourceExhausted, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(RpcCode::NotFound, message)
    }

    /// The JSON body of a Connect RPC error.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({ "code": self.code, "message": self.message })
    }

    /// The response to a unary Connect RPC call.
    pub(crate) fn into_rpc(self) -> Response {
        self.respond_with(|error| (error.code.status(), Json(error.to_json())).into_response())
    }

    /// The response to a plain HTTP request.
    pub(crate) fn into_plain(self) -> Response {
        let status = self.plain_status.unwrap_or_else(|| self.code.status());
        self.respond_with(|error| plain(status, &error.message))
    }

    /// Builds the response and marks it if the sandbox is gone.
    pub(crate) fn respond_with(self, answer: impl FnOnce(Self) -> Response) -> Response {
        let is_gone = self.is_gone;
        let mut answer = answer(self);
        if is_gone {
            answer.extensions_mut().insert(SandboxGone);
        }
        answer
    }
}

/// A plain HTTP error response.
pub(crate) fn plain(status: StatusCode, message: &str) -> Response {
    let body = json!({ "code": status.as_u16(), "message": message });
    (status, Json(body)).into_response()
}

impl From<SandboxError> for EnvdError {
    fn from(error: SandboxError) -> Self {
        let code = match error.kind() {
            SandboxErrorKind::Gone | SandboxErrorKind::Closed => RpcCode::Unavailable,
            SandboxErrorKind::NotFound => RpcCode::NotFound,
            SandboxErrorKind::AlreadyExists => RpcCode::AlreadyExists,
            SandboxErrorKind::InvalidInput
            | SandboxErrorKind::NotAFile
            | SandboxErrorKind::NotADirectory => RpcCode::InvalidArgument,
            SandboxErrorKind::OutsideSandbox | SandboxErrorKind::PermissionDenied => {
                RpcCode::PermissionDenied
            }
            SandboxErrorKind::StorageFull => RpcCode::ResourceExhausted,
            SandboxErrorKind::Unsupported => RpcCode::Unimplemented,
            _ => RpcCode::Internal,
        };
        let is_full = error.kind() == SandboxErrorKind::StorageFull;
        let message = match is_full {
            true => "not enough disk space available".to_owned(),
            false => error.to_string(),
        };
        Self {
            plain_status: is_full.then_some(StatusCode::INSUFFICIENT_STORAGE),
            is_gone: error.kind() == SandboxErrorKind::Gone,
            ..Self::new(code, message)
        }
    }
}

impl From<InvalidPath> for EnvdError {
    fn from(error: InvalidPath) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<ResourceExhausted> for EnvdError {
    fn from(error: ResourceExhausted) -> Self {
        Self::exhausted(error.to_string())
    }
}

impl From<Interrupted> for EnvdError {
    fn from(error: Interrupted) -> Self {
        Self::new(RpcCode::Unavailable, error.to_string())
    }
}

impl From<BodyError> for EnvdError {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge { .. } | BodyError::Memory(_) => RpcCode::ResourceExhausted,
            BodyError::Idle => RpcCode::DeadlineExceeded,
            BodyError::Disconnected => RpcCode::InvalidArgument,
        };
        // Connect RPC has one code for both; of plain HTTP's, 429 tells clients to retry.
        let is_too_large = matches!(error, BodyError::TooLarge { .. });
        Self {
            plain_status: is_too_large.then_some(StatusCode::PAYLOAD_TOO_LARGE),
            ..Self::new(code, error.to_string())
        }
    }
}
