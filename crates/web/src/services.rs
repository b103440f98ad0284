//! Search services over HTTP: Brave, Tavily, Exa and SearXNG.

use async_trait::async_trait;
use cantle_core::secret::SecretText;
use reqwest::header::{ACCEPT, ACCEPT_ENCODING, AUTHORIZATION, HeaderName, HeaderValue};
use reqwest::{RequestBuilder, StatusCode};
use serde_json::{Value, json};
use url::Url;

use crate::error::{WebError, WebErrorKind};
use crate::http::{self, Connector};
use crate::search::{SearchHit, SearchProvider};
use crate::target::parse_url;

/// Maximum size of an answer.
const MAX_ANSWER_BYTES: usize = 1 << 20;
const ADVICE: &str =
    "This does not mean that there are no results: try again later, or tell the user.";

/// A search service that is reached over HTTP.
///
/// Written after the services' documentation and tested against scripted servers; never tried with the services themselves.
/// Requests come from this process, and proxies of the environment are not used.
#[must_use]
#[derive(Clone, Debug)]
pub struct SearchService {
    kind: Kind,
    pub(crate) url: String,
    key: SecretText,
    connector: Connector,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Brave,
    Tavily,
    Exa,
    Searxng,
}

impl SearchService {
    /// [Brave Search](https://api-dashboard.search.brave.com/api-reference/web/search/get).
    pub fn brave(key: impl Into<SecretText>) -> Self {
        let url = "https://api.search.brave.com/res/v1/web/search";
        Self::new(Kind::Brave, url, key.into())
    }

    /// [Tavily](https://docs.tavily.com/documentation/api-reference/endpoint/search).
    pub fn tavily(key: impl Into<SecretText>) -> Self {
        Self::new(Kind::Tavily, "https://api.tavily.com/search", key.into())
    }

    /// [Exa](https://exa.ai/docs/reference/search).
    pub fn exa(key: impl Into<SecretText>) -> Self {
        Self::new(Kind::Exa, "https://api.exa.ai/search", key.into())
    }

    /// An instance of [SearXNG](https://docs.searxng.org/dev/search_api.html), which may be in a private network. Its
    /// settings must list `json` under `search.formats`.
    ///
    /// # Errors
    /// If `url` is no URL of `http` or `https`, or contains a password.
    pub fn searxng(url: &str) -> Result<Self, WebError> {
        let mut url = parse_url(url, None)?;
        url.set_query(None);
        let url = format!("{}/search", url.as_str().trim_end_matches('/'));
        Ok(Self::new(Kind::Searxng, url, SecretText::default()))
    }

    fn new(kind: Kind, url: impl Into<String>, key: SecretText) -> Self {
        Self {
            kind,
            url: url.into(),
            key,
            connector: Connector::default(),
        }
    }

