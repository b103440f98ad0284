//! Bounded requests over HTTP: one hop, its body, its decoding. Used for pages and by the search providers.

use std::io::Read as _;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cantle_core::escape::shorten;
use cantle_tls::ClientConfig;
use flate2::read::MultiGzDecoder;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Response, StatusCode, redirect};
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use url::Url;

use crate::document::media_type;
use crate::error::{WebError, WebErrorKind};

/// Maximum length of a type's name, and of that of a subtype (RFC 6838, 4.2).
const MAX_TYPE_NAME_BYTES: usize = 127;
/// Maximum number of characters of an unknown encoding that are shown.
const MAX_SHOWN_CHARS: usize = 40;

/// Headers of Cloudflare and of AWS WAF, whose challenges have also the statuses 202 and 405.
const CHALLENGES: [(&str, &str); 3] = [
    ("cf-mitigated", "challenge"),
    ("x-amzn-waf-action", "captcha"),
    ("x-amzn-waf-action", "challenge"),
];

const USER_AGENT: &str = concat!(
    "Mozilla/5.0 (compatible; Cantle/",
    env!("CARGO_PKG_VERSION"),
    ")"
);

/// Builds HTTP clients: no cookies, no redirects, no proxy of the environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Connector {
    /// Loaded at the first `https` request, because it reads the system's roots.
    tls: OnceCell<ClientConfig>,
}

impl Connector {
    /// Returns a client for one URL. With addresses, it connects to nothing else.
    pub(crate) async fn client(
        &self,
        url: &Url,
        addresses: Option<&[SocketAddr]>,
    ) -> Result<reqwest::Client, WebError> {
        let tls = if url.scheme() == "https" {
            self.tls.get_or_try_init(load_tls).await?.clone()
        } else {
            cantle_tls::without_roots().map_err(setup_error)?
        };
        let mut builder = reqwest::Client::builder()
            .tls_backend_preconfigured(tls)
            .redirect(redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .pool_max_idle_per_host(0)
            .user_agent(USER_AGENT);
        if let (Some(addresses), Some(host)) = (addresses, url.domain()) {
            builder = builder.resolve_to_addrs(host, addresses);
        }
        builder.build().map_err(setup_error)
    }
}

async fn load_tls() -> Result<ClientConfig, WebError> {
    let loaded = spawn_blocking(|| cantle_tls::TlsOptions::new().build()).await;
    loaded.map_err(setup_error)?.map_err(|error| {
        WebError::new(WebErrorKind::Tls, error.to_string(), error.advice())
            .with_source(error.into_source())
    })
}

fn setup_error(error: impl std::error::Error + Send + Sync + 'static) -> WebError {
    let message = "no HTTP client could be set up";
    WebError::new(WebErrorKind::Protocol, message, "").with_source(error)
}

/// Returns the error for a request without a response, or whose body was interrupted.
pub(crate) fn request_error(host: &str, error: reqwest::Error) -> WebError {
    // The query of the URL may hold a secret.
    let error = error.without_url();
    if let Some(tls) = cantle_tls::find_error(&error) {
        let message = format!("the TLS handshake with `{host}` failed: {tls}");
        return WebError::new(WebErrorKind::Tls, message, "Try another source.").with_source(error);
    }
    let cause = cantle_tls::root_cause(&error);
    let message = format!("the request to `{host}` failed: {cause}");
    let advice = "Check the URL, or try again later.";
    WebError::new(WebErrorKind::Unreachable, message, advice).with_source(error)
}

/// Returns the error of a response that is not a success; `Ok` for one that is.
pub(crate) fn check_status(host: &str, response: &Response) -> Result<(), WebError> {
    let (status, headers) = (response.status(), response.headers());
    let has = |(name, value): &(&str, &str)| headers.get(*name).is_some_and(|it| it == *value);
    if CHALLENGES.iter().any(has) {
        let message = format!("`{host}` asks for proof that the visitor is a person (a captcha)");
        let advice = "The page can't be read this way: use another source.";
        return Err(WebError::new(WebErrorKind::Challenge, message, advice));
    }
    if status.is_success() {
        return Ok(());
    }
    let delay = retry_after(headers);
    let wait = delay.map_or_else(String::new, |delay| format!(" for {} s", delay.as_secs()));
    if status == StatusCode::TOO_MANY_REQUESTS {
        let message = format!("`{host}` limits the rate of requests (status 429){wait}");
        let advice = "This does not mean that there is nothing: wait, or use another source.";
        let error = WebError::new(WebErrorKind::RateLimited, message, advice);
        return Err(error.with_retry_after(delay));
    }
    let advice = match status.as_u16() {
        401 | 403 => "The server refuses access: use another source.",
        404 | 410 => "Check the URL: the page does not exist.",
        500.. => "The server failed: try again later, or use another source.",
        _ => "",
    };
    let message = format!("`{host}` answered with status {status}");
    Err(WebError::new(WebErrorKind::Status, message, advice).with_retry_after(delay))
}

/// Returns the delay of `Retry-After`, in seconds or as a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(SystemTime::now()).unwrap_or_default())
}

