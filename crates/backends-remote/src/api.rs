//! The API that creates and kills sandboxes.
//!
//! All calls are idempotent; creation has an idempotency key. They are retried when the service is busy or a
//! response was lost, a limited number of times and not before the time that the service asks for. Error messages
//! omit the API key and other secrets.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue, RETRY_AFTER};
use reqwest::{Client, Method, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use crate::envd::SandboxRecord;
use crate::gate::{Gate, HoldTooLong};
use crate::http::{self, RequestError, TlsCache};

/// Default time limit of a call, retries included.
pub(crate) const CALL_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RETRIES: u32 = 4;
/// First pause before a retry, if the service doesn't ask for another; it doubles each time.
const RETRY_PAUSE: Duration = Duration::from_millis(200);
/// Maximum characters of a service's message in an error.
const MAX_MESSAGE_CHARS: usize = 300;
/// Minimum length of a secret that is hidden: a self-hosted server may use a key such as `x`.
const MIN_SECRET_BYTES: usize = 4;
const TOO_MANY: &str =
    "Too many requests or sandboxes: wait, close some, or lower the creation rate.";

/// Version of the service's API.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ApiGeneration {
    /// The second, with a fall-back to the first if the service lacks it.
    #[default]
    Newest,
    /// The first.
    V1,
    /// The second.
    V2,
}

/// Client of the API.
pub(crate) struct Api {
    http: Client,
    base: Url,
    header: HeaderValue,
    /// Values to hide in messages: the key and the sandboxes' environment variables.
    secrets: Vec<SecretText>,
    generation: ApiGeneration,
    /// Whether the service has only the first version of the API.
    only_first: AtomicBool,
    pub(crate) gate: Gate,
    /// Time limit of a call, retries included.
    call_timeout: Duration,
}

/// Omits the key.
impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}

/// The request to create a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct CreateRequest {
    pub(crate) body: Value,
    pub(crate) template: String,
    /// Equal in all retries, so that only one sandbox is created.
    pub(crate) idempotency_key: String,
}

/// A complete response.
struct ApiResponse {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    message: String,
    error_code: String,
}

