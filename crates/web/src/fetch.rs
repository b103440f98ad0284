//! Fetching of a URL: checked hops, bounded bodies.

use bytes::Bytes;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, LOCATION};
use url::Url;

use crate::error::{WebError, WebErrorKind};
use crate::http::{self, Connector};
use crate::target::{Reach, parse_url};

/// Maximum number of redirects.
const MAX_REDIRECTS: usize = 10;
/// Maximum size of text, whose extraction takes time and memory.
const MAX_TEXT_BYTES: usize = 5 << 20;
/// Maximum size of everything else.
const MAX_FILE_BYTES: usize = 32 << 20;

const ACCEPTED: &str =
    "text/html,application/xhtml+xml,application/json;q=0.9,text/*;q=0.9,*/*;q=0.8";

/// Fetches URLs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetcher {
    pub(crate) reach: Reach,
    connector: Connector,
}

/// A fetched resource.
#[derive(Debug)]
pub(crate) struct Fetched {
    /// The URL after redirects.
    pub(crate) url: Url,
    /// The declared type.
    pub(crate) content_type: Option<String>,
    pub(crate) body: Bytes,
}

impl Fetcher {
    /// Fetches a URL. The caller limits the time.
    pub(crate) async fn fetch(&self, url: &str) -> Result<Fetched, WebError> {
        let mut url = parse_url(url, None)?;
        for _ in 0..=MAX_REDIRECTS {
            let addresses = self.reach.addresses(&url).await?;
            let client = self.connector.client(&url, Some(&addresses)).await?;
            let host = url.host_str().unwrap_or_default().to_owned();
            let request = client
                .get(url.clone())
                .header(ACCEPT, ACCEPTED)
                .header(ACCEPT_ENCODING, "gzip");
            let response = request.send().await;
            let response = response.map_err(|error| http::request_error(&host, error))?;
            if matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
                let target = response.headers().get(LOCATION);
                // Some servers send other characters than ASCII as they are.
                let target = target.map(|target| std::str::from_utf8(target.as_bytes()));
                let Some(Ok(target)) = target else {
                    let message = format!("`{host}` redirects without a target");
                    return Err(WebError::new(WebErrorKind::Redirect, message, ""));
                };
                url = parse_url(target, Some(&url))?;
                continue;
            }
            http::check_status(&host, &response)?;
            let content_type = http::content_type(&response);
            let limit = match content_type.as_deref().map(crate::document::is_text) {
                Some(false) => MAX_FILE_BYTES,
                Some(true) | None => MAX_TEXT_BYTES,
            };
            let body = http::read_body(&host, response, limit).await?;
            return Ok(Fetched {
                url,
                content_type,
                body,
            });
        }
        let message = format!("Too many redirects (maximum {MAX_REDIRECTS})");
        let advice = "Use another source.";
        Err(WebError::new(WebErrorKind::Redirect, message, advice))
    }
}
