//! The API that makes sandboxes and ends them.
//!
//! Every call may be made again: it leads to the same state, and the one that makes a sandbox has a key of
//! its own by which the service knows it. So it is, where the service is busy or its answer was lost: so
//! often, and not before the service says. What the API key is stays in one header; what the service
//! answers is told without it.

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

use crate::backend::ApiGeneration;
use crate::envd::Made;
use crate::gate::{Gate, Held};
use crate::http::{self, Broken};
use crate::tls::Trust;

/// For one call, with all that is tried again.
const DEADLINE: Duration = Duration::from_secs(60);
/// How often a call is tried again.
const RETRIES: u32 = 4;
/// Before it is tried again where the service doesn't say.
const PAUSE: Duration = Duration::from_millis(200);
/// Characters of the service's own words that an error repeats.
const LONGEST_WORDS: usize = 300;
/// Bytes of what can be a secret: a server of one's own takes `x` for a key, which is in every other word.
const SHORTEST_SECRET: usize = 4;
const TOO_MANY: &str =
    "Too many requests or sandboxes: wait, end some, or let fewer be made at once.";

/// The service, and the key for it.
pub(crate) struct Api {
    http: Client,
    base: Url,
    header: HeaderValue,
    /// What the service is told and nobody else: the key, and what sandboxes have in their environment.
    secrets: Vec<SecretText>,
    generation: ApiGeneration,
    /// Whether the newer paths turned out not to be there.
    only_first: AtomicBool,
    pub(crate) gate: Gate,
}

/// It holds the key.
impl fmt::Debug for Api {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api")
            .field("base", &self.base.as_str())
            .finish_non_exhaustive()
    }
}

/// What is asked for in a new sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    pub(crate) body: Value,
    pub(crate) template: String,
    /// The same for every try, so that none makes a second sandbox.
    pub(crate) idempotency_key: String,
}

/// An answer of the service.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Refusal {
    message: String,
    error_code: String,
}

/// When a call may be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    AtOnce,
    /// One after the other, with all others that make a sandbox.
    Gated,
}

