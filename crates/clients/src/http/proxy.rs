//! Proxies that the environment names.
//!
//! `HTTPS_PROXY` is for `https` addresses, `HTTP_PROXY` for `http` ones, `ALL_PROXY` for either, in
//! small letters too; hosts in `NO_PROXY` are reached directly, and so is this machine. An address is
//! known when a client is made, so the way to it is chosen then, and errors can name it.

use std::env;
use std::net::IpAddr;

use cantle_core::llm::{LlmError, LlmErrorKind};
use reqwest::Url;

use super::builder::invalid;
use super::transport::root;

/// The proxy on the way to an address.
#[derive(Clone, Debug)]
pub(super) struct OnTheWay {
    /// The variable that names it.
    pub(super) variable: &'static str,
    /// Where it is, without name and password.
    pub(super) at: String,
    pub(super) speaks_tls: bool,
    pub(super) proxy: reqwest::Proxy,
}

impl OnTheWay {
    /// What to do where the proxy lets nobody through whom it doesn't know.
    pub(super) fn wants_a_name(&self) -> String {
        format!(
            "Put a name and a password for it into {}: http://NAME:PASSWORD@HOST:PORT.",
            self.variable
        )
    }

    /// The error for a request that did not get through, and not for the server's TLS.
    pub(super) fn unreached(&self, to: &str, error: &reqwest::Error) -> LlmError {
        let (why, variable) = (root(error), self.variable);
        let unreached = LlmError::new(
            LlmErrorKind::Connection,
            format!("failed to reach {to}: {why}"),
        );
        unreached.with_advice(if why.contains("proxy authorization required") {
            self.wants_a_name()
        } else if why.contains("tunnel error") {
            "The proxy is there and lets nobody through to that address: check the base URL, and what \
             the proxy allows."
                .to_owned()
        } else {
            format!(
                "Check that the proxy is running, and its address in {variable}; a host that needs none \
                 belongs in NO_PROXY."
            )
        })
    }
}

/// The proxy that the environment names for an address.
///
/// # Errors
/// Where what it names is none that can be used.
pub(super) fn on_the_way(to: &Url) -> Result<Option<OnTheWay>, LlmError> {
    chosen(to, |name| env::var(name).ok())
}

fn chosen(
    to: &Url,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<OnTheWay>, LlmError> {
    let names: &[&'static str] = match to.scheme() {
        "https" => &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
        // A web server hands a visitor's `Proxy` header to a CGI program as HTTP_PROXY.
        // https://httpoxy.org
        _ if variable("REQUEST_METHOD").is_some() => &["http_proxy", "ALL_PROXY", "all_proxy"],
        _ => &["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"],
    };
    let set = |name: &&'static str| {
        let text = variable(name)?.trim().to_owned();
        (!text.is_empty()).then_some((*name, text))
    };
    let Some((variable_name, text)) = names.iter().find_map(set) else {
        return Ok(None);
    };
    let direct = variable("NO_PROXY").or_else(|| variable("no_proxy"));
    if is_direct(to, direct.as_deref().unwrap_or_default()) {
        return Ok(None);
    }
    // What does not parse may hold a password, so it is not repeated.
    let unusable = || {
        invalid(format!("{variable_name} does not name a proxy that can be used"))
            .with_advice("Write it like http://proxy.example:3128. Only http:// and https:// proxies are spoken with.")
    };
    let with_scheme = if text.contains("://") {
        text
    } else {
        format!("http://{text}")
    };
    let url = Url::parse(&with_scheme).map_err(|_| unusable())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(unusable());
    }
    let mut at = url.clone();
    let hidden = at.set_username("").and(at.set_password(None));
    hidden.map_err(|()| unusable())?;
    Ok(Some(OnTheWay {
        variable: variable_name,
        at: at.as_str().trim_end_matches('/').to_owned(),
        speaks_tls: url.scheme() == "https",
        proxy: reqwest::Proxy::all(url).map_err(|_| unusable())?,
    }))
}

/// Whether an address is reached without a proxy: it is on this machine, or in the list.
fn is_direct(to: &Url, list: &str) -> bool {
    let Some(host) = to.host_str() else {
        return true;
    };
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let ip = name.parse::<IpAddr>().ok();
    if name == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let port = to.port_or_known_default().unwrap_or_default().to_string();
    let names = list.split([',', ' ']).map(str::trim);
    names.filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        let entry = match entry.rsplit_once(':') {
            // An IPv6 address has more of them.
            Some((host, its)) if !host.contains(':') || host.ends_with(']') => {
                if its != port {
                    return false;
                }
                host.to_owned()
            }
            _ => entry,
        };
        let entry = entry.trim_start_matches('[').trim_end_matches(']');
        match ip {
            Some(ip) => entry == "*" || entry.parse() == Ok(ip) || is_within(ip, entry),
            None => {
                let domain = entry.trim_start_matches("*").trim_start_matches('.');
                entry == "*"
                    || name == domain
                    || name
                        .strip_suffix(domain)
                        .is_some_and(|host| !domain.is_empty() && host.ends_with('.'))
            }
        }
    })
}

