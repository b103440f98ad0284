//! Maps connection failures to errors with advice.

use std::io;

use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_tls::{causes, root_cause};

use super::errors::ErrorContext;

impl ErrorContext {
    /// Returns the error for a request without a response.
    pub(super) fn request_failed(&self, error: reqwest::Error) -> LlmError {
        // The URL may have a query with a secret; the messages below contain the base URL.
        let error = error.without_url();
        let target = match &self.proxy {
            Some(route) => &format!(
                "{} through the proxy {} ({})",
                self.base_url, route.url, route.variable
            ),
            None => &self.base_url,
        };
        let failed = |kind, cause: &str, advice: &str| {
            LlmError::new(kind, format!("failed to reach {target}: {cause}")).with_advice(advice)
        };
        let unreachable = |cause, advice| failed(LlmErrorKind::Unreachable, cause, advice);
        let explained = if error.is_timeout() {
            unreachable(
                "the connection timed out",
                "Check the address, and whether a firewall blocks it.",
            )
        } else if let Some(route) = &self.proxy
            && cantle_tls::find_error(&error).is_none()
            && error.is_connect()
        {
            route.connect_error(target, &error)
        } else if error.is_dns() {
            unreachable(
                "its host name cannot be resolved",
                "Check the host name in the base URL, and the network.",
            )
        } else if let Some(tls) = cantle_tls::find_error(&error) {
            failed(
                LlmErrorKind::Tls,
                &format!("the TLS handshake failed: {tls}"),
                cantle_tls::advice(tls),
            )
        } else if is_refused(&error) {
            unreachable(
                "connection refused",
                "Check that the server is running, and the port in the base URL.",
            )
        } else if error.is_connect() {
            unreachable(&root_cause(&error), "Check the base URL, and the network.")
        } else if is_not_http(&error) {
            let message = format!("the answer of {target} is not HTTP");
            LlmError::protocol(message)
                .with_advice("If the server expects TLS, begin the base URL with https://.")
        } else {
            let cause = root_cause(&error);
            let message = format!("the connection to {target} broke before the response: {cause}");
            LlmError::new(LlmErrorKind::Connection, message)
        };
        explained.with_source(error)
    }
}

fn is_refused(error: &reqwest::Error) -> bool {
    let mut errors = causes(error).filter_map(|error| error.downcast_ref::<io::Error>());
    errors
        .next()
        .is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}

/// Returns whether the response could not be parsed as HTTP.
fn is_not_http(error: &reqwest::Error) -> bool {
    let mut errors = causes(error).filter_map(|error| error.downcast_ref::<hyper::Error>());
    errors.any(hyper::Error::is_parse)
}