/// Returns the value of `Content-Type` if its type is valid: the model reads the type, outside of the data of the page.
pub(crate) fn content_type(response: &Response) -> Option<String> {
    let value = response.headers().get(CONTENT_TYPE)?.to_str().ok()?;
    let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$&^_.+-".contains(&byte);
    let is_name = |name: &str| {
        (1..=MAX_TYPE_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_name_byte)
    };
    let kind = media_type(value);
    let (kind, subtype) = kind.split_once('/')?;
    (is_name(kind) && is_name(subtype)).then(|| value.to_owned())
}

/// Reads a body of at most `limit` bytes, encoded and decoded.
pub(crate) async fn read_body(
    host: &str,
    mut response: Response,
    limit: usize,
) -> Result<Bytes, WebError> {
    let encoding = response.headers().get(CONTENT_ENCODING);
    let encoding = encoding.map(|it| it.to_str().unwrap_or("unreadable").to_ascii_lowercase());
    let is_gzip = match encoding.as_deref() {
        Some("gzip" | "x-gzip") => true,
        // As in browsers, a name that is no encoding, such as that of a charset, means nothing.
        None | Some("" | "identity" | "none" | "utf-8" | "utf8" | "binary") => false,
        Some(encoding) => {
            let encoding = shorten(encoding, MAX_SHOWN_CHARS);
            let message =
                format!("`{host}` used the encoding `{encoding}`, which was not asked for");
            let advice = "Use another source.";
            return Err(WebError::new(WebErrorKind::Protocol, message, advice));
        }
    };
    let mut body = Vec::new();
    let chunk_error = |error| request_error(host, error);
    while let Some(chunk) = response.chunk().await.map_err(chunk_error)? {
        if body.len().saturating_add(chunk.len()) > limit {
            return Err(too_large(host, limit));
        }
        body.extend_from_slice(&chunk);
    }
    // Some servers declare an encoding of nothing.
    if !is_gzip || body.is_empty() {
        return Ok(body.into());
    }
    let decoded = spawn_blocking(move || decompress(&body, limit)).await;
    match decoded.map_err(setup_error)? {
        Ok(Some(decoded)) => Ok(decoded.into()),
        Ok(None) => Err(too_large(host, limit)),
        Err(error) => {
            let message = format!("the compressed response of `{host}` is damaged: {error}");
            let advice = "Try again, or use another source.";
            Err(WebError::new(WebErrorKind::Protocol, message, advice))
        }
    }
}

/// Decompresses at most `limit` bytes; returns `None` if there are more.
fn decompress(data: &[u8], limit: usize) -> std::io::Result<Option<Vec<u8>>> {
    let mut decoded = Vec::new();
    let bound = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    MultiGzDecoder::new(data)
        .take(bound)
        .read_to_end(&mut decoded)?;
    Ok((decoded.len() <= limit).then_some(decoded))
}

fn too_large(host: &str, limit: usize) -> WebError {
    let mib = limit >> 20;
    let message = format!("the response of `{host}` is larger than {mib} MiB");
    WebError::new(WebErrorKind::TooLarge, message, "Fetch a smaller page.")
}
