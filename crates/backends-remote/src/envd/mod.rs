//! What runs in a sandbox and does what is asked there: processes and directories over Connect RPC,
//! files over plain HTTP.

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
use serde::de::DeserializeOwned;
use tokio::time::timeout;

pub(crate) use self::messages::*;
pub(crate) use self::stream::{Ended, EventStream, Happened, SILENCE};
use crate::http::{self, Broken};
use crate::tls::Trust;

/// Where it listens in every sandbox.
const PORT: &str = "49983";

/// Domains whose sandboxes share one host, which tells them apart by headers.
const SHARED_HOSTS: [&str; 7] = [
    "e2b.app",
    "e2b.dev",
    "e2b.pro",
    "e2b-staging.dev",
    "e2b-tango.dev",
    "e2b-juliett.dev",
    "foxtrot-2.e2b.dev",
];

/// For the answer to a call that does something short.
const UNARY: Duration = Duration::from_secs(60);
/// For the answer to whether it still lives.
const HEALTH: Duration = Duration::from_secs(3);
/// What is said where a sandbox is no more, and not of one that doesn't answer yet.
const NO_SANDBOX: &str = "was not found";
/// Characters of the sandbox's own words that an error repeats.
const LONGEST_WORDS: usize = 1000;

/// A way into one sandbox.
#[derive(Clone)]
pub(crate) struct Envd {
    http: Client,
    base: Url,
    headers: HeaderMap,
    token: Option<SecretText>,
    pub(crate) version: Version,
}

/// Why a sandbox seems not to be there.
#[derive(Debug)]
pub(crate) struct Absent {
    pub(crate) why: String,
    /// Whether it was said, and not only found to be silent.
    pub(crate) is_certain: bool,
}

/// It holds a token.
impl fmt::Debug for Envd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envd")
            .field("base", &self.base.as_str())
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// A version that switches features on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(pub(crate) u32, pub(crate) u32, pub(crate) u32);

impl Version {
    /// The input of a command can be closed.
    const CLOSES_INPUT: Self = Self(0, 5, 2);
    /// Files are taken as they are, not as part of a form.
    pub(crate) const TAKES_BYTES: Self = Self(0, 5, 7);
    /// The user is the service's choice.
    const CHOOSES_USER: Self = Self(0, 4, 0);

    fn parse(text: &str) -> Self {
        let mut numbers = text
            .split(['.', '-', '+'])
            .map(|it| it.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Self(next(), next(), next())
    }
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The sandbox is not there any more.
    Gone(String),
    /// The call was answered with an error of this code.
    Refused { code: String, message: String },
    /// There was no answer, or none to understand.
    Broken(Broken),
}

impl From<Broken> for Fault {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

impl From<reqwest::Error> for Fault {
    fn from(error: reqwest::Error) -> Self {
        Self::Broken(error.into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(why) => f.write_str(why),
            Self::Refused { message, .. } => f.write_str(message),
            Self::Broken(broken) => f.write_str(&broken.why),
        }
    }
}

impl Fault {
    /// The same, for somebody else.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Gone(why) => Self::Gone(why.clone()),
            Self::Refused { code, message } => Self::Refused {
                code: code.clone(),
                message: message.clone(),
            },
            Self::Broken(broken) => Self::Broken(Broken::new(broken.why.clone())),
        }
    }

    pub(crate) fn is(&self, wanted: &str) -> bool {
        matches!(self, Self::Refused { code, .. } if code == wanted)
    }

