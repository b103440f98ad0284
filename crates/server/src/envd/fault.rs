//! What goes wrong inside a sandbox, in the words of Connect RPC and of plain HTTP.

use axum::Json;
use axum::response::{IntoResponse, Response};
use cantle_core::sandbox::{InvalidPath, SandboxError, SandboxErrorKind};
use http::StatusCode;
use serde_json::json;

use crate::body::BodyError;

/// A code of Connect RPC (<https://connectrpc.com/docs/protocol/#error-codes>), as far as they are
/// used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
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

impl Code {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::InvalidArgument => "invalid_argument",
            Self::DeadlineExceeded => "deadline_exceeded",
            Self::NotFound => "not_found",
            Self::AlreadyExists => "already_exists",
            Self::PermissionDenied => "permission_denied",
            Self::ResourceExhausted => "resource_exhausted",
            Self::Unimplemented => "unimplemented",
            Self::Internal => "internal",
            Self::Unavailable => "unavailable",
            Self::Unauthenticated => "unauthenticated",
        }
    }

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

/// Something that went wrong inside a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) code: Code,
    pub(crate) message: String,
    /// The disk is full, which plain HTTP has a status for.
    is_full: bool,
    /// The sandbox no longer exists.
    pub(crate) is_gone: bool,
}

/// Is with an answer that says so because the sandbox no longer exists.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone;

impl Fault {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            is_full: false,
            is_gone: false,
        }
    }

    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::new(Code::InvalidArgument, message)
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Self {
        Self::new(Code::NotFound, message)
    }

    /// As an error of Connect RPC.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        json!({ "code": self.code.as_str(), "message": self.message })
    }

    /// As the answer of a unary call of Connect RPC.
    pub(crate) fn into_rpc(self) -> Response {
        self.said_by(|fault| (fault.code.status(), Json(fault.to_json())).into_response())
    }

    /// As an answer of plain HTTP.
    pub(crate) fn into_plain(self) -> Response {
        let status = if self.is_full {
            StatusCode::INSUFFICIENT_STORAGE
        } else {
            self.code.status()
        };
        self.said_by(|fault| plain(status, &fault.message))
    }

    /// The answer that says it, with what that doesn't say itself.
    pub(crate) fn said_by(self, answer: impl FnOnce(Self) -> Response) -> Response {
        let is_gone = self.is_gone;
        let mut answer = answer(self);
        if is_gone {
            answer.extensions_mut().insert(Gone);
        }
        answer
    }
}

/// An error of plain HTTP.
pub(crate) fn plain(status: StatusCode, message: &str) -> Response {
    let body = json!({ "code": status.as_u16(), "message": message });
    (status, Json(body)).into_response()
}

impl From<SandboxError> for Fault {
    fn from(error: SandboxError) -> Self {
        let code = match error.kind() {
            SandboxErrorKind::Gone | SandboxErrorKind::Closed => Code::Unavailable,
            SandboxErrorKind::NotFound => Code::NotFound,
            SandboxErrorKind::AlreadyExists => Code::AlreadyExists,
            SandboxErrorKind::InvalidInput
            | SandboxErrorKind::NotAFile
            | SandboxErrorKind::NotADirectory => Code::InvalidArgument,
            SandboxErrorKind::OutsideSandbox | SandboxErrorKind::PermissionDenied => {
                Code::PermissionDenied
            }
            SandboxErrorKind::StorageFull => Code::ResourceExhausted,
            SandboxErrorKind::Unsupported => Code::Unimplemented,
            _ => Code::Internal,
        };
        let is_full = error.kind() == SandboxErrorKind::StorageFull;
        Self {
            code,
            message: if is_full {
                "not enough disk space available".to_owned()
            } else {
                error.to_string()
            },
            is_full,
            is_gone: error.kind() == SandboxErrorKind::Gone,
        }
    }
}

impl From<InvalidPath> for Fault {
    fn from(error: InvalidPath) -> Self {
        Self::invalid(error.to_string())
    }
}

impl From<BodyError> for Fault {
    fn from(error: BodyError) -> Self {
        let code = match error {
            BodyError::TooLarge { .. } => Code::ResourceExhausted,
            BodyError::Idle => Code::DeadlineExceeded,
            BodyError::Broken => Code::InvalidArgument,
        };
        Self::new(code, error.to_string())
    }
}
