//! Client of envd, the daemon in each sandbox: processes and directories over Connect RPC, files over HTTP.

mod envelope;
mod messages;
mod stream;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use tokio::time::timeout;

pub(crate) use self::messages::*;
pub(crate) use self::stream::{EventStream, ProcessEvent, STREAM_TIMEOUT};
use crate::http::{self, RequestError, TlsCache};

/// The service that runs processes.
pub(crate) const PROCESSES: &str = "process.Process";
/// The service that lists and changes directories.
pub(crate) const FILES: &str = "filesystem.Filesystem";

/// The port of envd in every sandbox.
const PORT: &str = "49983";

/// Domains whose sandboxes share one host and are identified by headers.
const SHARED_HOSTS: [&str; 7] = [
    "e2b.app",
    "e2b.dev",
    "e2b.pro",
    "e2b-staging.dev",
    "e2b-tango.dev",
    "e2b-juliett.dev",
    "foxtrot-2.e2b.dev",
];

/// Time limit of a short call.
const CALL_TIMEOUT: Duration = Duration::from_secs(60);
/// Time limit of a health check.
const HEALTH_TIMEOUT: Duration = Duration::from_secs(3);
/// Part of the error message for a sandbox that is gone, but not for one that is starting.
const NOT_FOUND_TEXT: &str = "was not found";
/// Maximum characters of a sandbox's message in an error.
const MAX_MESSAGE_CHARS: usize = 1000;

/// Client of one sandbox's envd.
#[derive(Clone)]
pub(crate) struct Envd {
    http: Client,
    base: Url,
    headers: HeaderMap,
    token: Option<SecretText>,
    pub(crate) version: Version,
}

/// A failed health check.
#[derive(Debug)]
pub(crate) struct HealthError {
    pub(crate) reason: String,
    /// Whether the service confirmed that the sandbox is gone.
    pub(crate) is_certain: bool,
}

/// Omits the token.
impl fmt::Debug for Envd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envd")
            .field("base", &self.base.as_str())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Version of envd, which determines its features.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Version {
    /// First version that can close a command's stdin.
    pub(crate) const CLOSE_STDIN: Self = Self(0, 5, 2);
    /// First version that accepts a file as the request's body instead of a form.
    pub(crate) const RAW_UPLOADS: Self = Self(0, 5, 7);
    /// First version with a default user.
    const DEFAULT_USER: Self = Self(0, 4, 0);

    fn parse(text: &str) -> Self {
        let mut numbers = text
            .split(['.', '-', '+'])
            .map(|it| it.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self(next(), next(), next())
    }
}

/// A failed call.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// The sandbox no longer exists.
    Gone(String),
    /// The response was an error with this code.
    Refused { code: String, message: String },
    /// There was no complete, readable response.
    Request(RequestError),
}

impl From<RequestError> for Fault {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<reqwest::Error> for Fault {
    fn from(error: reqwest::Error) -> Self {
        Self::Request(error.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(reason) => f.write_str(reason),
            Self::Refused { message, .. } => f.write_str(message),
            Self::Request(error) => f.write_str(&error.message),
        }
    }
}

impl Fault {
    pub(crate) fn has_code(&self, expected: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == expected)
    }

    /// Whether no response came from the sandbox, so that the call may or may not have been executed.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Request(_)) || self.has_code("unavailable")
    }

    /// Converts it to a sandbox error; `doing` reads like "failed to read `x`".
    pub(crate) fn into_error(self, doing: &str) -> SandboxError {
        match self {
            Self::Gone(reason) => SandboxError::gone(format!("{doing}: {reason}")),
            Self::Request(error) => error.into_error(SandboxErrorKind::Io, doing),
            Self::Refused { code, message } => {
                let kind = match &*code {
                    "not_found" => SandboxErrorKind::NotFound,
                    "already_exists" => SandboxErrorKind::AlreadyExists,
                    "permission_denied" | "unauthenticated" => SandboxErrorKind::PermissionDenied,
                    "invalid_argument" => SandboxErrorKind::InvalidInput,
                    "unimplemented" => SandboxErrorKind::Unsupported,
                    "storage_full" => SandboxErrorKind::StorageFull,
                    _ => SandboxErrorKind::Io,
                };
                let error = SandboxError::new(kind, format!("{doing}: {message}"));
                if code == "unauthenticated" {
                    return error.with_advice("The sandbox's token was refused: open it again.");
                }
                error
            }
        }
    }
}

impl Envd {
    /// Builds the client for a sandbox.
    pub(crate) fn new(
        record: &SandboxRecord,
        sandbox_url: Option<&Url>,
        domain: &str,
        tls_cache: &TlsCache,
    ) -> Result<Self, SandboxError> {
        let domain = record
            .domain
            .as_deref()
            .filter(|it| !it.is_empty())
            .unwrap_or(domain);
        let base = match sandbox_url {
            Some(url) => url.clone(),
            None if SHARED_HOSTS.contains(&domain) => {
                http::parse_url("sandbox's domain", &format!("https://sandbox.{domain}"))?
            }
            None => {
                let host = format!("https://{PORT}-{}.{domain}", record.sandbox_id);
                http::parse_url("sandbox's domain", &host)?
            }
        };
        let version = Version::parse(&record.envd_version);
        let mut headers = HeaderMap::new();
        let unsendable = |_| {
            let message = "the API returned a sandbox id with characters that can't be sent";
            SandboxError::unavailable(message)
        };
        let id = HeaderValue::try_from(&record.sandbox_id).map_err(unsendable)?;
        headers.insert("e2b-sandbox-id", id);
        headers.insert("e2b-sandbox-port", HeaderValue::from_static(PORT));
        if let Some(token) = &record.envd_access_token {
            let mut token = HeaderValue::try_from(token.expose()).map_err(unsendable)?;
            token.set_sensitive(true);
            headers.insert("x-access-token", token);
        }
        if version < Version::DEFAULT_USER {
            // User `user` without a password.
            headers.insert("authorization", HeaderValue::from_static("Basic dXNlcjo="));
        }
        Ok(Self {
            http: http::client(&base, tls_cache)?,
            base,
            headers,
            token: record.envd_access_token.clone(),
            version,
        })
    }

