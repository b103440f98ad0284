//! Allowed hosts: names and patterns of names, never addresses.
//!
//! The enforcing backend resolves names and checks every address. An address in the list would bypass
//! that check, and one in a request would bypass the list. So a [`HostName`] can't be an address in any
//! spelling that some program accepts.

use std::fmt;
use std::str::FromStr;

use super::InvalidPolicy;

/// The ports of a pattern without a port: HTTP and HTTPS.
const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// RFC 1035, 2.3.4: maximum length of a name without the root's dot, and of one label.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// A fully qualified host name in lower case, without a trailing dot. Not an address.
///
/// ```
/// use cantle_core::policy::HostName;
///
/// let host: HostName = "Example.com.".parse()?;
/// assert_eq!(host.as_str(), "example.com");
/// assert!("127.0.0.1".parse::<HostName>().is_err());
/// assert!("0x7f.1".parse::<HostName>().is_err());
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    /// Returns the name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

display_as_str!(HostName);

impl FromStr for HostName {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        match problem(text) {
            None => {
                let name = text.strip_suffix('.').unwrap_or(text);
                Ok(Self(name.to_ascii_lowercase()))
            }
            Some(advice) => Err(InvalidPolicy::new(text, "a host name", advice)),
        }
    }
}

/// Returns what is wrong with a host name, with advice; `None` if it is valid.
fn problem(text: &str) -> Option<&'static str> {
    const ADDRESS: &str = "addresses can't be allowed, only names: write the host's name";
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    if name.is_empty() {
        Some("it is empty: write a name such as `example.com`")
    } else if name.contains(['/', '@', '?', '#']) {
        Some("write the name alone, without scheme, user or path")
    } else if name.contains(['[', ']', ':']) || reads_as_number(last) {
        Some(ADDRESS)
    } else if !name.is_ascii() {
        Some(
            "write it in its ASCII form, as in `xn--bcher-kva.example.com` for `bücher.example.com`",
        )
    } else if name.contains('*') {
        Some("`*` stands for subdomains at the start only, as in `*.example.org`")
    } else if !name.split('.').all(is_label) || name.len() > MAX_NAME_BYTES {
        Some(
            "a name is made of letters, digits and hyphens, with single dots between, \
             as in `files.example.org`",
        )
    } else if !name.contains('.') {
        Some(
            "it has no domain, so it means this machine or its network, which are never \
             reachable: write a full name such as `example.com`",
        )
    } else {
        None
    }
}