    /// Whether nothing in the sandbox has answered, which says nothing of the call.
    pub(crate) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Broken(_)) || self.is("unavailable")
    }

    /// As an error of a sandbox; `doing` reads like "failed to read `x`".
    pub(crate) fn into_error(self, doing: &str) -> SandboxError {
        match self {
            Self::Gone(why) => SandboxError::gone(format!("{doing}: {why}")),
            Self::Broken(broken) => broken.into_error(SandboxErrorKind::Io, doing),
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
    /// A way into the sandbox that was `made`.
    pub(crate) fn new(
        made: &Made,
        sandbox_url: Option<&Url>,
        domain: &str,
        trust: &Trust,
    ) -> Result<Self, SandboxError> {
        let domain = made
            .domain
            .as_deref()
            .filter(|it| !it.is_empty())
            .unwrap_or(domain);
        let base = match sandbox_url {
            Some(url) => url.clone(),
            None if SHARED_HOSTS.contains(&domain) => {
                http::address("sandbox's domain", &format!("https://sandbox.{domain}"))?
            }
            None => {
                let host = format!("https://{PORT}-{}.{domain}", made.sandbox_id);
                http::address("sandbox's domain", &host)?
            }
        };
        let version = Version::parse(&made.envd_version);
        let mut headers = HeaderMap::new();
        let unsendable = |_| {
            let message = "the API named a sandbox in characters that can't be sent";
            SandboxError::new(SandboxErrorKind::Unavailable, message)
        };
        let id = HeaderValue::try_from(&made.sandbox_id).map_err(unsendable)?;
        headers.insert("e2b-sandbox-id", id);
        headers.insert("e2b-sandbox-port", HeaderValue::from_static(PORT));
        if let Some(token) = &made.envd_access_token {
            let mut token = HeaderValue::try_from(token.expose()).map_err(unsendable)?;
            token.set_sensitive(true);
            headers.insert("x-access-token", token);
        }
        if version < Version::CHOOSES_USER {
            // The name `user`, without a password.
            headers.insert("authorization", HeaderValue::from_static("Basic dXNlcjo="));
        }
        Ok(Self {
            http: http::client(&base, trust)?,
            base,
            headers,
            token: made.envd_access_token.clone(),
            version,
        })
    }

    /// Calls a method with one answer.
    pub(crate) async fn call<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        message: &impl Serialize,
    ) -> Result<T, Fault> {
        self.call_for(service, method, message, UNARY).await
    }

    /// The same for one that may take longer.
    pub(crate) async fn call_for<T: DeserializeOwned>(
        &self,
        service: &str,
        method: &str,
        message: &impl Serialize,
        deadline: Duration,
    ) -> Result<T, Fault> {
        let body = encode(message)?;
        let request = self
            .rpc(service, method)
            .header(CONTENT_TYPE, "application/json")
            .body(body);
        let answered = timeout(deadline, async {
            let response = request.send().await?;
            let status = response.status();
            Ok::<_, Fault>((status, http::whole(response).await?))
        });
        let (status, body) = match answered.await {
            Ok(answered) => answered?,
            Err(_) => return Err(Broken::silent(deadline).into()),
        };
        if !status.is_success() {
            return Err(self.fault(status, &body).await);
        }
        let strange = |_| Broken::new(format!("the answer to {method} can't be understood"));
        Ok(serde_json::from_slice(&body).map_err(strange)?)
    }

    fn rpc(&self, service: &str, method: &str) -> RequestBuilder {
        self.http
            .post(http::below(&self.base, [service, method]))
            .headers(self.headers.clone())
            .header("connect-protocol-version", "1")
    }

    /// Whether a command's input can be ended.
    pub(crate) fn closes_input(&self) -> bool {
        self.version >= Version::CLOSES_INPUT
    }

    /// A request about a file.
    pub(crate) fn files(&self, method: reqwest::Method, path: &str) -> RequestBuilder {
        let mut url = http::below(&self.base, ["files"]);
        url.query_pairs_mut().append_pair("path", path);
        if self.version < Version::CHOOSES_USER {
            url.query_pairs_mut().append_pair("username", "user");
        }
        self.http.request(method, url).headers(self.headers.clone())
    }

    /// A response that is none of an error.
    pub(crate) async fn accepted(&self, response: Response) -> Result<Response, Fault> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = http::whole(response).await.unwrap_or_default();
        Err(self.fault(status, &body).await)
    }

    /// What an answer with an error means.
    async fn fault(&self, status: StatusCode, body: &Bytes) -> Fault {
        let said: RpcError = serde_json::from_slice(body).unwrap_or_default();
        if status == StatusCode::BAD_GATEWAY && said.message.contains(NO_SANDBOX) {
            return Fault::Gone(hiding(self.token.as_ref(), &said.message));
        }
        let code = match said.code {
            code if code.is_empty() => plain_code(status).to_owned(),
            code => code,
        };
        let message = match said.message {
            message if message.is_empty() => format!("the sandbox answered {status}"),
            message => hiding(self.token.as_ref(), &message),
        };
        Fault::Refused { code, message }
    }

    /// Whether the sandbox is there.
    pub(crate) async fn check_health(&self) -> Result<(), Absent> {
        let url = http::below(&self.base, ["health"]);
        let request = self.http.get(url).headers(self.headers.clone());
        let asking = timeout(HEALTH, async {
            let response = request.send().await?;
            match response.status() {
                StatusCode::BAD_GATEWAY => http::whole(response).await.map(Some),
                _ => Ok(None),
            }
        });
        let why = match asking.await {
            Ok(Ok(None)) => return Ok(()),
            Ok(Ok(Some(body))) => {
                let said: RpcError = serde_json::from_slice(&body).unwrap_or_default();
                if said.message.contains(NO_SANDBOX) {
                    let why = "it was killed or has reached the end of its life".to_owned();
                    let is_certain = true;
                    return Err(Absent { why, is_certain });
                }
                "nothing answers in it".to_owned()
            }
            Ok(Err(broken)) => format!("it can't be reached: {}", broken.why),
            Err(_) => "it doesn't answer".to_owned(),
        };
        let is_certain = false;
        Err(Absent { why, is_certain })
    }
}

/// Words of a sandbox, which was told its token and may repeat it.
fn hiding(token: Option<&SecretText>, words: &str) -> String {
    let token = token.map(SecretText::expose).filter(|it| !it.is_empty());
    let words = match token {
        Some(token) => words.replace(token, "[hidden]"),
        None => words.to_owned(),
    };
    words.chars().take(LONGEST_WORDS).collect()
}

pub(crate) fn encode(message: &impl Serialize) -> Result<Vec<u8>, Fault> {
    serde_json::to_vec(message)
        .map_err(|_| Broken::new("the request can't be written as JSON").into())
}

/// The word for an error of plain HTTP.
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