    /// Calls a unary method.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        message: &impl Serialize,
    ) -> Result<T, Fault> {
        self.call_with_timeout(service, method, message, CALL_TIMEOUT)
            .await
    }

    /// Calls a unary method whose response has no content.
    pub(crate) async fn order(
        &self,
        service: &str,
        method: &str,
        message: &impl Serialize,
    ) -> Result<(), Fault> {
        let IgnoredAny = self.call(service, method, message).await?;
        Ok(())
    }

    /// Calls a unary method with a time limit.
    pub(crate) async fn call_with_timeout<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        message: &impl Serialize,
        limit: Duration,
    ) -> Result<T, Fault> {
        let body = encode(message)?;
        let request = self
            .rpc(service, method)
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let answered = in_time(limit, async {
            let response = request.send().await?;
            let status = response.status();
            Ok::<_, Fault>((status, http::read_body(response).await?))
        });
        let (status, body) = answered.await?;
        if !status.is_success() {
            return Err(self.fault(status, &body));
        }
        let invalid = |_| RequestError::new(format!("the response to {method} is invalid"));
        Ok(serde_json::from_slice(&body).map_err(invalid)?)
    }

    fn rpc(&self, service: &str, method: &str) -> RequestBuilder {
        self.http
            .post(http::join_path(&self.base, [service, method]))
            .headers(self.headers.clone())
            .header("connect-protocol-version", "1")
    }

    /// Builds a request for a file.
    pub(crate) fn file_request(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        let mut url = http::join_path(&self.base, ["files"]);
        url.query_pairs_mut().append_pair("path", path);
        if self.version < Version::DEFAULT_USER {
            url.query_pairs_mut().append_pair("username", "user");
        }
        self.http.request(method, url).headers(self.headers.clone())
    }

    /// Returns the response unless it is an error.
    pub(crate) async fn check_status(&self, response: Response) -> Result<Response, Fault> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = http::read_body(response).await.unwrap_or_default();
        Err(self.fault(status, &body))
    }

    /// Parses an error response.
    fn fault(&self, status: StatusCode, body: &Bytes) -> Fault {
        let error: RpcError = serde_json::from_slice(body).unwrap_or_default();
        if status == StatusCode::BAD_GATEWAY && error.message.contains(NOT_FOUND_TEXT) {
            return Fault::Gone(hide_token(self.token.as_ref(), &error.message));
        }
        let code = match error.code {
            code if code.is_empty() => plain_code(status).to_owned(),
            code => code,
        };
        let message = match error.message {
            message if message.is_empty() => format!("the sandbox answered {status}"),
            message => hide_token(self.token.as_ref(), &message),
        };
        Fault::Refused { code, message }
    }

    /// Checks whether envd responds.
    pub(crate) async fn check_health(&self) -> Result<(), HealthError> {
        let url = http::join_path(&self.base, ["health"]);
        let request = self.http.get(url).headers(self.headers.clone());
        let asking = timeout(HEALTH_TIMEOUT, async {
            let response = request.send().await?;
            let status = response.status();
            if status == StatusCode::BAD_GATEWAY {
                return Err(self.fault(status, &http::read_body(response).await?));
            }
            Ok(())
        });
        let (reason, is_certain) = match asking.await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(Fault::Gone(_))) => ("it was killed or its lifetime has ended".to_owned(), true),
            Ok(Err(Fault::Refused { .. })) => ("envd does not respond".to_owned(), false),
            Ok(Err(fault)) => (format!("it can't be reached: {fault}"), false),
            Err(_) => ("it does not respond".to_owned(), false),
        };
        Err(HealthError { reason, is_certain })
    }
}

/// Waits for a response, or a part of one.
pub(crate) async fn in_time<T, E>(
    limit: Duration,
    response: impl Future<Output = Result<T, E>>,
) -> Result<T, Fault>
where
    Fault: From<E>,
{
    match timeout(limit, response).await {
        Ok(response) => Ok(response?),
        Err(_) => Err(RequestError::timed_out(limit).into()),
    }
}

/// Shortens a message of a sandbox and hides its token.
fn hide_token(token: Option<&SecretText>, message: &str) -> String {
    let token = token.map(SecretText::expose).filter(|it| !it.is_empty());
    let message = match token {
        Some(token) => message.replace(token, "[hidden]"),
        None => message.to_owned(),
    };
    message.chars().take(MAX_MESSAGE_CHARS).collect()
}

pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(message)
        .map_err(|_| RequestError::new("failed to encode the request").into())
}

/// Maps the status of a plain HTTP error to a Connect code.
fn plain_code(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "invalid_argument",
        401 => "unauthenticated",
        403 => "permission_denied",
        404 => "not_found",
        409 => "already_exists",
        413 | 429 => "resource_exhausted",
        499 => "canceled",
        501 | 505 => "unimplemented",
        502 | 503 => "unavailable",
        504 => "deadline_exceeded",
        507 => "storage_full",
        _ => "internal",
    }
}
