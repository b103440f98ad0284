//! What a server's refusal means, in one vocabulary.
//!
//! OpenAI's error object is the model and nobody's rule: `code` is a text, a number or missing, the
//! whole object may be a text, lie in a list or stand without its wrapper, and a proxy answers with
//! a web page. Nothing that a server says is repeated before the API key has been taken out of it.

use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderMap, LOCATION};
use serde_json::Value;

use super::overflow::is_overflow;
use super::proxy::OnTheWay;
use super::retry_after::retry_after;

/// How much of what a server says is repeated, in characters.
const LONGEST_QUOTE: usize = 1000;

/// What errors of one endpoint need to know of it.
///
/// Visible in the signatures of [`Dialect`](super::Dialect), and nowhere else.
#[derive(Debug)]
pub struct Diagnosis {
    /// Where requests go, for people: without query.
    pub(super) base_url: String,
    /// What is added to it, with the slash before it.
    pub(super) path: &'static str,
    /// What an answer is called, with its article.
    pub(super) answer: &'static str,
    pub(super) model: String,
    pub(super) key: Option<SecretText>,
    /// The proxy that requests go through.
    pub(super) way: Option<OnTheWay>,
}

/// What a server said about its failure.
#[derive(Debug, Default, PartialEq)]
struct Report {
    message: String,
    /// Code and type, where they are texts, in lower case.
    names: Vec<String>,
    /// The code, where it is an HTTP status.
    status: Option<u16>,
}

impl Diagnosis {
    #[cfg(test)]
    pub(crate) fn for_tests(path: &'static str, answer: &'static str) -> Self {
        Self {
            base_url: "http://localhost:8000/v1".to_owned(),
            path,
            answer,
            model: "m".to_owned(),
            key: None,
            way: None,
        }
    }

