//! Errors of requests to a server, by what is known of their effect.

use cantle_core::escape::shorten;
use cantle_core::sandbox::SandboxError;
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError as HttpError;

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
            match http::http_error(error) {
                _ if error.is::<SandboxError>() => CallError::NotSent,
                Some(HttpError::Client(error)) if error.is_connect() => CallError::NotSent,
                Some(
                    HttpError::TransportChannelClosed
                    | HttpError::SessionExpired
                    | HttpError::ReinitializationFailed(_),
                ) => CallError::NotSent,
                Some(HttpError::AuthRequired(_) | HttpError::InsufficientScope(_)) => {
                    CallError::Refused(http::describe(error))
                }
                Some(HttpError::HttpStatus(status)) if status.status == 429 => {
                    CallError::Refused(http::describe(error))
                }
                // A status that says that the request was refused. After 408, it may have run.
                Some(HttpError::UnexpectedServerResponse(text))
                    if text.starts_with("HTTP 4") && !text.starts_with("HTTP 408") =>
                {
                    CallError::Refused(http::describe(error))
                }
                _ => CallError::Unknown(format!("lost the connection: {}.", http::describe(error))),
            }
        }
        ServiceError::TransportClosed => CallError::Lost,
        error => CallError::Unknown(format!("answered against the protocol: {error}.")),
    }
}
