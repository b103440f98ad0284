//! Hosts of the allow-list: names and patterns of names, never addresses.
//!
//! A policy speaks of names, and whoever enforces it resolves them and checks every address: an
//! address in the list would be a way around that check, and one in a request a way around the list.
//! So a [`HostName`] can't be an address in any spelling that some program would take for one.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::InvalidPolicy;

/// The ports of a pattern that names none: HTTP and HTTPS.
const DEFAULT_PORTS: [u16; 2] = [80, 443];
/// RFC 1035, 2.3.4: a name in text form without the root's dot, and one label of it.
const NAME_BYTES: usize = 253;
const LABEL_BYTES: usize = 63;

/// A full host name: lower case, without a trailing dot, at least two labels, no address.
///
/// ```
/// use cantle_core::policy::HostName;
///
/// let host: HostName = "PyPI.org.".parse()?;
/// assert_eq!(host.as_str(), "pypi.org");
/// assert!("127.0.0.1".parse::<HostName>().is_err());
/// assert!("0x7f.1".parse::<HostName>().is_err());
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostName(String);

impl HostName {
    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

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

/// Why a text is no host name, and what to write instead.
fn problem(text: &str) -> Option<&'static str> {
    const ADDRESS: &str = "addresses can't be allowed, only names: write the host's name";
    let name = text.strip_suffix('.').unwrap_or(text);
    let last = name.rsplit('.').next().unwrap_or_default();
    if name.is_empty() {
        Some("it is empty: write a name such as `pypi.org`")
    } else if name.contains(['/', '@', '?', '#']) {
        Some("write the name alone, without scheme, user or path")
    } else if name.contains(['[', ']', ':']) || reads_as_number(last) {
        Some(ADDRESS)
    } else if !name.is_ascii() {
        Some("write it in its ASCII form, as in `xn--bcher-kva.example` for `bücher.example`")
    } else if name.contains('*') {
        Some("a `*` stands for sub-domains at the very start, as in `*.debian.org`")
    } else if !name.split('.').all(is_label) || name.len() > NAME_BYTES {
        Some(
            "a name is made of letters, digits and hyphens, with single dots between, \
             as in `files.example.org`",
        )
    } else if !name.contains('.') {
        Some(
            "it has no domain, so it means this machine or its network, which are never \
             reachable: write a full name such as `pypi.org`",
        )
    } else {
        None
    }
}

/// Names of services have underscores too, though names of hosts should not.
fn is_label(label: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=LABEL_BYTES).contains(&label.len())
        && label.bytes().all(allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

/// Whether a name that ends in this label is an IPv4 address to `inet_aton` and to browsers
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

/// Hosts that may be reached: `pypi.org`, or `*.debian.org` for all its sub-domains and not itself;
/// on ports 80 and 443, or on the one that is named: `git.example.org:9418`.
///
/// ```
/// use cantle_core::policy::HostPattern;
///
/// let pattern: HostPattern = "*.debian.org".parse()?;
/// assert!(pattern.matches(&"deb.debian.org".parse()?, 443));
/// assert!(!pattern.matches(&"debian.org".parse()?, 443));
/// assert!(!pattern.matches(&"deb.debian.org".parse()?, 22));
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct HostPattern {
    name: HostName,
    /// The sub-domains of `name` instead of itself.
    sub_domains: bool,
    port: Option<u16>,
}

impl HostPattern {
    /// Whether it allows `host` on `port`.
    #[must_use]
    pub fn matches(&self, host: &HostName, port: u16) -> bool {
        let port_matches = match self.port {
            Some(own) => own == port,
            None => DEFAULT_PORTS.contains(&port),
        };
        port_matches && self.matches_name(host)
    }

    /// Whether it allows `host` on any port at all.
    #[must_use]
    pub fn matches_name(&self, host: &HostName) -> bool {
        let name = self.name.as_str();
        if self.sub_domains {
            let above = host.as_str().strip_suffix(name);
            above.is_some_and(|above| above.ends_with('.'))
        } else {
            host.as_str() == name
        }
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.sub_domains {
            f.write_str("*.")?;
        }
        f.write_str(self.name.as_str())?;
        match self.port {
            Some(port) => write!(f, ":{port}"),
            None => Ok(()),
        }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let invalid = |advice| InvalidPolicy::new(text, "a host that can be allowed", advice);
        let (host, port) = match text.split_once(':') {
            // An IPv6 address has more colons, brackets or both; its problem is not the port.
            Some((host, port)) if !port.contains([':', ']', '/']) => (host, Some(port)),
            _ => (text, None),
        };
        let (name, sub_domains) = match host.strip_prefix("*.") {
            Some(name) => (name, true),
            None => (host, false),
        };
        if matches!(host, "*" | "*.") {
            return Err(invalid(
                "everything can't be allowed: name the hosts, as in `pypi.org` or `*.debian.org`",
            ));
        }
        if sub_domains && is_label(name) && !reads_as_number(name) {
            return Err(invalid(
                "a whole top-level domain can't be allowed: name the hosts, as in `*.debian.org`",
            ));
        }
        if let Some(advice) = problem(name) {
            return Err(invalid(advice));
        }
        let port = match port.map(str::parse) {
            None => None,
            Some(Ok(port)) if port != 0 => Some(port),
            Some(_) => {
                let advice =
                    "after the colon comes a port from 1 to 65535, as in `example.org:8443`";
                return Err(invalid(advice));
            }
        };
        Ok(Self {
            name: name.parse()?,
            sub_domains,
            port,
        })
    }
}

impl TryFrom<String> for HostPattern {
    type Error = InvalidPolicy;

    fn try_from(text: String) -> Result<Self, InvalidPolicy> {
        text.parse()
    }
}

impl From<HostPattern> for String {
    fn from(pattern: HostPattern) -> Self {
        pattern.to_string()
    }
}

#[cfg(test)]
mod tests;