impl Api {
    pub(crate) fn new(
        base: Url,
        key: &SecretText,
        environment: impl IntoIterator<Item = SecretText>,
        generation: ApiGeneration,
        gate: Gate,
        trust: &Trust,
    ) -> Result<Self, SandboxError> {
        let mut header = HeaderValue::try_from(key.expose()).map_err(|_| {
            let message = "the API key holds characters that can't be sent";
            SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Check that the key is one line of plain text.")
        })?;
        header.set_sensitive(true);
        let mut secrets: Vec<SecretText> = environment.into_iter().chain([key.clone()]).collect();
        secrets.retain(|secret| secret.expose().len() >= SHORTEST_SECRET);
        // One may be part of another.
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.expose().len()));
        Ok(Self {
            http: http::client(&base, trust)?,
            base,
            header,
            secrets,
            generation,
            only_first: AtomicBool::new(false),
            gate,
        })
    }

    pub(crate) fn address(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Makes a sandbox.
    pub(crate) async fn create(&self, wanted: &Wanted) -> Result<Made, SandboxError> {
        let doing = "failed to make a sandbox";
        let _place = self.gate.enter(DEADLINE).await.map_err(|held| {
            let Held(left) = held;
            let seconds = left.as_secs();
            let message = format!("{doing}: the service asks to wait for {seconds} s more");
            SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(TOO_MANY)
        })?;
        let path = ["sandboxes"];
        let answer = self
            .in_some_generation(Pace::Gated, &path, &wanted.body, |request| {
                request.header("idempotency-key", &wanted.idempotency_key)
            })
            .await
            .map_err(|broken| self.unreached(broken, doing))?;
        match answer.status {
            StatusCode::CREATED | StatusCode::OK => self.made(&answer, doing),
            StatusCode::NOT_FOUND if !answer.says_something() => Err(self.strange(doing)),
            StatusCode::NOT_FOUND => Err(self
                .error(&answer, SandboxErrorKind::Unavailable, doing)
                .with_advice(format!(
                    "Check the template's name (`{}`), and that the key's team has it.",
                    wanted.template
                ))),
            _ => Err(self.refused(&answer, doing)),
        }
    }

    /// Finds a sandbox again, waking it where it is paused, and lets it live for this long.
    pub(crate) async fn connect(&self, id: &str, lifetime: Duration) -> Result<Made, SandboxError> {
        let doing = "failed to connect to the sandbox";
        let body = json!({ "timeout": lifetime.as_secs() });
        let path = ["sandboxes", id, "connect"];
        let answer = self
            .in_some_generation(Pace::AtOnce, &path, &body, |request| request)
            .await
            .map_err(|broken| self.unreached(broken, doing))?;
        match answer.status {
            StatusCode::CREATED | StatusCode::OK => self.made(&answer, doing),
            StatusCode::NOT_FOUND => Err(gone(id)),
            _ => Err(self.refused(&answer, doing)),
        }
    }

    /// Lets a sandbox live for this long from now on.
    pub(crate) async fn prolong(&self, id: &str, lifetime: Duration) -> Result<(), SandboxError> {
        let body = json!({ "timeout": lifetime.as_secs() });
        let doing = "failed to prolong the sandbox's life";
        self.about(
            Method::POST,
            &["sandboxes", id, "timeout"],
            Some(&body),
            id,
            doing,
        )
        .await
        .map(|_| ())
    }

    /// Pauses a sandbox; one that is paused already is fine.
    pub(crate) async fn pause(&self, id: &str) -> Result<(), SandboxError> {
        let doing = "failed to pause the sandbox";
        self.about(
            Method::POST,
            &["sandboxes", id, "pause"],
            Some(&json!({})),
            id,
            doing,
        )
        .await
        .map(|_| ())
    }

    /// Ends a sandbox; one that is gone already is fine.
    pub(crate) async fn kill(&self, id: &str) -> Result<(), SandboxError> {
        let doing = "failed to end the sandbox";
        match self
            .about(Method::DELETE, &["sandboxes", id], None, id, doing)
            .await
        {
            Err(error) if error.kind() == SandboxErrorKind::Gone => Ok(()),
            other => other.map(|_| ()),
        }
    }

    async fn about(
        &self,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        id: &str,
        doing: &str,
    ) -> Result<Answer, SandboxError> {
        let answer = self
            .call(Pace::AtOnce, method, path, body, |request| request)
            .await
            .map_err(|broken| self.unreached(broken, doing))?;
        match answer.status {
            status if status.is_success() => Ok(answer),
            // It is paused already.
            StatusCode::CONFLICT if path.last() == Some(&"pause") => Ok(answer),
            StatusCode::NOT_FOUND => Err(gone(id)),
            _ => Err(self.refused(&answer, doing)),
        }
    }

    /// Calls the newer path, and the older one where the service has no newer one.
    async fn in_some_generation(
        &self,
        pace: Pace,
        path: &[&str],
        body: &Value,
        adapt: impl Fn(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<Answer, Broken> {
        let second: Vec<&str> = ["v2"].iter().chain(path).copied().collect();
        let tries_second = match self.generation {
            ApiGeneration::V1 => false,
            ApiGeneration::V2 => true,
            ApiGeneration::Newest => !self.only_first.load(Ordering::Relaxed),
        };
        let older = secure(body);
        if !tries_second {
            return self
                .call(pace, Method::POST, path, Some(&older), adapt)
                .await;
        }
        let answer = self
            .call(pace, Method::POST, &second, Some(body), &adapt)
            .await?;
        if self.generation != ApiGeneration::Newest || !answer.is_of_no_path() {
            return Ok(answer);
        }
        // The sandbox or the template may be what isn't there: then the older path says so, too.
        let older = self
            .call(pace, Method::POST, path, Some(&older), adapt)
            .await?;
        if older.status.is_success() {
            self.only_first.store(true, Ordering::Relaxed);
        }
        // Where the older path is none either, this is what the newer one said of itself.
        Ok(if older.is_of_no_path() && !older.says_something() {
            answer
        } else {
            older
        })
    }

    async fn call(
        &self,
        pace: Pace,
        method: Method,
        path: &[&str],
        body: Option<&Value>,
        adapt: impl Fn(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Result<Answer, Broken> {
        let url = http::below(&self.base, path.iter().copied());
        let deadline = Instant::now() + DEADLINE;
        let left = || deadline.saturating_duration_since(Instant::now());
        let mut tries = 0;
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
            let Ok(answered) = timeout(left(), answer(adapt(request))).await else {
                return Err(Broken::silent(DEADLINE));
            };
            let asked = match &answered {
                Ok(answer) => answer.try_again(),
                Err(broken) => broken.is_cut.then_some(None),
            };
            let Some(asked) = asked else {
                return answered;
            };
            let wait = asked.unwrap_or(PAUSE * 2_u32.pow(tries));
            let is_busy = |answer: &Answer| answer.status == StatusCode::TOO_MANY_REQUESTS;
            if answered.as_ref().is_ok_and(is_busy) {
                self.gate.hold(wait);
            }
            tries += 1;
            if tries > RETRIES || wait >= left() {
                return answered;
            }
            sleep(wait).await;
            if pace == Pace::Gated && self.gate.turn(left()).await.is_err() {
                return answered;
            }
        }
    }

    fn made(&self, answer: &Answer, doing: &str) -> Result<Made, SandboxError> {
        let made: Made = serde_json::from_slice(&answer.body).map_err(|_| self.strange(doing))?;
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
        // It becomes part of addresses.
        if made.sandbox_id.is_empty() || !made.sandbox_id.bytes().all(plain) {
            return Err(self.strange(doing));
        }
        Ok(made)
    }

    fn unreached(&self, broken: Broken, doing: &str) -> SandboxError {
        let doing = format!("{doing}: failed to reach {}", self.address());
        broken.into_error(SandboxErrorKind::Unavailable, &doing)
    }

    /// Something answers at this address, but it isn't this API.
    fn strange(&self, doing: &str) -> SandboxError {
        let message = format!(
            "{doing}: what answers at {} does not speak E2B's API",
            self.address()
        );
        SandboxError::new(SandboxErrorKind::Unavailable, message)
            .with_advice("Check the API's URL (E2B_API_URL, or E2B_DOMAIN).")
    }

    fn refused(&self, answer: &Answer, doing: &str) -> SandboxError {
        let error = self.error(answer, SandboxErrorKind::Unavailable, doing);
        match answer.status.as_u16() {
            401 => error.with_advice(
                "The key was not accepted: check E2B_API_KEY, and that it belongs to this address.",
            ),
            403 => error.with_advice("The key may not do this: check what its team is allowed."),
            400 => SandboxError::new(SandboxErrorKind::InvalidInput, error.to_string()),
            429 => error.with_advice(TOO_MANY),
            status if status >= 500 => error.with_advice("The service is in trouble: try again."),
            _ => error,
        }
    }

    fn error(&self, answer: &Answer, kind: SandboxErrorKind, doing: &str) -> SandboxError {
        let status = answer.status.as_u16();
        let words = match answer.words() {
            words if words.is_empty() => String::new(),
            words => format!(": {}", self.without_secrets(words)),
        };
        SandboxError::new(kind, format!("{doing}: the API answered {status}{words}"))
    }

    /// Words of the service, which may repeat what it was told.
    fn without_secrets(&self, mut words: String) -> String {
        for secret in &self.secrets {
            words = words.replace(secret.expose(), "[hidden]");
        }
        words.chars().take(LONGEST_WORDS).collect()
    }
}

/// The first generation had to be asked for tokens.
fn secure(body: &Value) -> Value {
    let mut body = body.clone();
    if let Value::Object(body) = &mut body
        && body.contains_key("templateID")
    {
        body.insert("secure".to_owned(), Value::Bool(true));
    }
    body
}

pub(crate) fn gone(id: &str) -> SandboxError {
    SandboxError::gone(format!("the sandbox `{id}` no longer exists"))
}

async fn answer(request: reqwest::RequestBuilder) -> Result<Answer, Broken> {
    let response = request.send().await?;
    Ok(Answer {
        status: response.status(),
        headers: response.headers().clone(),
        body: http::whole(response).await?,
    })
}

impl Answer {
    /// What the service says about it.
    fn words(&self) -> String {
        self.refusal().message
    }

    fn refusal(&self) -> Refusal {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }

    fn says_something(&self) -> bool {
        !self.words().is_empty()
    }

    /// Whether the service may not know the path. Some have it for other methods.
    fn is_of_no_path(&self) -> bool {
        matches!(
            self.status,
            StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED
        )
    }

    /// Whether the same request may do better later, and how much later.
    fn try_again(&self) -> Option<Option<Duration>> {
        if self.status.is_success() {
            return None;
        }
        let should = self.headers.get("should-retry").map(HeaderValue::as_bytes);
        let again = match (should, self.status.as_u16()) {
            (Some(b"true"), _) => true,
            (Some(_), _) => false,
            (None, 429 | 502..=504) => true,
            // An earlier try whose answer was lost.
            (None, 409) => self.refusal().error_code == "idempotency_in_progress",
            (None, _) => false,
        };
        again.then(|| retry_after(&self.headers))
    }
}

/// How long the service asks to wait, in seconds or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let asked = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = asked.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let date = httpdate::parse_http_date(asked).ok()?;
    // A date that has passed says: now.
    Some(
        date.duration_since(SystemTime::now())
            .unwrap_or(Duration::ZERO),
    )
}
