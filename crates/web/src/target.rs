//! The hosts and addresses that a request may reach.
//!
//! A URL passes three checks: its form, its host against the lists, and every address of its host. The connection
//! is made to the addresses that passed, so a second answer of the resolver (DNS rebinding) has no effect.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::network::{is_own, is_public, may_be_private_host};
use cantle_core::policy::{HostName, HostPattern};
use url::{Host, Url};

use crate::error::{WebError, WebErrorKind};

/// Maximum length of a URL in bytes.
pub(crate) const MAX_URL_BYTES: usize = 8 << 10;
/// Maximum number of addresses of a host that are tried.
const MAX_ADDRESSES: usize = 8;

/// Resolves host names.
#[async_trait]
pub(crate) trait Resolver: fmt::Debug + Send + Sync {
    /// Returns all addresses of `host`, in the order in which to try them.
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>>;
}

/// The system's resolver (`getaddrinfo`).
#[derive(Debug)]
struct SystemResolver;

#[async_trait]
impl Resolver for SystemResolver {
    async fn resolve(&self, host: &HostName) -> io::Result<Vec<IpAddr>> {
        let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
        Ok(found.map(|address| address.ip()).collect())
    }
}

/// The rules for hosts and addresses.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    /// The allowed hosts; `None` allows all of the public internet.
    pub(crate) allow: Option<Vec<HostPattern>>,
    /// Hosts that are refused, on every port.
    pub(crate) deny: Vec<HostPattern>,
    /// Nothing is reached.
    pub(crate) offline: bool,
    /// Resolves names.
    pub(crate) resolver: Arc<dyn Resolver>,
    /// Addresses that are allowed although they are not public; for tests with local servers.
    pub(crate) exempt: Vec<SocketAddr>,
}

impl Default for Reach {
    fn default() -> Self {
        Self {
            allow: None,
            deny: Vec::new(),
            offline: false,
            resolver: Arc::new(SystemResolver),
            exempt: Vec::new(),
        }
    }
}

impl Reach {
    /// Returns the checked addresses of a URL's host.
    pub(crate) async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, WebError> {
        if self.offline {
            return Err(refused("nothing is fetched in a replay".to_owned()));
        }
        let port = url.port_or_known_default().unwrap_or(80);
        let mut is_private = false;
        let found = match url.host() {
            Some(Host::Domain(name)) => {
                let name: HostName = name.parse().map_err(|error| {
                    refused(format!("`{name}` is not a public host")).with_source(error)
                })?;
                is_private = self.check_name(&name, port)?;
                self.resolver.resolve(&name).await.map_err(|error| {
                    let message = format!("the host `{name}` has no address: {error}");
                    let advice = "Check the host name in the URL.";
                    WebError::new(WebErrorKind::Unreachable, message, advice)
                })?
            }
            Some(host) if self.allow.is_some() || !self.deny.is_empty() => {
                let message =
                    format!("the address {host} can't be compared with the lists of hosts");
                return Err(refused(message));
            }
            Some(Host::Ipv4(address)) => vec![address.into()],
            Some(Host::Ipv6(address)) => vec![address.into()],
            None => return Err(invalid("the URL has no host")),
        };
        let host = url.host_str().unwrap_or_default();
        if found.is_empty() {
            let message = format!("the host `{host}` has no address");
            let advice = "Check the host name in the URL.";
            return Err(WebError::new(WebErrorKind::Unreachable, message, advice));
        }
        let found: Vec<_> = found.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        let is_allowed = |address: &SocketAddr| {
            let ip = address.ip();
            let may_be_reached = is_public(ip) || is_private && may_be_private_host(ip);
            self.exempt.contains(address) || may_be_reached && !is_own(ip)
        };
        // One address that is not public refuses the host: its resolver is under someone else's control.
        if !found.iter().take(MAX_ADDRESSES).all(is_allowed) {
            return Err(refused(format!(
                "`{host}` has an address that is not public, or is this machine's"
            )));
        }
        Ok(found.into_iter().take(MAX_ADDRESSES).collect())
    }

    /// Checks a name against the lists, and returns whether its addresses may be of a private network.
    fn check_name(&self, name: &HostName, port: u16) -> Result<bool, WebError> {
        if self.deny.iter().any(|pattern| pattern.matches_name(name)) {
            return Err(refused(format!("the host `{name}` is denied")));
        }
        let Some(allow) = &self.allow else {
            return Ok(false);
        };
        let is_denied = allow.iter().any(|pattern| pattern.denies(name, port));
        let mut matching = allow.iter().filter(|it| it.matches(name, port)).peekable();
        if !is_denied && matching.peek().is_some() {
            return Ok(matching.any(HostPattern::allows_private_addresses));
        }
        let allowed: Vec<_> = allow.iter().map(ToString::to_string).collect();
        let allowed = allowed.join(", ");
        Err(refused(format!(
            "the host `{name}` (port {port}) is not allowed; allowed are: {allowed}"
        )))
    }
}

/// Parses a URL that a model or a server supplied; drops its fragment.
pub(crate) fn parse_url(text: &str, base: Option<&Url>) -> Result<Url, WebError> {
    if text.len() > MAX_URL_BYTES {
        return Err(invalid("the URL is longer than 8 KiB"));
    }
    let parsed = Url::options().base_url(base).parse(text.trim());
    let mut url = parsed.map_err(|error| invalid(format!("`{text}` is not a URL: {error}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        let scheme = url.scheme();
        return Err(invalid(format!(
            "URLs of the scheme `{scheme}` can't be fetched"
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid("the URL contains a user name or a password"));
    }
    url.set_fragment(None);
    Ok(url)
}

fn invalid(message: impl Into<String>) -> WebError {
    let advice = "Give a full URL such as `https://example.com/page`.";
    WebError::new(WebErrorKind::InvalidUrl, message, advice)
}

fn refused(message: impl Into<String>) -> WebError {
    let advice = "This can't be changed from here: use another source, or tell the user.";
    WebError::new(WebErrorKind::Refused, message, advice)
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    #[test]
    fn a_cause_in_the_message_is_no_source() {
        let error = parse_url("http://[", None).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`http://[` is not a URL: invalid IPv6 address"
        );
        assert!(error.source().is_none());
    }
}