impl Api {
    pub(crate) fn new(
        base: Url,
        key: &SecretText,
        environment: impl IntoIterator<Item = SecretText>,
        generation: ApiGeneration,
        gate: Gate,
        call_timeout: Duration,
        tls_cache: &TlsCache,
    ) -> Result<Self, SandboxError> {
        let mut header = HeaderValue::try_from(key.expose()).map_err(|_| {
            SandboxError::unavailable("the API key holds characters that can't be sent")
                .with_advice("Check that the key is one line of plain text.")
        })?;
        header.set_sensitive(true);
        let mut secrets: Vec<SecretText> = environment.into_iter().chain([key.clone()]).collect();
        secrets.retain(|secret| secret.expose().len() >= MIN_SECRET_BYTES);
        // A secret may contain a shorter one.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Ok(Self {
            http: http::client(&base, tls_cache)?,
            base,
            header,
            secrets,
            generation,
            call_timeout,
            only_first: AtomicBool::new(false),
            gate,
        })
    }

    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Creates a sandbox.
    pub(crate) async fn create(&self, spec: &CreateRequest) -> Result<SandboxRecord, SandboxError> {
        let doing = "failed to create a sandbox";
        let _permit = self
            .gate
            .acquire(CALL_TIMEOUT)
            .await
            .map_err(|HoldTooLong(left)| {
                let seconds = left.as_secs();
                let message = format!("{doing}: the service asks to wait for another {seconds} s");
                SandboxError::unavailable(message).with_advice(TOO_MANY)
            })?;
        let key = Some(&*spec.idempotency_key);
        let answer = self
            .call_newest(&["sandboxes"], &spec.body, key)
            .await
            .map_err(|error| self.unreachable(error, doing))?;
        match answer.status {
            StatusCode::CREATED | StatusCode::OK => self.parse_record(&answer, doing),
            StatusCode::NOT_FOUND if !answer.has_message() => Err(self.not_the_api(doing)),
            StatusCode::NOT_FOUND => Err(self
                .error(&answer, SandboxErrorKind::Unavailable, doing)
                .with_advice(format!(
                    "Check the template's name (`{}`), and that the key's team has access to it.",
                    spec.template
                ))),
            _ => Err(self.refused(&answer, doing)),
        }
    }

    /// Connects to a sandbox, resuming it if paused, and sets its lifetime.
    pub(crate) async fn connect(
        &self,
        id: &str,
        lifetime: Duration,
    ) -> Result<SandboxRecord, SandboxError> {
        let doing = "failed to connect to the sandbox";
        let body = json!({ "timeout": lifetime.as_secs() });
        let path = ["sandboxes", id, "connect"];
        let answer = self
            .call_newest(&path, &body, None)
            .await
            .map_err(|error| self.unreachable(error, doing))?;
        match answer.status {
            StatusCode::CREATED | StatusCode::OK => self.parse_record(&answer, doing),
            StatusCode::NOT_FOUND => Err(gone(id)),
            _ => Err(self.refused(&answer, doing)),
        }
    }

    /// Sets the remaining lifetime of a sandbox.
    pub(crate) async fn extend(&self, id: &str, lifetime: Duration) -> Result<(), SandboxError> {
        let body = json!({ "timeout": lifetime.as_secs() });
        let doing = "failed to extend the sandbox's lifetime";
        let path = ["sandboxes", id, "timeout"];
        self.call_sandbox(Method::POST, &path, Some(&body), doing)
            .await
    }

    /// Pauses a sandbox if it is running.
    pub(crate) async fn pause(&self, id: &str) -> Result<(), SandboxError> {
        let path = ["sandboxes", id, "pause"];
        let doing = "failed to pause the sandbox";
        self.call_sandbox(Method::POST, &path, Some(&json!({})), doing)
            .await
    }

    /// Kills a sandbox if it exists.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), SandboxError> {
        let path = ["sandboxes", id];
        let doing = "failed to kill the sandbox";
        match self.call_sandbox(Method::DELETE, &path, None, doing).await {
            Err(error) if error.kind() == SandboxErrorKind::Gone => Ok(()),
            other => other,
        }
    }

    /// Calls a method of the sandbox whose id is the second segment of `path`.
    async fn call_sandbox(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        doing: &str,
    ) -> Result<(), SandboxError> {
        let answer = self
            .call(method, path, body, None)
            .await
            .map_err(|error| self.unreachable(error, doing))?;
        match answer.status {
            status if status.is_success() => Ok(()),
            // Already paused.
            StatusCode::CONFLICT if path.last() == Some(&"pause") => Ok(()),
            StatusCode::NOT_FOUND => Err(gone(path.get(1).copied().unwrap_or_default())),
            _ => Err(self.refused(&answer, doing)),
        }
    }

    /// Calls the second version of the API, or the first where the service lacks it.
    async fn call_newest(
        &self,
        path: &[&str],
        body: &Value,
        idempotency_key: Option<&str>,
    ) -> Result<ApiResponse, RequestError> {
        let second: Vec<&str> = ["v2"].iter().chain(path).copied().collect();
        let tries_second = match self.generation {
            ApiGeneration::V1 => false,
            ApiGeneration::V2 => true,
            ApiGeneration::Newest => !self.only_first.load(Ordering::Relaxed),
        };
        let first_body = secure(body);
        let call_first = || self.call(Method::POST, path, Some(&first_body), idempotency_key);
        if !tries_second {
            return call_first().await;
        }
        let answer = self
            .call(Method::POST, &second, Some(body), idempotency_key)
            .await?;
        if self.generation != ApiGeneration::Newest || !answer.may_lack_path() {
            return Ok(answer);
        }
        // If the sandbox or template is missing, the first version answers 404 as well.
        let older = call_first().await?;
        if older.status.is_success() {
            self.only_first.store(true, Ordering::Relaxed);
        }
        // If neither path exists, the first response has the better message.
        Ok(if older.may_lack_path() && !older.has_message() {
            answer
        } else {
            older
        })
    }

    /// Calls a method of the API. One with an idempotency key creates a sandbox, and its retries count for the rate of
    /// creations.
    async fn call(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        idempotency_key: Option<&str>,
    ) -> Result<ApiResponse, RequestError> {
        let url = http::join_path(&self.base, path.iter().copied());
        let started = Instant::now();
        let left = || self.call_timeout.saturating_sub(started.elapsed());
        let mut retries = 0;
        loop {
            let mut request = self
                .http
                .request(method.clone(), url.clone())
                .header("x-api-key", &self.header);
            if let Some(body) = body {
                request = request
                    .header(CONTENT_TYPE, "application/json")
                    .body(body.to_string());
            }
            if let Some(key) = idempotency_key {
                request = request.header("idempotency-key", key);
            }
            let Ok(answered) = timeout(left(), send(request)).await else {
                return Err(RequestError::timed_out(self.call_timeout));
            };
            let retry = match &answered {
                Ok(answer) => answer.retry(),
                Err(error) => error.may_have_succeeded.then_some(None),
            };
            let Some(retry_after) = retry else {
                return answered;
            };
            let wait = retry_after.unwrap_or(RETRY_PAUSE * 2_u32.pow(retries));
            let is_busy = |answer: &ApiResponse| answer.status == StatusCode::TOO_MANY_REQUESTS;
            if answered.as_ref().is_ok_and(is_busy) {
                self.gate.hold(wait);
            }
            retries += 1;
            if retries > MAX_RETRIES || wait >= left() {
                return answered;
            }
            sleep(wait).await;
            if idempotency_key.is_some() && self.gate.wait_turn(left()).await.is_err() {
                return answered;
            }
        }
    }

    fn parse_record(
        &self,
        answer: &ApiResponse,
        doing: &str,
    ) -> Result<SandboxRecord, SandboxError> {
        let record: SandboxRecord =
            serde_json::from_slice(&answer.body).map_err(|_| self.not_the_api(doing))?;
        if !is_id(&record.sandbox_id) {
            return Err(self.not_the_api(doing));
        }
        Ok(record)
    }

    fn unreachable(&self, error: RequestError, doing: &str) -> SandboxError {
        let doing = format!("{doing}: failed to reach {}", self.address());
        error.into_error(SandboxErrorKind::Unavailable, &doing)
    }

    /// The error for a server that doesn't implement this API.
    fn not_the_api(&self, doing: &str) -> SandboxError {
        let message = format!(
            "{doing}: the server at {} does not implement E2B's API",
            self.address()
        );
        SandboxError::unavailable(message)
            .with_advice("Check the API's URL (E2B_API_URL, or E2B_DOMAIN).")
    }

    fn refused(&self, answer: &ApiResponse, doing: &str) -> SandboxError {
        let error = self.error(answer, SandboxErrorKind::Unavailable, doing);
        match answer.status.as_u16() {
            401 => error.with_advice(
                "The key was rejected: check E2B_API_KEY, and that it belongs to this address.",
            ),
            403 => error.with_advice("The key lacks permission: check its team's settings."),
            400 => SandboxError::invalid_input(error.to_string()),
            429 => error.with_advice(TOO_MANY),
            status if status >= 500 => {
                error.with_advice("The service has a problem: try again later.")
            }
            _ => error,
        }
    }

    fn error(&self, answer: &ApiResponse, kind: SandboxErrorKind, doing: &str) -> SandboxError {
        let status = answer.status.as_u16();
        let detail = match answer.message() {
            message if message.is_empty() => String::new(),
            message => format!(": {}", self.hide_secrets(message)),
        };
        SandboxError::new(kind, format!("{doing}: the API answered {status}{detail}"))
    }

    /// Shortens a message of the service, which may repeat secrets, and hides them.
    fn hide_secrets(&self, mut message: String) -> String {
        for secret in &self.secrets {
            message = message.replace(secret.expose(), "[hidden]");
        }
        message.chars().take(MAX_MESSAGE_CHARS).collect()
    }
}

