//! HTTP client for the API and for sandboxes, with explanations of failed connections.

use std::io;
use std::sync::OnceLock;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_tls::{ClientConfig, TlsOptions, causes, root_cause};
use reqwest::{Client, Response, Url, redirect};
use tokio::time::timeout;

/// Maximum time to connect, TLS handshake included.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Time for which an unused connection is kept. `cantle serve` closes one that has had no request 10 s after it accepted it,
/// and a request that is sent at that moment fails.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(8);

/// Maximum time between two chunks of a response body.
const CHUNK_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of a response body: a listing of some hundred thousand files.
const MAX_BODY_BYTES: usize = 256 << 20;

/// The TLS configuration of one backend, built on first use and shared for session resumption.
pub(crate) type TlsCache = OnceLock<ClientConfig>;

/// Builds the client for one address.
pub(crate) fn client(url: &Url, tls_cache: &TlsCache) -> Result<Client, SandboxError> {
    let tls = match tls_cache.get() {
        Some(config) => Ok(config.clone()),
        None if url.scheme() != "https" => cantle_tls::without_roots(),
        None => TlsOptions::new()
            .build()
            .map(|config| tls_cache.get_or_init(|| config).clone()),
    };
    let tls = tls.map_err(|error| {
        SandboxError::unavailable(error.to_string())
            .with_advice(error.advice())
            .with_source(error.into_source())
    })?;
    Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(CONNECT_TIMEOUT)
        .pool_idle_timeout(POOL_IDLE_TIMEOUT)
        .build()
        .map_err(|error| {
            SandboxError::unavailable("failed to set up an HTTP client").with_source(error)
        })
}

/// Parses a configured URL; `name` is its name in errors.
pub(crate) fn parse_url(name: &str, text: &str) -> Result<Url, SandboxError> {
    let invalid = |problem: &str| {
        // The text is not repeated: it may be a key in the wrong setting.
        SandboxError::unavailable(format!("the {name} {problem}"))
            .with_advice("Write it like https://api.example.org or http://127.0.0.1:3010.")
    };
    let mut url = Url::parse(text.trim()).map_err(|_| invalid("is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("must not contain a user name or password"));
    }
    url.set_fragment(None);
    url.set_query(None);
    Ok(url)
}

/// Appends path segments to a URL.
pub(crate) fn join_path<'s>(base: &Url, segments: impl IntoIterator<Item = &'s str>) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Reads a whole response body, up to [`MAX_BODY_BYTES`].
pub(crate) async fn read_body(mut response: Response) -> Result<Bytes, RequestError> {
    let mut body = BytesMut::new();
    loop {
        match timeout(CHUNK_TIMEOUT, response.chunk()).await {
            Err(_) => return Err(RequestError::timed_out(CHUNK_TIMEOUT)),
            Ok(Err(error)) => return Err(RequestError::from(error)),
            Ok(Ok(None)) => return Ok(body.freeze()),
            Ok(Ok(Some(chunk))) if body.len() + chunk.len() > MAX_BODY_BYTES => {
                return Err(RequestError::new(format!(
                    "the response is longer than {MAX_BODY_BYTES} bytes"
                )));
            }
            Ok(Ok(Some(chunk))) => body.extend_from_slice(&chunk),
        }
    }
}

/// A request without a complete, readable response.
#[derive(Clone, Debug)]
pub(crate) struct RequestError {
    /// The reason, without the URL.
    pub(crate) message: String,
    pub(crate) advice: Option<&'static str>,
    /// Whether the server may have handled the request although its response was lost.
    pub(crate) may_have_succeeded: bool,
}

impl RequestError {
    pub(crate) fn new(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            advice: None,
            may_have_succeeded: false,
        }
    }

    pub(crate) fn timed_out(after: Duration) -> Self {
        Self::new(format!(
            "nothing was received for {} s",
            after.as_secs_f64()
        ))
    }

    /// Converts it to a sandbox error whose message starts with `doing`.
    pub(crate) fn into_error(self, kind: SandboxErrorKind, doing: &str) -> SandboxError {
        let error = SandboxError::new(kind, format!("{doing}: {}", self.message));
        match self.advice {
            Some(advice) => error.with_advice(advice),
            None => error,
        }
    }
}

impl From<reqwest::Error> for RequestError {
    fn from(error: reqwest::Error) -> Self {
        // The URL may have a query, so it is kept out of the message.
        let error = error.without_url();
        let io_error = causes(&error).find_map(|error| error.downcast_ref::<io::Error>());
        let (message, advice) = if error.is_timeout() {
            (
                "the connection timed out".to_owned(),
                Some("Check the address, and that no firewall blocks it."),
            )
        } else if error.is_dns() {
            (
                "its host has no address".to_owned(),
                Some("Check the host's name, and the network."),
            )
        } else if let Some(tls) = cantle_tls::find_error(&error) {
            let message = format!("no secure connection: {tls}");
            (message, Some(cantle_tls::advice(tls)))
        } else if io_error.is_some_and(|error| error.kind() == io::ErrorKind::ConnectionRefused) {
            (
                "connection refused".to_owned(),
                Some("Check that the server is running, and the port."),
            )
        } else if error.is_connect() {
            (
                root_cause(&error),
                Some("Check the address, and the network."),
            )
        } else {
            (
                format!("the connection broke: {}", root_cause(&error)),
                None,
            )
        };
        Self {
            message,
            advice,
            may_have_succeeded: !error.is_connect() && !error.is_timeout() && !error.is_builder(),
        }
    }
}
