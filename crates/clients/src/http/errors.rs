//! Maps error responses of all servers to [`LlmError`].
//!
//! Servers follow OpenAI's error object loosely: `code` is a string, a number or missing; the object
//! may be a string or a flag, be in a list or lack its wrapper; and a proxy may answer with a web page. The
//! API key is removed from all text that a server sends.

use std::time::Duration;

use cantle_core::escape::shorten;
use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderMap, LOCATION};
use serde::Deserialize;
use serde_json::Value;

use super::overflow::is_overflow;
use super::proxy::ProxyRoute;
use super::retry_after::{delay_in_message, parse_delay, retry_after};
use crate::sse::Event;

/// Maximum length of a quoted server message in characters.
const MAX_QUOTE_CHARS: usize = 1000;

/// Parts of messages with status 400 that refuse the key, in lower case.
const KEY_PHRASES: [&str; 3] = [
    // Gemini.
    "api key not valid",
    "api key expired",
    // xAI.
    "incorrect api key",
];

/// Part of Ollama's message with status 500 about a model that is too large for the machine, in lower case. Other lack of
/// memory, such as `cudaMalloc failed: out of memory`, may pass.
const TOO_LARGE: &str = "model requires more system memory";

/// Parts of messages with status 500 of llama.cpp about a model that takes text only, in lower case.
const MEDIA_PHRASES: [&str; 2] = [
    "image input is not supported",
    "audio input is not supported",
];

const OVERFLOW_ADVICE: &str =
    "Shorten the conversation, or use a model with a larger context window.";

/// Returns the error for an answer that was cut off because it filled the context window.
pub(crate) fn filled_window() -> LlmError {
    let message = "the answer was cut off at the end of the model's context window";
    LlmError::new(LlmErrorKind::ContextOverflow, message).with_advice(OVERFLOW_ADVICE)
}

/// Describes an endpoint for its error messages.
#[derive(Debug)]
pub struct ErrorContext {
    /// Base URL without its query.
    pub(super) base_url: String,
    /// Path that is appended to the base URL, with a leading slash.
    pub(super) path: &'static str,
    /// Name of a response with its article.
    pub(super) response: &'static str,
    pub(super) model: String,
    pub(super) key: Option<SecretText>,
    pub(super) proxy: Option<ProxyRoute>,
}

/// Content of an error object.
#[derive(Debug, Default, PartialEq)]
struct ErrorReport {
    message: String,
    /// Code and type in lower case, if they are strings.
    names: Vec<String>,
    /// The code, if it is an HTTP status.
    status: Option<u16>,
    /// The delay in Gemini's details: <https://cloud.google.com/apis/design/errors>
    delay: Option<Duration>,
}

impl ErrorReport {
    fn from_message(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            ..Self::default()
        }
    }
}

impl ErrorContext {
    /// Returns the error for a response with an unsuccessful status.
    pub(super) fn status_error(&self, status: u16, headers: &HeaderMap, body: &[u8]) -> LlmError {
        let error = if (300..400).contains(&status) {
            self.redirected(headers)
        } else {
            let report = find_report(body).unwrap_or_else(|| {
                ErrorReport::from_message(match web_page(headers, body) {
                    Some(page) => format!("it answered with {page}"),
                    None => String::from_utf8_lossy(body).into_owned(),
                })
            });
            self.report_error(Some(status), &report)
        };
        let delay = retry_after(headers).or(error.retry_after());
        error.with_status(status).with_retry_after(delay)
    }

    /// Returns the error that `body` reports despite a successful status, if it does.
    pub(crate) fn body_error(&self, body: &[u8]) -> Option<LlmError> {
        Some(self.report_error(None, &find_report(body)?))
    }

    /// Returns the error that the data of an event reports, in whatever format.
    pub(crate) fn event_error(&self, data: &str) -> LlmError {
        let reported = self.body_error(data.as_bytes());
        reported.unwrap_or_else(|| self.report_error(None, &ErrorReport::from_message(data)))
    }

    /// Parses the data of an event; fails with the error that it reports, if any.
    pub(crate) fn parse_event<'e, T: Deserialize<'e>>(
        &self,
        event: &'e Event<'_>,
    ) -> Result<T, LlmError> {
        serde_json::from_str(&event.data).map_err(|error| self.unreadable_event(event, &error))
    }