/// Whether a text can be a sandbox's id, which becomes part of URLs.
pub(crate) fn is_id(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    !text.is_empty() && text.bytes().all(plain)
}

/// Requests access tokens, which are optional in the first version of the API.
fn secure(body: &Value) -> Value {
    let mut body = body.clone();
    if let Value::Object(body) = &mut body
        && body.contains_key("templateID")
    {
        body.insert("secure".to_owned(), Value::Bool(true));
    }
    body
}

fn gone(id: &str) -> SandboxError {
    SandboxError::gone(format!("the sandbox `{id}` no longer exists"))
}

async fn send(request: reqwest::RequestBuilder) -> Result<ApiResponse, RequestError> {
    let response = request.send().await?;
    Ok(ApiResponse {
        status: response.status(),
        headers: response.headers().clone(),
        body: http::read_body(response).await?,
    })
}

impl ApiResponse {
    fn message(&self) -> String {
        self.error_body().message
    }

    fn error_body(&self) -> ErrorBody {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn has_message(&self) -> bool {
        !self.message().is_empty()
    }

    /// Whether the service may lack the path; some have it for other methods only.
    fn may_lack_path(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        )
    }

    /// Returns whether to retry, and the delay that the service asks for.
    fn retry(&self) -> Option<Option<Duration>> {
        if self.status.is_success() {
            return None;
        }
        let should = self.headers.get("should-retry").map(HeaderValue::as_bytes);
        let again = match (should, self.status.as_u16()) {
            (Some(b"true"), _) => true,
            (Some(_), _) => false,
            (None, 429 | 502..=504) => true,
            // An earlier attempt whose response was lost.
            (None, 409) => self.error_body().error_code == "idempotency_in_progress",
            (None, _) => false,
        };
        again.then(|| retry_after(&self.headers))
    }
}

/// Parses `Retry-After`: seconds or a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(text).ok()?;
    // A date in the past means now.
    Some(
        date.duration_since(SystemTime::now())
            .unwrap_or(Duration::ZERO),
    )
}
