//! The URLs that a model may open.

use std::net::IpAddr;

use cantle_core::escape::join_up_to;
use cantle_core::policy::{HostName, Network};
use cantle_core::sandbox::SandboxInfo;
use url::{Host, Url};

use crate::failure::{Failure, clip};

/// Parses a URL and checks its scheme, and its host against the sandbox's network.
///
/// The sandbox enforces its network for everything that the browser requests; the check is for a clear error.
pub(crate) fn check(url: &str, sandbox: &SandboxInfo) -> Result<Url, Failure> {
    let parsed = Url::parse(url.trim()).map_err(|error| {
        Failure::refused(format!(
            "{:?} is no URL: {error}. Write it with its scheme, such as https://example.com/.",
            clip(url, 300)
        ))
    })?;
    match parsed.scheme() {
        "http" | "https" => {}
        // The browser reads no more files than a command does.
        "file" | "data" => return Ok(parsed),
        "about" if parsed.path() == "blank" => return Ok(parsed),
        scheme => {
            let scheme = clip(scheme, 30);
            return Err(Failure::refused(format!(
                "URLs of the scheme {scheme:?} are not opened, only http, https, file and data."
            )));
        }
    }
    if parsed.host().is_some_and(|host| is_loopback(&host)) {
        return Ok(parsed);
    }
    let host = clip(parsed.host_str().unwrap_or_default(), 253);
    match sandbox.enforced_network() {
        Some(Network::Off) => Err(Failure::refused(format!(
            "`{host}` can't be reached: the sandbox has no network, only servers inside it (such as \
             http://127.0.0.1:8000/). The user allows hosts with the network policy (--allow-host {host})."
        ))),
        Some(network @ Network::Hosts(allowed)) => {
            let port = parsed.port_or_known_default().unwrap_or(443);
            let name: Option<HostName> = host.parse().ok();
            if name.is_some_and(|name| network.allows(&name, port)) {
                return Ok(parsed);
            }
            let allowed = match allowed.len() {
                0 => "none".to_owned(),
                _ => join_up_to(20, allowed),
            };
            Err(Failure::refused(format!(
                "The network policy does not allow `{host}` (port {port}). Allowed hosts: {allowed}. The user allows \
                 more with --allow-host {host}."
            )))
        }
        _ => Ok(parsed),
    }
}

/// Returns whether Chromium reaches a host without the proxy.
fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Domain(name) => *name == "localhost" || name.ends_with(".localhost"),
        Host::Ipv4(address) => IpAddr::V4(*address).is_loopback(),
        Host::Ipv6(address) => IpAddr::V6(*address).is_loopback(),
    }
}

#[cfg(test)]
mod tests {
    use cantle_core::policy::PolicyField;
    use cantle_core::sandbox::{EnforcedBy, Enforcement, SandboxPath};

    use super::*;

    fn refusal(url: &str, network: Network) -> Option<String> {
        let mut info = SandboxInfo::new("local", "id", SandboxPath::working_directory());
        info.network = Some(network);
        info.enforcement = vec![Enforcement::new(PolicyField::Network, EnforcedBy::Kernel)];
        match check(url, &info) {
            Ok(_) => None,
            Err(Failure::Refused(text)) => Some(text),
            Err(failure) => panic!("{failure:?}"),
        }
    }

    #[test]
    fn hosts_outside_of_the_policy_are_named() {
        let hosts = || Network::Hosts(vec!["*.example.org".parse().unwrap()]);
        assert_eq!(refusal("https://a.example.org/x", hosts()), None);
        let refused = refusal("http://example.com/", hosts()).unwrap();
        assert!(
            refused.contains("`example.com` (port 80). Allowed hosts: *.example.org."),
            "{refused}"
        );
        assert!(refusal("http://192.0.2.1/", hosts()).is_some());
        let refused = refusal("https://example.com/", Network::Off).unwrap();
        assert!(refused.contains("--allow-host example.com"), "{refused}");
    }

    #[test]
    fn servers_in_the_sandbox_need_no_network() {
        for url in [
            "http://localhost:8000/",
            "http://127.0.0.2/",
            "http://[::1]:1/",
            "file:///a",
        ] {
            assert_eq!(refusal(url, Network::Off), None, "{url}");
        }
        assert!(refusal("http://localhost.example.com/", Network::Off).is_some());
    }

    #[test]
    fn other_schemes_are_refused() {
        for url in [
            "chrome://crash",
            "javascript:alert(1)",
            "view-source:http://localhost/",
            "example.com",
            "about:srcdoc",
        ] {
            assert!(refusal(url, Network::Off).is_some(), "{url}");
        }
    }
}
