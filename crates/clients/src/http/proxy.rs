//! Proxy selection from the environment.
//!
//! `HTTPS_PROXY` applies to `https` URLs, `HTTP_PROXY` to `http` URLs, and `ALL_PROXY` to both; lower
//! case names work too. Loopback addresses and hosts in `NO_PROXY` are reached directly. The proxy is
//! selected when a client is created, so that errors can name it.

use std::env;
use std::net::IpAddr;

use cantle_core::llm::{LlmError, LlmErrorKind};
use cantle_tls::root_cause;
use ipnet::IpNet;
use reqwest::Url;

use super::settings::invalid;

/// The proxy for a URL.
#[derive(Clone, Debug)]
pub(super) struct ProxyRoute {
    /// Environment variable that names the proxy.
    pub(super) variable: &'static str,
    /// Its URL, without credentials.
    pub(super) url: String,
    pub(super) uses_tls: bool,
    pub(super) proxy: reqwest::Proxy,
}

impl ProxyRoute {
    /// Returns the advice for a proxy that requires authentication.
    pub(super) fn credentials_advice(&self) -> String {
        format!(
            "Set the proxy's credentials in {}: http://USER:PASSWORD@HOST:PORT.",
            self.variable
        )
    }

    /// Returns the error for a failed connection through the proxy.
    pub(super) fn connect_error(&self, target: &str, error: &reqwest::Error) -> LlmError {
        let (cause, variable) = (root_cause(error), self.variable);
        let message = format!("failed to reach {target}: {cause}");
        let error = LlmError::new(LlmErrorKind::Unreachable, message);
        error.with_advice(if cause.contains("proxy authorization required") {
            self.credentials_advice()
        } else if cause.contains("tunnel error") {
            "The proxy refused the connection to that address: check the base URL, and the proxy's \
             rules."
                .to_owned()
        } else {
            format!(
                "Check that the proxy is running, and its URL in {variable}; add hosts that need no proxy \
                 to NO_PROXY."
            )
        })
    }
}

/// Returns the proxy that the environment specifies for a URL.
///
/// # Errors
/// If the proxy's URL is invalid or has an unsupported scheme.
pub(super) fn proxy_for(target: &Url) -> Result<Option<ProxyRoute>, LlmError> {
    select(target, |name| env::var(name).ok())
}