// Underscores occur in service names.
fn is_label(label: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=MAX_LABEL_BYTES).contains(&label.len())
        && label.bytes().all(allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Returns whether `inet_aton` and browsers read a name that ends in this label as an IPv4 address
/// (<https://url.spec.whatwg.org/#ends-in-a-number-checker>): `127.1`, `2130706433`, `0x7f000001`.
fn reads_as_number(label: &str) -> bool {
    let hexadecimal = label
        .strip_prefix("0x")
        .or_else(|| label.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

/// A pattern of allowed hosts: `example.com`, or `*.example.org` for all subdomains of `example.org`
/// but not itself. It allows ports 80 and 443, or the given one: `git.example.org:9418`.
///
/// A name that leads to an address which is not public is refused, unless the pattern is marked:
/// `mirror.example.org,private` is for a mirror in the user's own network.
///
/// A pattern after `!` takes hosts away from those that others of its list allow: `*.example.org` with
/// `!ads.example.org`. Without a port, it is for all ports. [`Network::allows`](super::Network::allows) looks at both.
///
/// ```
/// use cantle_core::policy::HostPattern;
///
/// let pattern: HostPattern = "*.example.org".parse()?;
/// assert!(pattern.matches(&"deb.example.org".parse()?, 443));
/// assert!(!pattern.matches(&"example.org".parse()?, 443));
/// assert!(!pattern.matches(&"deb.example.org".parse()?, 22));
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostPattern {
    name: HostName,
    /// Whether the pattern is for the subdomains of `name` instead of itself.
    subdomains: bool,
    port: Option<u16>,
    private: bool,
    denies: bool,
}

/// Stands before a pattern of hosts that are denied.
const DENIED: char = '!';

/// Stands after a pattern whose addresses may be private.
const PRIVATE: &str = ",private";

impl HostPattern {
    /// Marks the host: its addresses may be of a private network, though not of this machine.
    #[must_use]
    pub fn with_private_addresses(mut self) -> Self {
        self.private = true;
        self
    }

    /// Returns whether the addresses of the host may be of a private network.
    pub fn allows_private_addresses(&self) -> bool {
        self.private
    }

    /// Turns the pattern into one of hosts that are denied.
    #[must_use]
    pub fn denied(mut self) -> Self {
        self.denies = true;
        self.private = false;
        self
    }

    /// Returns whether the pattern takes hosts away.
    pub fn is_denied(&self) -> bool {
        self.denies
    }

    /// Returns whether the pattern denies `host` on `port`.
    pub fn denies(&self, host: &HostName, port: u16) -> bool {
        self.denies && self.port.is_none_or(|own| own == port) && self.matches_name(host)
    }

    /// Returns whether the pattern allows `host` on `port`. Other patterns of its list may deny it.
    pub fn matches(&self, host: &HostName, port: u16) -> bool {
        let port_matches = match self.port {
            Some(own) => own == port,
            None => DEFAULT_PORTS.contains(&port),
        };
        !self.denies && port_matches && self.matches_name(host)
    }

    /// Returns whether the pattern is for `host`, on any port.
    pub fn matches_name(&self, host: &HostName) -> bool {
        let name = self.name.as_str();
        if self.subdomains {
            let above = host.as_str().strip_suffix(name);
            above.is_some_and(|above| above.ends_with('.'))
        } else {
            host.as_str() == name
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.denies {
            write!(f, "{DENIED}")?;
        }
        if self.subdomains {
            f.write_str("*.")?;
        }
        f.write_str(self.name.as_str())?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        match self.private {
            true => f.write_str(PRIVATE),
            false => Ok(()),
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let invalid = |advice| InvalidPolicy::new(text, "a host that can be allowed", advice);
        let (text, denies) = match text.strip_prefix(DENIED) {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (text, private) = match text.strip_suffix(PRIVATE) {
            Some(_) if denies => return Err(invalid("a host that is denied has no `private`")),
            Some(text) => (text, true),
            None => (text, false),
        };
        let (host, port) = match text.split_once(':') {
            // Not for an IPv6 address, which has more colons, brackets or both.
            Some((host, port)) if !port.contains([':', ']', '/']) => (host, Some(port)),
            _ => (text, None),
        };
        let (name, subdomains) = match host.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (host, false),
        };
        if matches!(host, "*" | "*.") {
            return Err(invalid(
                "everything can't be allowed: name the hosts, as in `example.com` or `*.example.org`",
            ));
        }
        if subdomains && is_label(name) && !reads_as_number(name) {
            return Err(invalid(
                "a whole top-level domain can't be allowed: name the hosts, as in `*.example.org`",
            ));
        }
        if let Some(advice) = problem(name) {
            return Err(invalid(advice));
        }
        let port = match port.map(|port| (port.starts_with('+'), port.parse::<u16>())) {
            None => None,
            // A sign is no part of a port, though `parse` accepts it.
            Some((false, Ok(port))) if port != 0 => Some(port),
            Some(_) => {
                let advice =
                    "after the colon comes a port from 1 to 65535, as in `example.org:8443`";
                return Err(invalid(advice));
            }
        };
        Ok(Self {
            name: name.parse()?,
            subdomains,
            port,
            private,
            denies,
        })
    }
}

serialize_as_text!(HostPattern);

#[cfg(test)]
mod tests;