/// Whether an address lies in a network such as `10.0.0.0/8`.
fn is_within(ip: IpAddr, network: &str) -> bool {
    let Some((base, bits)) = network.split_once('/') else {
        return false;
    };
    let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>()) else {
        return false;
    };
    match (ip, base) {
        (IpAddr::V4(ip), IpAddr::V4(base)) if bits <= 32 => {
            let differ = ip.to_bits() ^ base.to_bits();
            differ.checked_shr(32 - bits).unwrap_or(0) == 0
        }
        (IpAddr::V6(ip), IpAddr::V6(base)) if bits <= 128 => {
            let differ = ip.to_bits() ^ base.to_bits();
            differ.checked_shr(128 - bits).unwrap_or(0) == 0
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::chosen;

    /// The variable and the proxy, or the error.
    fn way(to: &str, set: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = set.iter().find(|(set, _)| *set == name)?;
            Some(found.1.to_owned())
        };
        match chosen(&Url::parse(to).unwrap(), variable) {
            Ok(way) => way.map(|way| format!("{} {}", way.variable, way.at)),
            Err(error) => Some(error.to_string()),
        }
    }

    #[test]
    fn each_scheme_has_its_variables() {
        let set = [
            ("HTTP_PROXY", "one:3128"),
            ("https_proxy", "http://me:secret@two.example:3128/"),
            ("ALL_PROXY", "https://three"),
        ];
        let (plain, secure) = ("http://models.example/v1", "https://models.example/v1");
        assert_eq!(way(plain, &set).unwrap(), "HTTP_PROXY http://one:3128");
        assert_eq!(
            way(secure, &set).unwrap(),
            "https_proxy http://two.example:3128"
        );
        assert_eq!(way(secure, &set[2..]).unwrap(), "ALL_PROXY https://three");
        assert_eq!(way(secure, &set[..1]), None);
        assert_eq!(way(secure, &[("HTTPS_PROXY", " ")]), None);
        let cgi = [("HTTP_PROXY", "one:3128"), ("REQUEST_METHOD", "GET")];
        assert_eq!(way(plain, &cgi), None);
    }

    #[test]
    fn what_is_no_proxy_is_refused_without_repeating_it() {
        for text in [
            "socks5://me:secret@one",
            "http://",
            "http://me:secret@[",
            "::",
        ] {
            let said = way("https://models.example", &[("HTTPS_PROXY", text)]).unwrap();
            assert_eq!(
                said, "HTTPS_PROXY does not name a proxy that can be used",
                "{text}"
            );
        }
    }

    #[test]
    fn some_hosts_are_reached_directly() {
        let direct = |to: &str, list: &str| {
            way(to, &[("ALL_PROXY", "one:3128"), ("no_proxy", list)]).is_none()
        };
        for to in [
            "http://localhost:8000/v1",
            "http://127.0.0.1",
            "http://[::1]:1",
        ] {
            assert!(direct(to, ""), "{to}");
        }
        for (to, list) in [
            ("http://a.example", "*"),
            ("http://a.example", "b.example, A.example"),
            ("http://a.b.example", ".example"),
            ("http://a.b.example", "*.b.example"),
            ("http://a.example:8000", "a.example:8000"),
            ("http://10.1.2.3", "10.0.0.0/8"),
            ("http://10.1.2.3", "10.1.2.3"),
            ("http://10.1.2.3", "0.0.0.0/0"),
            ("http://[fd00::1]", "fd00::/8"),
            ("http://[fd00::1]", "[fd00::1]:80"),
        ] {
            assert!(direct(to, list), "{to} {list}");
        }
        for (to, list) in [
            ("http://a.example", ""),
            ("http://a.example", "b.example,ample"),
            ("http://a.example", "a.example:8000"),
            ("http://11.1.2.3", "10.0.0.0/8,10.0.0.0/99,x/8"),
            ("http://[fd00::1]", "fc00::/8"),
            ("http://a.example", ".,,"),
        ] {
            assert!(!direct(to, list), "{to} {list}");
        }
    }
}