    /// Returns the address to which queries are sent.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn request(
        &self,
        client: &reqwest::Client,
        mut url: Url,
        query: &str,
        count: usize,
    ) -> Result<RequestBuilder, WebError> {
        let (header, prefix) = match self.kind {
            Kind::Brave => {
                url.query_pairs_mut()
                    .append_pair("q", query)
                    .append_pair("count", &count.to_string())
                    .append_pair("text_decorations", "false");
                (HeaderName::from_static("x-subscription-token"), "")
            }
            Kind::Tavily => (AUTHORIZATION, "Bearer "),
            Kind::Exa => (HeaderName::from_static("x-api-key"), ""),
            Kind::Searxng => {
                url.query_pairs_mut()
                    .append_pair("q", query)
                    .append_pair("format", "json");
                return Ok(client.get(url));
            }
        };
        let key = HeaderValue::from_str(&format!("{prefix}{}", self.key.expose().trim()));
        let mut key = key.map_err(|error| {
            let message = format!("the key for {} can't be sent in a header", self.name());
            WebError::new(WebErrorKind::Protocol, message, "Tell the user.").with_source(error)
        })?;
        key.set_sensitive(true);
        let body = match self.kind {
            Kind::Brave | Kind::Searxng => return Ok(client.get(url).header(header, key)),
            Kind::Tavily => json!({"query": query, "max_results": count}),
            Kind::Exa => {
                json!({"query": query, "numResults": count, "contents": {"highlights": true}})
            }
        };
        let request = client.post(url).header(header, key);
        Ok(request
            .header("content-type", "application/json")
            .body(body.to_string()))
    }

    async fn answer(&self, query: &str, count: usize) -> Result<Value, WebError> {
        let url = parse_url(&self.url, None)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let client = self.connector.client(&url, None).await?;
        let request = self
            .request(&client, url, query, count)?
            .header(ACCEPT, "application/json")
            .header(ACCEPT_ENCODING, "gzip");
        let response = request.send().await;
        let response = response.map_err(|error| http::request_error(&host, error))?;
        http::check_status(&host, &response).map_err(|error| self.explain(error, &response))?;
        if response.status() != StatusCode::OK {
            let message = format!("`{host}` answered with status {}", response.status());
            return Err(WebError::new(WebErrorKind::Status, message, ADVICE));
        }
        let body = http::read_body(&host, response, MAX_ANSWER_BYTES).await?;
        if body.trim_ascii_start().starts_with(b"<") {
            let message = format!("`{host}` answered with a page, which may be a captcha");
            return Err(WebError::new(WebErrorKind::Challenge, message, ADVICE));
        }
        serde_json::from_slice(&body).map_err(|error| {
            let message = format!("the answer of `{host}` is not JSON");
            WebError::new(WebErrorKind::Protocol, message, ADVICE).with_source(error)
        })
    }

    /// Replaces the advice of an error status, which is for pages.
    fn explain(&self, error: WebError, response: &reqwest::Response) -> WebError {
        if error.kind() != WebErrorKind::Status {
            return error;
        }
        error.with_advice(match (self.kind, response.status().as_u16()) {
            (Kind::Searxng, 403) => {
                "The instance may not allow the format `json` (`search.formats` in its settings.yml): tell the user."
            }
            (_, 401 | 403) => "The key is refused: tell the user.",
            // 432 and 433 are Tavily's limits of a plan.
            (_, 402 | 432 | 433) => "The plan's quota is used up: tell the user.",
            // Brave answers 422 to an unknown key, too.
            (_, 400 | 422) => "The service refuses the query or the key: try a shorter query, or tell the user.",
            (_, 301 | 302 | 307 | 308) => "The URL of the service has changed: tell the user.",
            _ => ADVICE,
        })
    }

    /// Reads the results of an answer, whose absence must not look like an empty list.
    fn hits(&self, answer: &Value, count: usize) -> Result<Vec<SearchHit>, WebError> {
        let found = match self.kind {
            Kind::Brave => answer.pointer("/web/results"),
            Kind::Tavily | Kind::Exa | Kind::Searxng => answer.get("results"),
        };
        let found = match found.and_then(Value::as_array) {
            Some(found) => found.as_slice(),
            // Brave leaves `web` out if there is nothing.
            None if matches!(self.kind, Kind::Brave)
                && answer["type"] == "search"
                && answer["web"].is_null() =>
            {
                &[]
            }
            None => {
                let message = format!("the answer of {} has no list of results", self.name());
                return Err(WebError::new(WebErrorKind::Protocol, message, ADVICE));
            }
        };
        let hits: Vec<_> = found
            .iter()
            .filter_map(|hit| self.hit(hit))
            .take(count)
            .collect();
        if hits.is_empty() && !found.is_empty() {
            let message = format!("no result of {} can be understood", self.name());
            return Err(WebError::new(WebErrorKind::Protocol, message, ADVICE));
        }
        let failed = answer["unresponsive_engines"].as_array();
        if let Some(failed) = failed.filter(|failed| hits.is_empty() && !failed.is_empty()) {
            let failed: Vec<_> = failed.iter().take(10).map(engine_failure).collect();
            let message = format!("engines of {} failed: {}", self.name(), failed.join(", "));
            return Err(WebError::new(WebErrorKind::Status, message, ADVICE));
        }
        Ok(hits)
    }

    fn hit(&self, hit: &Value) -> Option<SearchHit> {
        let url = hit["url"].as_str()?;
        parse_url(url, None).ok()?;
        let text = |field: &str| hit[field].as_str().unwrap_or_default().to_owned();
        let description = match self.kind {
            Kind::Brave => text("description"),
            Kind::Tavily | Kind::Searxng => text("content"),
            Kind::Exa => {
                let highlights = hit["highlights"].as_array().into_iter().flatten();
                let highlights: Vec<_> = highlights.filter_map(Value::as_str).collect();
                highlights.join(" … ")
            }
        };
        Some(SearchHit::new(text("title"), url, description))
    }
}

/// Returns the name and the failure of one of SearXNG's engines, which it sends as a pair.
fn engine_failure(pair: &Value) -> String {
    let text = |index: usize| -> String {
        let text = pair[index].as_str().unwrap_or("unknown");
        text.chars().take(60).collect()
    };
    format!("{} ({})", text(0), text(1))
}

#[async_trait]
impl SearchProvider for SearchService {
    fn name(&self) -> &str {
        match self.kind {
            Kind::Brave => "Brave Search",
            Kind::Tavily => "Tavily",
            Kind::Exa => "Exa",
            Kind::Searxng => "SearXNG",
        }
    }

    async fn search(&self, query: &str, count: usize) -> Result<Vec<SearchHit>, WebError> {
        let answer = self.answer(query, count).await?;
        self.hits(&answer, count)
    }
}