    /// Returns the error for an event that cannot be parsed: the one that it reports, if any.
    pub(crate) fn unreadable_event(
        &self,
        event: &Event<'_>,
        error: &serde_json::Error,
    ) -> LlmError {
        match event.name {
            Some("error") => self.event_error(&event.data),
            // The JSON ends too early, as if the connection had: a proxy may have completed the event.
            _ if error.is_eof() => {
                let message = format!("the response ended within an event: {error}");
                LlmError::new(LlmErrorKind::Interrupted, self.redact(&message))
            }
            _ => self.body_error(event.data.as_bytes()).unwrap_or_else(|| {
                self.protocol(&format!("failed to parse an event of the server: {error}"))
            }),
        }
    }

    /// Parses a body; fails with the error that it reports, if any.
    pub(crate) fn parse_body<'b, T: Deserialize<'b>>(
        &self,
        headers: &HeaderMap,
        body: &'b [u8],
    ) -> Result<T, LlmError> {
        let invalid =
            |error: serde_json::Error| self.invalid_body(headers, body, &error.to_string());
        serde_json::from_slice(body).map_err(invalid)
    }

    /// Returns the error for a body that cannot be parsed as a response: the one that it reports, if any.
    pub(crate) fn invalid_body(&self, headers: &HeaderMap, body: &[u8], reason: &str) -> LlmError {
        if let Some(error) = self.body_error(body) {
            return error;
        }
        if let Some(page) = web_page(headers, body) {
            let message = self.redact(&format!("the server answered with {page}"));
            return LlmError::protocol(message).with_advice(self.base_url_advice());
        }
        match String::from_utf8_lossy(body).trim() {
            "" => LlmError::new(LlmErrorKind::Interrupted, "the server's response is empty"),
            text => self.protocol(&format!(
                "the server's response is not {} ({reason}): {text}",
                self.response
            )),
        }
    }

    /// Returns the error for a violation of the protocol.
    pub(crate) fn protocol(&self, message: &str) -> LlmError {
        LlmError::protocol(self.redact(message))
    }

    fn report_error(&self, status: Option<u16>, report: &ErrorReport) -> LlmError {
        let status = status.or(report.status);
        let kind = classify(status, report);
        let summary = summary(kind, status);
        let message = match report.message.trim() {
            "" => format!("{summary} (no reason given)"),
            reason => format!("{summary}: {reason}"),
        };
        let mentions_model = report.message.to_ascii_lowercase().contains("model");
        let delay = report.delay.or_else(|| delay_in_message(&report.message));
        let error = LlmError::new(kind, self.redact(&message)).with_retry_after(delay);
        self.with_advice(error, status, mentions_model)
    }

    fn redirected(&self, headers: &HeaderMap) -> LlmError {
        let target = headers.get(LOCATION).and_then(|url| url.to_str().ok());
        let target = target.unwrap_or("an unspecified address");
        let message = self.redact(&format!("the server redirects requests to {target}"));
        LlmError::new(LlmErrorKind::NotFound, message).with_advice(
            "Redirects are not followed, because they would send the API key to another server: set \
             the base URL to the redirect's target.",
        )
    }

    fn with_advice(&self, error: LlmError, status: Option<u16>, mentions_model: bool) -> LlmError {
        let (base_url, model) = (&self.base_url, &self.model);
        let advice = match error.kind() {
            LlmErrorKind::ContextOverflow => OVERFLOW_ADVICE.to_owned(),
            LlmErrorKind::Authentication if self.key.is_none() => {
                format!("Set an API key for {base_url}: the request had none.")
            }
            LlmErrorKind::Authentication => {
                format!("Check the API key: it must be one for {base_url}.")
            }
            LlmErrorKind::Permission if status == Some(407) => {
                return match &self.proxy {
                    Some(route) => {
                        let source = format!("reported by the proxy {}", route.url);
                        error
                            .with_detail(&source)
                            .with_advice(route.credentials_advice())
                    }
                    None => error.with_advice(
                        "A proxy in between requires authentication: use a base URL that is \
                         reachable without it.",
                    ),
                };
            }
            LlmErrorKind::Permission => {
                "Check the permissions of the API key, and whether the account has credit."
                    .to_owned()
            }
            // OpenAI's newer models take tools and reasoning together only there.
            LlmErrorKind::InvalidRequest | LlmErrorKind::NotFound
                if self.path != "/responses" && error.to_string().contains("v1/responses") =>
            {
                "Use OpenAI Responses (`--api responses`) for this model.".to_owned()
            }
            LlmErrorKind::InvalidRequest if error.to_string().contains("verified to stream") => {
                "Verify the organization, or turn streaming off (`--no-stream`).".to_owned()
            }
            LlmErrorKind::NotFound if status == Some(500) => {
                format!("Use a model that {base_url} has, and has the memory for.")
            }
            LlmErrorKind::NotFound if mentions_model => {
                format!("Check the model's name, `{model}`, and that {base_url} offers it.")
            }
            LlmErrorKind::NotFound => self.base_url_advice(),
            LlmErrorKind::Server if status == Some(529) => {
                "The provider is overloaded: try again later.".to_owned()
            }
            LlmErrorKind::RateLimited => {
                "Try again later, or run fewer sessions concurrently.".to_owned()
            }
            _ => return error,
        };
        error.with_advice(advice)
    }

