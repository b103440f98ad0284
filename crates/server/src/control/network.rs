//! What a caller wants of the network, as a policy: enforced as it is said, or refused.

use cantle_core::policy::{HostPattern, Network, Policy};
use serde::Deserialize;
use serde_json::Value;

use crate::refusal::Refusal;

/// All addresses, as `denyOut` says it.
const ALL: [&str; 2] = ["0.0.0.0/0", "::/0"];

/// What a request says of the network.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(super) struct Wanted {
    allow_out: Vec<String>,
    deny_out: Vec<String>,
    dns_servers: Vec<String>,
    allow_public_traffic: Option<bool>,
    mask_request_host: Option<String>,
    https_ports: Vec<u16>,
    egress_proxy: Option<Value>,
    rules: Option<Value>,
}

/// What code may reach, where that is less than the server's own policy grants.
pub(super) fn of(
    internet: Option<bool>,
    network: Option<Wanted>,
    policy: &Policy,
) -> Result<Option<Network>, Refusal> {
    let wanted = network.unwrap_or_default();
    let is_set = |value: &Option<Value>| match value {
        None | Some(Value::Null) => false,
        Some(Value::Object(fields)) => !fields.is_empty(),
        Some(_) => true,
    };
    let not_here = [
        ("dnsServers", !wanted.dns_servers.is_empty()),
        ("maskRequestHost", wanted.mask_request_host.is_some()),
        ("httpsPorts", !wanted.https_ports.is_empty()),
        ("egressProxy", is_set(&wanted.egress_proxy)),
        ("rules", is_set(&wanted.rules)),
    ];
    if let Some((name, _)) = not_here.iter().find(|(_, set)| *set) {
        let message = format!("network.{name} can't be enforced by this server");
        return Err(Refusal::bad_request(message));
    }
    // Nothing gets in here, whether that is wanted or not.
    let _ = wanted.allow_public_traffic;
    let denies_all = wanted
        .deny_out
        .iter()
        .any(|range| ALL.contains(&range.as_str()));
    if let Some(range) = wanted
        .deny_out
        .iter()
        .find(|range| !ALL.contains(&range.as_str()))
    {
        let message = format!(
            "network.denyOut: {range} alone can't be denied by this server; what it can deny is \
             everything ({})",
            ALL[0]
        );
        return Err(Refusal::bad_request(message));
    }
    if wanted.allow_out.is_empty() {
        let is_off = denies_all || internet == Some(false);
        return Ok(is_off.then_some(Network::Off));
    }
    if !denies_all && internet != Some(false) {
        // What is allowed besides everything is nothing more.
        return Ok(None);
    }
    let mut hosts = Vec::new();
    for host in &wanted.allow_out {
        let pattern: HostPattern = host
            .parse()
            .map_err(|error| Refusal::bad_request(format!("network.allowOut: {error}")))?;
        hosts.push(pattern);
    }
    match &policy.network {
        None => {}
        Some(Network::Hosts(granted)) => {
            if let Some(host) = hosts.iter().find(|host| !granted.contains(host)) {
                let message = format!("network.allowOut: this server doesn't grant {host}");
                return Err(Refusal::bad_request(message));
            }
        }
        Some(_) => {
            let message = "network.allowOut: this server gives sandboxes no network";
            return Err(Refusal::bad_request(message));
        }
    }
    Ok(Some(Network::Hosts(hosts)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn under(policy: &Policy, internet: Option<bool>, json: &str) -> Option<Option<Network>> {
        of(internet, Some(serde_json::from_str(json).unwrap()), policy).ok()
    }

    #[test]
    fn less_network_than_granted_can_be_asked_for() {
        let granted = Policy::network(["pypi.org".parse().unwrap(), "a.org".parse().unwrap()]);
        let one = Network::Hosts(vec!["pypi.org".parse().unwrap()]);
        let allow = r#"{"allowOut":["pypi.org"],"denyOut":["0.0.0.0/0"]}"#;
        assert_eq!(under(&granted, None, allow), Some(Some(one.clone())));
        assert_eq!(
            under(&Policy::unconfined(), Some(false), allow),
            Some(Some(one))
        );
        assert_eq!(under(&granted, Some(false), "{}"), Some(Some(Network::Off)));
        assert_eq!(under(&granted, Some(true), "{}"), Some(None));
        assert_eq!(under(&granted, None, "{}"), Some(None));
    }

    #[test]
    fn what_is_not_granted_or_cannot_be_enforced_is_refused() {
        let granted = Policy::network(["pypi.org".parse().unwrap()]);
        for json in [
            r#"{"allowOut":["other.org"],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"allowOut":["10.0.0.0/8"],"denyOut":["0.0.0.0/0"]}"#,
            r#"{"denyOut":["10.0.0.0/8"]}"#,
            r#"{"rules":{"a.org":[]}}"#,
            r#"{"dnsServers":["1.1.1.1"]}"#,
        ] {
            assert_eq!(under(&granted, None, json), None, "{json}");
        }
        let allow = r#"{"allowOut":["pypi.org"],"denyOut":["0.0.0.0/0"]}"#;
        assert_eq!(under(&Policy::workspace(), None, allow), None);
    }
}
