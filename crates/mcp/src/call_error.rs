//! Errors of requests to a server, by what is known of their effect.

use cantle_core::escape::shorten;
use cantle_core::sandbox::SandboxError;
use rmcp::model::ErrorData;
use rmcp::service::ServiceError;
use rmcp::transport::streamable_http_client::StreamableHttpError as HttpError;

use crate::http;
use crate::limits::MAX_ERROR_CHARS;

/// The code of revision 2025-11-25 for a call before which the user has to open a URL.
const URL_ELICITATION_REQUIRED: i32 = -32042;

/// The reason why a call has no result.
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
            let step = required_step(error).unwrap_or_default();
            CallError::Refused(format!("error {}: {message}{step}", error.code.0))
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

/// Returns the step that a call needs from the user, if its error is about one.
fn required_step(error: &ErrorData) -> Option<String> {
    if error.code.0 != URL_ELICITATION_REQUIRED {
        return None;
    }
    let data = error.data.as_ref();
    let steps = data.and_then(|data| data.get("elicitations")?.as_array());
    let steps = steps.into_iter().flatten();
    let urls: Vec<_> = steps.filter_map(|step| step.get("url")?.as_str()).collect();
    Some(match urls.is_empty() {
        true => " (before the next call, the user has to complete a step with the server, which does not say where)"
            .to_owned(),
        false => format!(
            " (before the next call, the user has to open {})",
            shorten(&urls.join(" and "), MAX_ERROR_CHARS)
        ),
    })
}

#[cfg(test)]
mod tests {
    use rmcp::model::ErrorCode;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_step_that_a_call_needs_from_the_user_is_named() {
        let refused = |code: i32, data: Option<Value>| {
            let error = ErrorData::new(ErrorCode(code), "More is needed.", data);
            match call_error(&ServiceError::McpError(error)) {
                CallError::Refused(text) => text,
                _ => panic!("it is not refused"),
            }
        };
        let url = "https://example.com/connect";
        let data = json!({"elicitations": [{"mode": "url", "elicitationId": "1", "url": url, "message": "Connect."}]});
        assert_eq!(
            refused(-32042, Some(data.clone())),
            "error -32042: More is needed. (before the next call, the user has to open https://example.com/connect)"
        );
        let without_url = refused(-32042, Some(json!({})));
        assert!(
            without_url.contains("the user has to complete a step"),
            "{without_url}"
        );
        assert_eq!(refused(-32603, Some(data)), "error -32603: More is needed.");
    }
}