    fn base_url_advice(&self) -> String {
        let (base_url, path) = (&self.base_url, self.path);
        let target = format!("Check the base URL, {base_url}: requests go to {base_url}{path}");
        match base_url.matches("/v1").count() {
            0 => format!("{target}. Most base URLs end in /v1: try {base_url}/v1."),
            1 => format!("{target}; most base URLs end in /v1."),
            _ => format!("{target}, which contains /v1 more than once."),
        }
    }

    /// Removes the key from `text` and limits its length.
    pub(crate) fn redact(&self, text: &str) -> String {
        let redacted = match self.key.as_ref().map(SecretText::expose) {
            Some(key) if !key.is_empty() => text.replace(key, "[hidden]"),
            _ => text.to_owned(),
        };
        shorten(&redacted, MAX_QUOTE_CHARS)
    }
}

/// Finds the error object in a body of any known format.
fn find_report(body: &[u8]) -> Option<ErrorReport> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let value = match &value {
        // Gemini's compatible endpoint wraps its error in a list.
        Value::Array(items) => items.first()?,
        other => other,
    };
    let in_choice = || value.get("choices")?.get(0)?.get("error");
    match value.get("error").or_else(in_choice) {
        None | Some(Value::Null | Value::Bool(false)) => {
            let is_error = value.get("object").and_then(Value::as_str) == Some("error")
                || value.get("message").is_some()
                || value.get("detail").is_some();
            is_error.then(|| read_report(value))
        }
        // A flag, and the message beside it.
        Some(Value::Bool(true)) => Some(read_report(value)),
        Some(Value::String(message)) => Some(ErrorReport::from_message(message)),
        Some(error) => Some(read_report(error)),
    }
}

