//! Errors of requests to a server, by what is known of their effect.

use cantle_core::escape::shorten;
use cantle_core::sandbox::SandboxError;
use rmcp::service::ServiceError;

use crate::http;
use crate::limits::MAX_ERROR_CHARS;

/// Why a call has no result.
pub(crate) enum CallError {
    /// The request did not reach the server.
    NotSent,
    /// The server answered with an error, or refused the request.
    Refused(String),
    /// The connection ended. The server may have done what it was asked for.
    Lost,
    /// The server may have done what it was asked for.
    Unknown(String),
}

pub(crate) fn call_error(error: &ServiceError) -> CallError {
    match error {
        ServiceError::McpError(error) => {
            let message = shorten(&error.message, MAX_ERROR_CHARS);
            CallError::Refused(format!("error {}: {message}", error.code.0))
        }
        ServiceError::TransportSend(error) => {
            let error = &*error.error;
            if error.is::<SandboxError>() || http::is_unsent(error) {
                CallError::NotSent
            } else if let Some(problem) = http::refusal(error) {
                CallError::Refused(problem)
            } else {
                CallError::Unknown(format!("lost the connection: {}.", http::describe(error)))
            }
        }
        ServiceError::TransportClosed => CallError::Lost,
        error => CallError::Unknown(format!("answered against the protocol: {error}.")),
    }
}