fn select(
    target: &Url,
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<ProxyRoute>, LlmError> {
    let names: &[&'static str] = match target.scheme() {
        "https" => &["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"],
        // A web server passes a request's `Proxy` header to a CGI program as HTTP_PROXY.
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
    let no_proxy = variable("NO_PROXY").or_else(|| variable("no_proxy"));
    if bypasses_proxy(target, no_proxy.as_deref().unwrap_or_default()) {
        return Ok(None);
    }
    // The invalid text may contain a password, so the error does not.
    let unusable = || {
        invalid(format!("{variable_name} does not contain a supported proxy URL"))
            .with_advice("Write it like http://proxy.example.com:3128. Only http:// and https:// proxies are supported.")
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
    let mut public_url = url.clone();
    let stripped = public_url
        .set_username("")
        .and(public_url.set_password(None));
    stripped.map_err(|()| unusable())?;
    Ok(Some(ProxyRoute {
        variable: variable_name,
        url: public_url.as_str().trim_end_matches('/').to_owned(),
        uses_tls: url.scheme() == "https",
        proxy: reqwest::Proxy::all(url).map_err(|_| unusable())?,
    }))
}

/// Returns whether a URL is reached directly: it is a loopback address, or matches `no_proxy`.
fn bypasses_proxy(target: &Url, no_proxy: &str) -> bool {
    let Some(host) = target.host_str() else {
        return true;
    };
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let ip = name.parse::<IpAddr>().ok();
    if name == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    let port = target
        .port_or_known_default()
        .unwrap_or_default()
        .to_string();
    let entries = no_proxy.split([',', ' ']).map(str::trim);
    entries.filter(|entry| !entry.is_empty()).any(|entry| {
        let entry = entry.to_ascii_lowercase();
        let entry = match entry.rsplit_once(':') {
            // Not the last colon of an IPv6 address.
            Some((host, entry_port)) if !host.contains(':') || host.ends_with(']') => {
                if entry_port != port {
                    return false;
                }
                host.to_owned()
            }
            _ => entry,
        };
        let entry = entry.trim_start_matches('[').trim_end_matches(']');
        match ip {
            Some(ip) => {
                let network = entry.parse().map(|network: IpNet| network.contains(&ip));
                entry == "*" || entry.parse() == Ok(ip) || network == Ok(true)
            }
            None => {
                let domain = entry.trim_start_matches("*").trim_start_matches('.');
                let above = name.strip_suffix(domain).filter(|_| !domain.is_empty());
                entry == "*" || above.is_some_and(|it| it.is_empty() || it.ends_with('.'))
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use super::select;

    /// Returns the variable and the proxy, or the error.
    fn route(url: &str, set: &[(&str, &str)]) -> Option<String> {
        let variable = |name: &str| {
            let found = set.iter().find(|(set, _)| *set == name)?;
            Some(found.1.to_owned())
        };
        match select(&Url::parse(url).unwrap(), variable) {
            Ok(route) => route.map(|route| format!("{} {}", route.variable, route.url)),
            Err(error) => Some(error.to_string()),
        }
    }

    #[test]
    fn each_scheme_has_its_variables() {
        let set = [
            ("HTTP_PROXY", "one:3128"),
            ("https_proxy", "http://me:secret@two.example.com:3128/"),
            ("ALL_PROXY", "https://three"),
        ];
        let (plain, secure) = (
            "http://models.example.com/v1",
            "https://models.example.com/v1",
        );
        assert_eq!(route(plain, &set).unwrap(), "HTTP_PROXY http://one:3128");
        assert_eq!(
            route(secure, &set).unwrap(),
            "https_proxy http://two.example.com:3128"
        );
        assert_eq!(route(secure, &set[2..]).unwrap(), "ALL_PROXY https://three");
        assert_eq!(route(secure, &set[..1]), None);
        assert_eq!(route(secure, &[("HTTPS_PROXY", " ")]), None);
        let cgi = [("HTTP_PROXY", "one:3128"), ("REQUEST_METHOD", "GET")];
        assert_eq!(route(plain, &cgi), None);
    }

    #[test]
    fn invalid_proxy_urls_are_rejected_without_quoting_them() {
        for text in [
            "socks5://me:secret@one",
            "http://",
            "http://me:secret@[",
            "::",
        ] {
            let error = route("https://models.example.com", &[("HTTPS_PROXY", text)]).unwrap();
            assert_eq!(
                error, "HTTPS_PROXY does not contain a supported proxy URL",
                "{text}"
            );
        }
    }

    #[test]
    fn loopback_and_no_proxy_hosts_are_reached_directly() {
        let direct = |to: &str, list: &str| {
            route(to, &[("ALL_PROXY", "one:3128"), ("no_proxy", list)]).is_none()
        };
        for to in [
            "http://localhost:8000/v1",
            "http://127.0.0.1",
            "http://[::1]:1",
        ] {
            assert!(direct(to, ""), "{to}");
        }
        for (to, list) in [
            ("http://a.example.com", "*"),
            ("http://a.example.com", "b.example.com, A.example.com"),
            ("http://a.b.example.com", ".example.com"),
            ("http://a.b.example.com", "*.b.example.com"),
            ("http://a.example.com:8000", "a.example.com:8000"),
            ("http://10.1.2.3", "10.0.0.0/8"),
            ("http://10.1.2.3", "10.1.2.3"),
            ("http://10.1.2.3", "0.0.0.0/0"),
            ("http://[fd00::1]", "fd00::/8"),
            ("http://[fd00::1]", "[fd00::1]:80"),
        ] {
            assert!(direct(to, list), "{to} {list}");
        }
        for (to, list) in [
            ("http://a.example.com", ""),
            ("http://ab.example.com", "c.example.com,b.example.com"),
            ("http://a.example.com", "a.example.com:8000"),
            ("http://11.1.2.3", "10.0.0.0/8,10.0.0.0/99,x/8"),
            ("http://[fd00::1]", "fc00::/8"),
            ("http://a.example.com", ".,,"),
        ] {
            assert!(!direct(to, list), "{to} {list}");
        }
    }
}
