//! The transport over streamable HTTP.

use std::collections::HashMap;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::escape::shorten;
use reqwest::header::{HeaderName, HeaderValue};
use reqwest::{Client, redirect};
use rmcp::transport::StreamableHttpClientTransport;
use rmcp::transport::streamable_http_client::{
    StreamableHttpClientTransportConfig, StreamableHttpError,
};
use tokio::task::spawn_blocking;
use url::{Host, Url};

use crate::config::HttpServer;
use crate::http_client::HttpClient;
use crate::limits::{MAX_ERROR_CHARS, MAX_MESSAGE_BYTES};

/// Maximum number of redirects of a request.
const MAX_REDIRECTS: usize = 5;

/// Creates the transport; it connects with the first message.
pub(crate) async fn transport(
    server: &HttpServer,
    connect_timeout: Duration,
) -> Result<StreamableHttpClientTransport<HttpClient>, String> {
    let url = Url::parse(server.url.expose()).map_err(|error| format!("has no URL: {error}"))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err("has a URL that is neither http nor https".to_owned());
    }
    let mut headers = HashMap::new();
    for (name, value) in &server.headers {
        let invalid = |_| format!("can't get the header `{name}`: it is not a valid header");
        let name = HeaderName::try_from(name.as_str()).map_err(|_| invalid(()))?;
        let mut value = HeaderValue::try_from(value.expose()).map_err(|_| invalid(()))?;
        value.set_sensitive(true);
        headers.insert(name, value);
    }
    let failed = |error: &dyn StdError| format!("has no HTTP client: {error}");
    let tls = match url.scheme() {
        "https" => spawn_blocking(|| cantle_tls::TlsOptions::new().build())
            .await
            .map_err(|error| failed(&error))?,
        _ => cantle_tls::without_roots(),
    };
    let mut client = Client::builder()
        .tls_backend_preconfigured(tls.map_err(|error| failed(&error))?)
        .redirect(redirect::Policy::custom(follow_on_origin))
        .connect_timeout(connect_timeout)
        .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")));
    if is_loopback(&url) {
        client = client.no_proxy();
    }
    let client = client.build().map_err(|error| failed(&error))?;
    let uri: Arc<str> = server.url.expose().into();
    let config = StreamableHttpClientTransportConfig::with_uri(uri)
        .custom_headers(headers)
        .max_sse_event_size(MAX_MESSAGE_BYTES)
        .max_json_response_size(MAX_MESSAGE_BYTES);
    Ok(StreamableHttpClientTransport::with_client(
        HttpClient::new(client),
        config,
    ))
}

/// Follows a redirect to another path of the server, such as the one with a slash at its end. The headers are not for other
/// servers, and other statuses make a request without a message of it.
fn follow_on_origin(attempt: redirect::Attempt<'_>) -> redirect::Action {
    let previous = attempt.previous();
    let origin = previous.first().map(Url::origin);
    let is_followed = matches!(attempt.status().as_u16(), 307 | 308)
        && origin == Some(attempt.url().origin())
        && previous.len() <= MAX_REDIRECTS;
    match is_followed {
        true => attempt.follow(),
        false => attempt.stop(),
    }
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    }
}

/// Returns the error of the transport that is an error or its cause.
pub(crate) fn http_error<'e>(
    error: &'e (dyn StdError + 'static),
) -> Option<&'e StreamableHttpError<reqwest::Error>> {
    cantle_tls::causes(error).find_map(|error| error.downcast_ref())
}

/// Returns whether the server failed, as some do at a request that they don't know.
pub(crate) fn is_server_failure(error: &(dyn StdError + 'static)) -> bool {
    match http_error(error) {
        Some(StreamableHttpError::HttpStatus(status)) => matches!(status.status, 500 | 501),
        _ => false,
    }
}

/// Describes an error without the URL, whose query may hold a secret.
pub(crate) fn describe(error: &(dyn StdError + 'static)) -> String {
    let client_error = match http_error(error) {
        Some(StreamableHttpError::Client(error)) => error,
        Some(StreamableHttpError::AuthRequired(_) | StreamableHttpError::InsufficientScope(_)) => {
            return "it demands authorization: give it in `headers`".to_owned();
        }
        Some(StreamableHttpError::HttpStatus(status)) => {
            let wait = status.retry_after.as_ref();
            let wait = wait.map(|wait| format!(", retry after {wait}"));
            return format!("status {}{}", status.status, wait.unwrap_or_default());
        }
        Some(StreamableHttpError::UnexpectedServerResponse(text)) => {
            return shorten(text, MAX_ERROR_CHARS);
        }
        _ => return shorten(&error.to_string(), MAX_ERROR_CHARS),
    };
    if let Some(tls) = cantle_tls::find_error(client_error) {
        return format!("the TLS handshake failed: {tls}");
    }
    if let Some(status) = client_error.status() {
        return format!("status {status}");
    }
    let cause = client_error.source().map(cantle_tls::root_cause);
    cause.unwrap_or_else(|| "the request failed".to_owned())
}
