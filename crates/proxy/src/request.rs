//! Parsing of requests, and the headers to forward.

use cantle_core::policy::HostName;
use http::header::{
    CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::uri::{Authority, Scheme};
use http::{Method, Request, Response, StatusCode, Uri, Version};

use super::denials::Denied;

const HTTP: u16 = 80;

/// The host and port that a client requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: HostName,
    pub(super) port: u16,
}

/// The reason why a request was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rejection {
    /// Not a request for a proxy.
    Malformed(&'static str),
    /// Not allowed by the policy.
    Denied(Denied),
    /// The host could not be reached.
    Unreachable(String),
}

impl Rejection {
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Malformed(_) => StatusCode::BAD_REQUEST,
            Self::Denied(_) => StatusCode::FORBIDDEN,
            Self::Unreachable(_) => StatusCode::BAD_GATEWAY,
        }
    }
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Malformed(reason) => f.write_str(reason),
            Self::Denied(denied) => denied.fmt(f),
            Self::Unreachable(reason) => f.write_str(reason),
        }
    }
}

/// Returns the target of a request.
pub(super) fn target<B>(request: &Request<B>) -> Result<Target, Rejection> {
    let malformed = |reason| Err(Rejection::Malformed(reason));
    let uri = request.uri();
    let Some(authority) = uri.authority() else {
        return malformed("this is an HTTP proxy: it takes CONNECT and absolute `http://` URLs");
    };
    let port = if request.method() == Method::CONNECT {
        authority.port_u16()
    } else if uri.scheme() != Some(&Scheme::HTTP) {
        return malformed("this proxy takes `http://` URLs; use CONNECT for everything else");
    } else {
        port(authority)
    };
    let Some(port) = port else {
        return malformed("the port is missing or is no port");
    };
    let denied = |reason: &str| {
        Err(Rejection::Denied(Denied::new(
            authority.host(),
            port,
            reason,
        )))
    };
    if authority.as_str().contains('@') {
        return denied("a host comes without a user name");
    }
    if request.method() != Method::CONNECT && !host_header_agrees(request.headers(), authority) {
        return malformed("the Host header does not agree with the URL");
    }
    match authority.host().parse::<HostName>() {
        Ok(host) => Ok(Target { host, port }),
        Err(error) => denied(error.advice()),
    }
}

/// Returns the port of an `http://` URL.
fn port(authority: &Authority) -> Option<u16> {
    let text = authority.as_str();
    let place = text.rsplit_once('@').map_or(text, |(_, place)| place);
    match place.strip_prefix(authority.host()) {
        Some("") => Some(HTTP),
        _ => authority.port_u16(),
    }
}

/// Whether the Host header names the checked host: a server behind a shared address selects the site by
/// it.
fn host_header_agrees(headers: &HeaderMap, authority: &Authority) -> bool {
    let mut values = headers.get_all(HOST).iter();
    let Some(value) = values.next() else {
        return true;
    };
    let named = value.to_str().ok().and_then(|text| text.parse().ok());
    let agrees = named.is_some_and(|named: Authority| {
        !named.as_str().contains('@')
            && named.host().eq_ignore_ascii_case(authority.host())
            && port(&named) == port(authority)
    });
    agrees && values.next().is_none()
}

/// Rewrites a request for the server: in origin form, for this connection alone.
pub(super) fn forwarded<B>(request: Request<B>, target: &Target) -> Option<Request<B>> {
    let (mut parts, body) = request.into_parts();
    clean(&mut parts.headers);
    // hyper has already sent "100 Continue" to the client.
    parts.headers.remove(EXPECT);
    let host = match target.port {
        HTTP => target.host.to_string(),
        port => format!("{}:{port}", target.host),
    };
    parts
        .headers
        .insert(HOST, HeaderValue::try_from(host).ok()?);
    parts
        .headers
        .insert(CONNECTION, HeaderValue::from_static("close"));
    let path = parts.uri.path_and_query().cloned()?;
    parts.uri = Uri::from(path);
    parts.version = Version::HTTP_11;
    Some(Request::from_parts(parts, body))
}

/// Rewrites a response for the client: the last one of its connection.
pub(super) fn returned<B>(response: Response<B>) -> Response<B> {
    let (mut parts, body) = response.into_parts();
    clean(&mut parts.headers);
    parts
        .headers
        .insert(CONNECTION, HeaderValue::from_static("close"));
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, body)
}

/// Removes hop-by-hop headers (RFC 9110, 7.6.1).
fn clean(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    // Transfer-Encoding takes precedence; a contradictory length would mislead the next reader.
    if headers.contains_key(TRANSFER_ENCODING) {
        headers.remove(CONTENT_LENGTH);
    }
    let own = [
        CONNECTION,
        PROXY_AUTHENTICATE,
        PROXY_AUTHORIZATION,
        TE,
        TRAILER,
        TRANSFER_ENCODING,
        UPGRADE,
        HeaderName::from_static("keep-alive"),
        HeaderName::from_static("proxy-connection"),
    ];
    for name in named.into_iter().chain(own) {
        // Naming these in Connection would change how the message is read or routed.

        if name != CONTENT_LENGTH && name != HOST {
            headers.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
