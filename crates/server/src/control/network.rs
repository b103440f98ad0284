//! Translates E2B's network settings to a policy. What can't be enforced is refused.

use std::net::IpAddr;

use cantle_core::policy::{HostPattern, Network, Policy};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::api_error::{ApiError, ApiResult};
use crate::envd::rpc::json as protobuf;

/// The ranges of `denyOut` that mean all addresses.
const ALL_ADDRESSES: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// Network settings of a request.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct NetworkRules {
    #[serde(deserialize_with = "protobuf::or_default")]
    allow_out: Vec<String>,
    #[serde(deserialize_with = "protobuf::or_default")]
    deny_out: Vec<String>,
    #[serde(deserialize_with = "protobuf::or_default")]
    dns_servers: Vec<String>,
    /// Applied to each request to a port.
    allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    #[serde(deserialize_with = "protobuf::or_default")]
    https_ports: Vec<u16>,
    egress_proxy: Option<Value>,
    rules: Option<Value>,
}

/// Returns the network access, or `None` for that of the server's policy.
pub(super) fn restrict(
    internet: Option<bool>,
    network: Option<NetworkRules>,
    policy: &Policy,
) -> ApiResult<Option<Network>> {
    let rules = network.unwrap_or_default();
    let is_set = |value: &Option<Value>| value.as_ref().is_some_and(|it| *it != json!({}));
    let unsupported = [
        ("dnsServers", !rules.dns_servers.is_empty()),
        ("maskRequestHost", rules.mask_request_host.is_some()),
        ("httpsPorts", !rules.https_ports.is_empty()),
        ("egressProxy", is_set(&rules.egress_proxy)),
        ("rules", is_set(&rules.rules)),
    ];
    if let Some((name, _)) = unsupported.iter().find(|(_, set)| *set) {
        let message = format!("network.{name} can't be enforced by this server");
        return Err(ApiError::bad_request(message));
    }
    let denies_all = !rules.deny_out.is_empty();
    let is_partial = |range: &&String| !ALL_ADDRESSES.contains(&range.as_str());
    if let Some(range) = rules.deny_out.iter().find(is_partial) {
        let message = format!(
            "network.denyOut: denying only {range} is not supported; this server can deny everything ({})",
            ALL_ADDRESSES[0]
        );
        return Err(ApiError::bad_request(message));
    }
    if rules.allow_out.is_empty() {
        let is_off = denies_all || internet == Some(false);
        return Ok(is_off.then_some(Network::Off));
    }
    if !denies_all && internet != Some(false) {
        // Addresses allowed in addition to everything add nothing. E2B refuses names here, too: their client expects
        // that all else is denied.
        if let Some(host) = rules.allow_out.iter().find(|host| !is_address(host)) {
            let message = format!(
                "network.allowOut: allowing {host} needs network.denyOut with everything ({})",
                ALL_ADDRESSES[0]
            );
            return Err(ApiError::bad_request(message));
        }
        return Ok(None);
    }
    let hosts = rules.allow_out.iter().map(|host| host.parse());
    let mut hosts: Vec<HostPattern> = hosts
        .collect::<Result<_, _>>()
        .map_err(|error| ApiError::bad_request(format!("network.allowOut: {error}")))?;
    match &policy.network {
        None => {}
        Some(Network::Hosts(granted)) => {
            if let Some(host) = hosts.iter().find(|host| !granted.contains(host)) {
                let message = format!("network.allowOut: this server doesn't grant {host}");
                return Err(ApiError::bad_request(message));
            }
            hosts.extend(granted.iter().filter(|host| host.is_denied()).cloned());
        }
        Some(_) => {
            let message = "network.allowOut: this server grants sandboxes no network";
            return Err(ApiError::bad_request(message));
        }
    }
    Ok(Some(Network::Hosts(hosts)))
}

/// Whether an entry of `allowOut` is an address or a range of addresses, and no name.
fn is_address(entry: &str) -> bool {
    let (address, _) = entry.split_once('/').unwrap_or((entry, ""));
    address.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(policy: &Policy, internet: Option<bool>, json: &str) -> Option<Option<Network>> {
        restrict(internet, Some(serde_json::from_str(json).unwrap()), policy).ok()
    }

    #[test]
    fn clients_may_request_less_network_than_granted() {
        let denied = "!ads.example.org".parse().unwrap();
        let granted = Policy::network(["*.example.org".parse().unwrap(), denied]);
        let json = r#"{"allowOut": ["*.example.org"], "denyOut": ["0.0.0.0/0"]}"#;
        assert_eq!(
            under(&granted, None, json),
            Some(granted.network),
            "a client can't drop what the server denies"
        );
        let granted = Policy::network([
            "index.example.org".parse().unwrap(),
            "a.example.org".parse().unwrap(),
        ]);
        let one = Network::Hosts(vec!["index.example.org".parse().unwrap()]);
        let allow = r#"{"allowOut":["index.example.org"],"denyOut":["0.0.0.0/0"]}"#;
        assert_eq!(under(&granted, None, allow), Some(Some(one.clone())));
        assert_eq!(
            under(&Policy::unconfined(), Some(false), allow),
            Some(Some(one))
        );
        assert_eq!(under(&granted, Some(false), "{}"), Some(Some(Network::Off)));
        assert_eq!(under(&granted, Some(true), "{}"), Some(None));
        assert_eq!(under(&granted, None, "{}"), Some(None));
        let addresses = r#"{"allowOut":["10.0.0.0/8","::1"]}"#;
        assert_eq!(under(&granted, None, addresses), Some(None));
        let null = r#"{"allowOut":null,"denyOut":null,"dnsServers":null,"httpsPorts":null}"#;
        assert_eq!(under(&granted, None, null), Some(None));
    }

    #[test]
    fn ungranted_and_unenforceable_rules_are_refused() {
        let granted = Policy::network(["index.example.org".parse().unwrap()]);
        for json in [
            r#"{"allowOut":["other.example.org"],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"allowOut":["10.0.0.0/8"],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"denyOut":["10.0.0.0/8"]}"#,
            r#"{"allowOut":["10.0.0.0/8","*.example.org"]}"#,
            r#"{"rules":{"a.example.org":[]}}"#,
            r#"{"dnsServers":["1.1.1.1"]}"#,
        ] {
            assert_eq!(under(&granted, None, json), None, "{json}");
        }
        let allow = r#"{"allowOut":["index.example.org"],"denyOut":["0.0.0.0/0"]}"#;
        assert_eq!(under(&Policy::workspace(), None, allow), None);
    }
}