    /// The error for a response with a status that is not success.
    pub(super) fn refused(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> LlmError {
        let report = serde_json::from_slice(body).ok().as_ref().and_then(report);
        let error = match report {
            _ if (300..400).contains(&status) => self.redirected(headers),
            Some(report) => self.reported(Some(status), &report),
            None => self.unreadable(status, headers, body),
        };
        error
            .with_status(status)
            .with_retry_after(retry_after(headers))
    }

    /// The error that came in the place of an answer, with a status that promised one. `None` where
    /// `body` holds none.
    pub(crate) fn reported_in(&self, body: &[u8]) -> Option<LlmError> {
        let value = serde_json::from_slice(body).ok()?;
        Some(self.reported(None, &report(&value)?))
    }

    /// The error for an event that is named one and holds it in no known shape.
    pub(crate) fn failed_under_way(&self, said: &str) -> LlmError {
        let report = Report {
            message: said.to_owned(),
            ..Report::default()
        };
        self.reported(None, &report)
    }

    /// The error for an event that is not what the dialect says: what it reports, or that.
    pub(crate) fn unreadable_event(&self, data: &str, error: &serde_json::Error) -> LlmError {
        self.reported_in(data.as_bytes()).unwrap_or_else(|| {
            let message = format!("the server sent an event that can't be read: {error}");
            self.protocol(&message)
        })
    }

    /// The error for a body that should be an answer and can't be read as one.
    pub(crate) fn no_answer(&self, headers: &HeaderMap, body: &[u8], why: &str) -> LlmError {
        if let Some(page) = web_page(headers, body) {
            let message = self.clean(&format!("the server answered with {page}"));
            return LlmError::protocol(message).with_advice(self.base_url_advice());
        }
        match String::from_utf8_lossy(body).trim() {
            "" => LlmError::protocol("the server's answer is empty"),
            said => self.protocol(&format!(
                "the server's answer is not {} ({why}): {said}",
                self.answer
            )),
        }
    }

    /// An answer that is not what the protocol says.
    pub(crate) fn protocol(&self, message: &str) -> LlmError {
        LlmError::protocol(self.clean(message))
    }

    fn reported(&self, status: Option<u16>, report: &Report) -> LlmError {
        let kind = kind(status, report);
        let message = match report.message.trim() {
            "" => format!("{} (no reason given)", lead(kind)),
            said => format!("{}: {said}", lead(kind)),
        };
        let about_model = report.message.to_ascii_lowercase().contains("model");
        let error = LlmError::new(kind, self.clean(&message));
        self.advised(error, status, about_model)
    }

    fn redirected(&self, headers: &HeaderMap) -> LlmError {
        let to = headers.get(LOCATION).and_then(|to| to.to_str().ok());
        let to = to.unwrap_or("an address it does not name");
        let message = self.clean(&format!("the server sends requests on to {to}"));
        LlmError::new(LlmErrorKind::NotFound, message).with_advice(
            "Redirects are not followed, so that the API key stays where it belongs: set the base \
             URL to where they lead.",
        )
    }

    /// A refusal without a readable reason: an empty body, plain text or a web page.
    fn unreadable(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> LlmError {
        let message = match web_page(headers, body) {
            Some(page) => format!("it answered with {page}"),
            None => String::from_utf8_lossy(body).into_owned(),
        };
        let report = Report {
            message,
            ..Report::default()
        };
        self.reported(Some(status), &report)
    }

    fn advised(&self, error: LlmError, status: Option<u16>, about_model: bool) -> LlmError {
        let (base_url, model) = (&self.base_url, &self.model);
        let advice = match error.kind() {
            LlmErrorKind::ContextOverflow => {
                "Shorten the conversation, or use a model with a larger context window.".to_owned()
            }
            LlmErrorKind::Authentication if self.key.is_none() => {
                format!("Give an API key for {base_url}: the request had none.")
            }
            LlmErrorKind::Authentication => {
                format!("Check the API key: it must be one for {base_url}.")
            }
            LlmErrorKind::Permission if status == Some(407) => {
                return match &self.way {
                    Some(way) => {
                        let by = format!("the proxy {} said so", way.at);
                        error.with_more(&by).with_advice(way.wants_a_name())
                    }
                    None => error.with_advice(
                        "A proxy on the way wants to know who you are: use an address that does not \
                         lead through it.",
                    ),
                };
            }
            LlmErrorKind::Permission => {
                "Check what the API key may do, and whether the account has credit.".to_owned()
            }
            LlmErrorKind::NotFound if about_model => {
                format!("Check the model's name, `{model}`, and that {base_url} offers it.")
            }
            LlmErrorKind::NotFound => self.base_url_advice(),
            LlmErrorKind::Server if status == Some(529) => {
                "The provider has more to do than it can: try again later.".to_owned()
            }
            LlmErrorKind::RateLimited => {
                "Try again later, or run fewer sessions side by side.".to_owned()
            }
            _ => return error,
        };
        error.with_advice(advice)
    }

    fn base_url_advice(&self) -> String {
        let (base_url, path) = (&self.base_url, self.path);
        let sent = format!("Check the base URL, {base_url}: requests go to {base_url}{path}");
        match base_url.matches("/v1").count() {
            0 => format!("{sent}. Mostly it ends in /v1: try {base_url}/v1."),
            1 => format!("{sent}, so it mostly ends in /v1."),
            _ => format!("{sent}, which holds /v1 more than once."),
        }
    }

    /// `text` without the key, and not too long.
    pub(crate) fn clean(&self, text: &str) -> String {
        let clean = match self.key.as_ref().map(SecretText::expose) {
            Some(key) if !key.is_empty() => text.replace(key, "[hidden]"),
            _ => text.to_owned(),
        };
        match clean.char_indices().nth(LONGEST_QUOTE) {
            Some((end, _)) => format!("{}…", clean.get(..end).unwrap_or_default()),
            None => clean,
        }
    }
}

/// Finds what was said in an error body of any of the known shapes.
fn report(value: &Value) -> Option<Report> {
    let value = match value {
        // Gemini's compatible endpoint puts its error into a list.
        Value::Array(items) => items.first()?,
        other => other,
    };
    let in_choice = || value.get("choices")?.get(0)?.get("error");
    let wrapped = value.get("error").or_else(in_choice);
    match wrapped.filter(|error| !error.is_null()) {
        Some(Value::String(message)) => Some(Report {
            message: message.clone(),
            ..Report::default()
        }),
        Some(error) => Some(read(error)),
        None => {
            let bare = value.get("object").and_then(Value::as_str) == Some("error");
            let said = value.get("message").or_else(|| value.get("detail"));
            (bare || said.is_some()).then(|| read(value))
        }
    }
}

fn read(error: &Value) -> Report {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let said = error.get("message").or_else(|| error.get("detail"));
    let mut message = match said {
        // FastAPI's list of what is wrong. It repeats the whole input; only the sentences count.
        Some(Value::Array(items)) => items
            .iter()
            .filter_map(|item| item.get("msg").and_then(text))
            .collect::<Vec<_>>()
            .join("; "),
        Some(value) => text(value).unwrap_or_else(|| value.to_string()),
        None => String::new(),
    };
    // OpenRouter only says "Provider returned error"; what that provider said is here.
    let raw = error
        .get("metadata")
        .and_then(|metadata| metadata.get("raw"));
    if let Some(raw) = raw.and_then(text) {
        message = format!("{message}: {raw}");
    }

    let code = error.get("code");
    let number = code.and_then(|code| match code {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    });
    let names = [code, error.get("type")]
        .into_iter()
        .flatten()
        .filter_map(|name| name.as_str().map(str::to_ascii_lowercase));
    Report {
        message,
        names: names.collect(),
        status: number
            .and_then(|number| u16::try_from(number).ok())
            .filter(|status| (400..600).contains(status)),
    }
}

/// The status decides, where there is one, but for what a name in the body says better.
fn kind(status: Option<u16>, report: &Report) -> LlmErrorKind {
    let status = status.or(report.status);
    let names: Vec<&str> = report.names.iter().map(String::as_str).collect();
    let named = |wanted: &[&str]| names.iter().any(|name| wanted.contains(name));

    // OpenAI has 429 for an account without credit, too; waiting does not help.
    if named(&["insufficient_quota", "billing_hard_limit_reached"]) {
        return LlmErrorKind::Permission;
    }
    // Limits of tokens per minute speak of tokens, and of requests that are too large, with 413 at
    // Groq. They are looked for first.
    let limited = [
        "rate_limit_exceeded",
        "rate_limit_error",
        "throttling_error",
    ];
    if status == Some(429) || named(&limited) {
        return LlmErrorKind::RateLimited;
    }
    let elsewhere = matches!(status, Some(401..=404));
    if !elsewhere && is_overflow(&names, &report.message) {
        return LlmErrorKind::ContextOverflow;
    }
    // LiteLLM without a database has no list of keys to look for one in, and says that.
    let unknown_key = [
        "invalid_api_key",
        "authentication_error",
        "no_db_connection",
    ];
    match status {
        Some(401) => LlmErrorKind::Authentication,
        // 407 is a proxy on the way that wants a name and a password.
        Some(402 | 403 | 407) => LlmErrorKind::Permission,
        Some(404 | 405 | 410) => LlmErrorKind::NotFound,
        Some(408) => LlmErrorKind::Timeout,
        Some(501) => LlmErrorKind::Unsupported,
        // 409 is a lock that another request holds: OpenAI's own clients try again.
        Some(409 | 500..) => LlmErrorKind::Server,
        // Proxies have other statuses for these.
        _ if named(&unknown_key) => LlmErrorKind::Authentication,
        _ if named(&["model_not_found"]) => LlmErrorKind::NotFound,
        Some(_) => LlmErrorKind::InvalidRequest,
        None if named(&["permission_error"]) => LlmErrorKind::Permission,
        None if named(&["not_found_error", "notfounderror"]) => LlmErrorKind::NotFound,
        None if named(&["invalid_request_error", "badrequesterror"]) => {
            LlmErrorKind::InvalidRequest
        }
        None => LlmErrorKind::Server,
    }
}

fn lead(kind: LlmErrorKind) -> &'static str {
    match kind {
        LlmErrorKind::ContextOverflow => "the conversation does not fit the model's context window",
        LlmErrorKind::Authentication => "the provider does not accept the API key",
        LlmErrorKind::Permission => "the provider does not permit the request",
        LlmErrorKind::NotFound => "the provider does not know the address or the model",
        LlmErrorKind::RateLimited => "the provider limits the rate of requests",
        LlmErrorKind::Server => "the provider failed",
        LlmErrorKind::Timeout => "the provider gave up waiting",
        _ => "the provider refused the request",
    }
}

/// What to call a body that is a web page.
fn web_page(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let declared = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.starts_with("text/html"));
    let body = String::from_utf8_lossy(body);
    let start = body.trim_start().get(..14).unwrap_or_default();
    let looks = start.eq_ignore_ascii_case("<!doctype html") || {
        start
            .get(..5)
            .is_some_and(|start| start.eq_ignore_ascii_case("<html"))
    };
    if !declared && !looks {
        return None;
    }
    let title = body
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"))
        .map(|(title, _)| title.trim());
    Some(match title {
        Some(title) if !title.is_empty() => format!("a web page, \"{title}\""),
        _ => "a web page".to_owned(),
    })
}

#[cfg(test)]
mod tests;