fn read_report(error: &Value) -> ErrorReport {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let mut message = match error.get("message").or_else(|| error.get("detail")) {
        // FastAPI's validation errors repeat the whole input; only their sentences are of use.
        Some(Value::Array(items)) => items
            .iter()
            .filter_map(|item| item.get("msg").and_then(text))
            .collect::<Vec<_>>()
            .join("; "),
        Some(value) => text(value).unwrap_or_else(|| value.to_string()),
        None => String::new(),
    };
    // OpenRouter's message is only "Provider returned error"; the provider's own error is here, as text or as JSON.
    let raw = error.pointer("/metadata/raw");
    if let Some(raw) = raw.filter(|raw| !raw.is_null()) {
        let raw = text(raw).unwrap_or_else(|| raw.to_string());
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
    let details = error.get("details").and_then(Value::as_array);
    let delay = details
        .into_iter()
        .flatten()
        .find_map(|detail| parse_delay(detail.get("retryDelay")?.as_str()?));
    ErrorReport {
        message,
        names: names.collect(),
        delay,
        status: number
            .and_then(|number| u16::try_from(number).ok())
            .filter(|status| (400..600).contains(status)),
    }
}

/// Derives the kind from the status, unless a name in the body is more specific.
fn classify(status: Option<u16>, report: &ErrorReport) -> LlmErrorKind {
    let names: Vec<&str> = report.names.iter().map(String::as_str).collect();
    let has_name = |wanted: &[&str]| names.iter().any(|name| wanted.contains(name));

    // Several providers also send 429 where waiting does not help: for an account without credit (OpenAI, Moonshot,
    // Z.AI), and for a model that the free tier does not include (Gemini).
    let quota_names = ["insufficient_quota", "billing_hard_limit_reached"];
    let is_excluded = ["free_tier", "limit: 0"]
        .iter()
        .all(|part| report.message.contains(part));
    let message = report.message.to_ascii_lowercase();
    if has_name(&quota_names) || is_excluded || message.contains("insufficient balance") {
        return LlmErrorKind::Permission;
    }
    // Checked before overflows: errors about tokens per minute mention tokens and large requests, and
    // Groq sends them with status 413.
    let rate_limit_names = [
        "rate_limit_exceeded",
        "rate_limit_error",
        "throttling_error",
    ];
    if status == Some(429) || has_name(&rate_limit_names) {
        return LlmErrorKind::RateLimited;
    }
    if !matches!(status, Some(401..=404)) && is_overflow(&names, &report.message) {
        return LlmErrorKind::ContextOverflow;
    }
    // Groq refuses what the model wrote, not the request: https://console.groq.com/docs/tool-use
    let output_names = ["tool_use_failed", "output_parse_failed"];
    let is_in_message = |name: &&str| report.message.contains(*name);
    if has_name(&output_names) || output_names.iter().any(is_in_message) {
        return LlmErrorKind::Interrupted;
    }
    // LiteLLM without a database reports `no_db_connection` for an unknown key.
    let authentication_names = [
        "invalid_api_key",
        "authentication_error",
        "no_db_connection",
    ];
    let has_phrase = |phrases: &[&str]| phrases.iter().any(|phrase| message.contains(*phrase));
    // LiteLLM in front of Ollama: `model 'NAME' not found`.
    let is_missing = message.contains("model") && has_phrase(&["' not found", "\" not found"]);
    match status {
        Some(401) => LlmErrorKind::Authentication,
        Some(400) if has_phrase(&KEY_PHRASES) => LlmErrorKind::Authentication,
        // 407 comes from a proxy that requires authentication.
        Some(402 | 403 | 407) => LlmErrorKind::Permission,
        Some(404 | 405 | 410) => LlmErrorKind::NotFound,
        Some(408) => LlmErrorKind::Timeout,
        Some(501) => LlmErrorKind::Unsupported,
        Some(500) if is_missing || message.contains(TOO_LARGE) => LlmErrorKind::NotFound,
        Some(500) if has_phrase(&MEDIA_PHRASES) => LlmErrorKind::Unsupported,
        // 409 is a lock held by another request; OpenAI's own clients retry it. Groq sends 498 if it has no
        // capacity: https://console.groq.com/docs/errors
        Some(409 | 498 | 500..) => LlmErrorKind::Server,
        // Proxies use other statuses for these.
        _ if has_name(&authentication_names) => LlmErrorKind::Authentication,
        _ if has_name(&["model_not_found"]) => LlmErrorKind::NotFound,
        // LiteLLM has no name for it.
        Some(400)
            if report
                .message
                .contains("Invalid model name passed in model=") =>
        {
            LlmErrorKind::NotFound
        }
        Some(_) => LlmErrorKind::InvalidRequest,
        None if has_name(&["permission_error"]) => LlmErrorKind::Permission,
        None if has_name(&["not_found_error", "notfounderror"]) => LlmErrorKind::NotFound,
        None if has_name(&["badrequesterror"]) || names.iter().any(|name| is_invalid(name)) => {
            LlmErrorKind::InvalidRequest
        }
        None => LlmErrorKind::Server,
    }
}

/// Returns whether a name says that the request is at fault: `invalid_request_error`, or a code of a failed response,
/// such as `invalid_prompt`, `image_parse_error` and `bio_policy`.
/// <https://platform.openai.com/docs/api-reference/responses/object#responses/object-error>
fn is_invalid(name: &str) -> bool {
    name.starts_with("invalid_")
        || name.contains("image")
        || name.contains("policy")
        || ["content_filter", "data_residency_mismatch"].contains(&name)
}

fn summary(kind: LlmErrorKind, status: Option<u16>) -> &'static str {
    match kind {
        LlmErrorKind::NotFound if status == Some(500) => "the provider failed to load the model",
        LlmErrorKind::ContextOverflow => "the conversation exceeds the model's context window",
        LlmErrorKind::Authentication => "the provider rejected the API key",
        LlmErrorKind::Permission => "the provider denied permission for the request",
        LlmErrorKind::NotFound => "the provider does not know the URL or the model",
        LlmErrorKind::RateLimited => "the provider's rate limit was exceeded",
        LlmErrorKind::Server => "the provider failed",
        LlmErrorKind::Timeout => "the provider timed out",
        LlmErrorKind::Interrupted => "the provider could not parse the model's output",
        _ => "the provider rejected the request",
    }
}

/// Returns a description of a body that is a web page.
fn web_page(headers: &HeaderMap, body: &[u8]) -> Option<String> {
    let is_declared = headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.to_ascii_lowercase().starts_with("text/html"));
    let body = String::from_utf8_lossy(body);
    let starts_with = |tag: &str| {
        let start = body.trim_start().get(..tag.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(tag))
    };
    if !is_declared && !starts_with("<!doctype html") && !starts_with("<html") {
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
