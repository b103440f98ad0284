//! HTTP as both planes use it: one client per address, and what a connection that fails means.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use reqwest::{Client, Response, Url, redirect};
use tokio::time::timeout;

use crate::tls::{self, Trust};

/// For a connection, TLS included.
const CONNECT: Duration = Duration::from_secs(10);

/// Between two pieces of an answer that is read whole.
const SILENCE: Duration = Duration::from_secs(30);

/// What an answer that is read whole may have in bytes: a listing of some hundred thousand files.
const LONGEST_ANSWER: usize = 256 << 20;

/// What requests to an address go through.
pub(crate) fn client(url: &Url, trust: &Trust) -> Result<Client, SandboxError> {
    let tls = if url.scheme() == "https" {
        trust.configuration()?
    } else {
        tls::none()?
    };
    Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(concat!("cantle/", env!("CARGO_PKG_VERSION")))
        .redirect(redirect::Policy::none())
        .no_proxy()
        .http1_only()
        .tcp_nodelay(true)
        .connect_timeout(CONNECT)
        .build()
        .map_err(|error| {
            let message = "no HTTP client can be made";
            SandboxError::new(SandboxErrorKind::Unavailable, message).with_source(error)
        })
}

/// Reads an address that somebody wrote; `what` names it in errors.
pub(crate) fn address(what: &str, text: &str) -> Result<Url, SandboxError> {
    let invalid = |problem: &str| {
        // What is no address may be a key in the wrong place, so it is not repeated.
        SandboxError::new(
            SandboxErrorKind::Unavailable,
            format!("the {what} {problem}"),
        )
        .with_advice("Write it like https://api.example.org or http://127.0.0.1:3010.")
    };
    let mut url = Url::parse(text.trim()).map_err(|_| invalid("is not a URL"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(invalid("must begin with http:// or https://"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("must not hold a name or a password"));
    }
    url.set_fragment(None);
    url.set_query(None);
    Ok(url)
}

/// An address with these segments below it.
pub(crate) fn below<'s>(base: &Url, segments: impl IntoIterator<Item = &'s str>) -> Url {
    let mut url = base.clone();
    if let Ok(mut path) = url.path_segments_mut() {
        path.pop_if_empty().extend(segments);
    }
    url
}

/// Reads a whole answer, within bounds.
pub(crate) async fn whole(mut response: Response) -> Result<Bytes, Broken> {
    let mut body = BytesMut::new();
    loop {
        match timeout(SILENCE, response.chunk()).await {
            Err(_) => return Err(Broken::silent(SILENCE)),
            Ok(Err(error)) => return Err(Broken::from(error)),
            Ok(Ok(None)) => return Ok(body.freeze()),
            Ok(Ok(Some(piece))) if body.len() + piece.len() > LONGEST_ANSWER => {
                let bytes = piece.len();
                return Err(Broken::new(format!(
                    "the answer is too long (beyond {LONGEST_ANSWER} bytes by {bytes})"
                )));
            }
            Ok(Ok(Some(piece))) => body.extend_from_slice(&piece),
        }
    }
}

/// A request without an answer, or an answer without an end.
#[derive(Debug)]
pub(crate) struct Broken {
    /// What happened, for people, without the address.
    pub(crate) why: String,
    pub(crate) advice: Option<&'static str>,
    /// Whether the request may have been answered, and the answer was lost on its way.
    pub(crate) is_cut: bool,
    source: Option<reqwest::Error>,
}

impl Broken {
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            advice: None,
            is_cut: false,
            source: None,
        }
    }

    pub(crate) fn silent(after: Duration) -> Self {
        Self::new(format!("nothing came for {} s", after.as_secs()))
    }

    /// As an error of a sandbox.
    pub(crate) fn into_error(self, kind: SandboxErrorKind, doing: &str) -> SandboxError {
        let mut error = SandboxError::new(kind, format!("{doing}: {}", self.why));
        if let Some(advice) = self.advice {
            error = error.with_advice(advice);
        }
        match self.source {
            Some(source) => error.with_source(source),
            None => error,
        }
    }
}

impl From<reqwest::Error> for Broken {
    fn from(error: reqwest::Error) -> Self {
        // The error's own text has the address, and that may have a query.
        let error = error.without_url();
        let cause = chain(&error).find_map(|error| error.downcast_ref::<io::Error>());
        let (why, advice) = if error.is_timeout() {
            (
                "no connection within the time allowed".to_owned(),
                Some("Check the address, and that no firewall is in the way."),
            )
        } else if error.is_dns() {
            (
                "its host has no address".to_owned(),
                Some("Check the host's name, and the network."),
            )
        } else if let Some(tls) = chain(&error).find_map(tls::cause) {
            let why = format!("no secure connection: {tls}");
            (why, Some(tls::advice(tls)))
        } else if cause.is_some_and(|cause| cause.kind() == io::ErrorKind::ConnectionRefused) {
            (
                "connection refused".to_owned(),
                Some("Check that the server is running, and the port."),
            )
        } else if error.is_connect() {
            (root(&error), Some("Check the address, and the network."))
        } else {
            (format!("the connection broke: {}", root(&error)), None)
        };
        Self {
            why,
            advice,
            is_cut: !error.is_connect() && !error.is_timeout() && !error.is_builder(),
            source: Some(error),
        }
    }
}

fn chain<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// The innermost cause: what is around it only says where it came through.
fn root(error: &(dyn StdError + 'static)) -> String {
    chain(error).last().unwrap_or(error).to_string()
}
