//! Enforcement of policies by the service and by `ulimit`.

use cantle_core::policy::{Access, Limits, Network, Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement, ExitStatus, SandboxError};
use serde_json::{Map, Value, json};

/// Reports how each field of the policy is enforced.
///
/// # Errors
/// The policy is strict and a field isn't enforced.
pub(crate) fn report(policy: &Policy) -> Result<Vec<Enforcement>, SandboxError> {
    let report = Enforcement::report(policy, |field| enforced_by(policy, field));
    Enforcement::check_strict(policy, report, unenforceable)
}

/// The error for a strict policy with these fields.
pub(crate) fn unenforceable(fields: Vec<PolicyField>) -> SandboxError {
    SandboxError::unenforceable(crate::NAME, fields).with_advice(
        "Remove these fields, accept that they aren't enforced (best effort), or use another \
         backend.",
    )
}

/// Corrects a report: the field is not enforced.
pub(crate) fn mark_not_enforced(report: &mut [Enforcement], field: PolicyField) {
    for it in report.iter_mut().filter(|it| it.field == field) {
        it.by = EnforcedBy::NotEnforced;
    }
}

fn enforced_by(policy: &Policy, field: PolicyField) -> EnforcedBy {
    match field {
        // The host's files are on another machine.
        PolicyField::ReadRoots | PolicyField::WriteRoots | PolicyField::HiddenPaths => {
            EnforcedBy::Backend
        }
        PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
            EnforcedBy::Backend
        }
        PolicyField::Network if network(policy).is_some() => EnforcedBy::Backend,
        PolicyField::Subprocesses if policy.subprocesses == Some(true) => EnforcedBy::Backend,
        PolicyField::WorkingDirectory if policy.working_directory == Access::ReadWrite => {
            EnforcedBy::Backend
        }
        PolicyField::CpuTime
        | PolicyField::Memory
        | PolicyField::Processes
        | PolicyField::FileSize
        | PolicyField::OpenFiles => EnforcedBy::PerProcess,
        _ => EnforcedBy::NotEnforced,
    }
}

/// Returns the request's fields for the network policy, if the API can express it.
pub(crate) fn network(policy: &Policy) -> Option<Map<String, Value>> {
    let (name, value) = match policy.network.as_ref()? {
        Network::Hosts(hosts) if !hosts.is_empty() => {
            let names: Vec<String> = hosts.iter().map(ToString::to_string).collect();
            // The API has neither ports nor names that are denied.
            if names.iter().any(|name| name.contains([':', '!'])) {
                return None;
            }
            let network = json!({ "allowOut": names, "denyOut": ["0.0.0.0/0"] });
            ("network", network)
        }
        Network::Off | Network::Hosts(_) => ("allow_internet_access", Value::Bool(false)),
        _ => return None,
    };
    Some(Map::from_iter([(name.to_owned(), value)]))
}

/// Limits of commands: those of the policy, and those set by `ulimit`.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandLimits {
    pub(crate) policy: Limits,
    cpu_seconds: Option<u64>,
    /// Arguments for `ulimit`, such as `t=2 n=64`.
    pub(crate) ulimits: String,
}

impl CommandLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        let cpu_seconds = limits
            .cpu_time
            .map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
        let kibibytes = |bytes: Option<u64>| bytes.map(|bytes| bytes.div_ceil(1024));
        // Rounded down to blocks of 1024 bytes: rounding up would exceed the limit.
        let blocks = limits.file_size_bytes.map(|bytes| bytes / 1024);
        let words = [
            ('t', cpu_seconds),
            ('v', kibibytes(limits.memory_bytes)),
            ('u', limits.processes),
            ('f', blocks),
            ('n', limits.open_files),
        ];
        let words: Vec<String> = words
            .into_iter()
            .filter_map(|(letter, limit)| limit.map(|limit| format!("{letter}={limit}")))
            .collect();
        Self {
            policy: limits.clone(),
            cpu_seconds,
            ulimits: words.join(" "),
        }
    }

    /// Maps death by a limit's signal to the limit.
    pub(crate) fn explain(&self, status: ExitStatus) -> ExitStatus {
        const SIGXCPU: i32 = 24;
        const SIGXFSZ: i32 = 25;
        let reached = |field, limit: Option<u64>| {
            limit.map(|limit| ExitStatus::LimitReached { field, limit })
        };
        let limit = match status {
            ExitStatus::Signal(SIGXCPU) => reached(PolicyField::CpuTime, self.cpu_seconds),
            ExitStatus::Signal(SIGXFSZ) => {
                reached(PolicyField::FileSize, self.policy.file_size_bytes)
            }
            _ => None,
        };
        limit.unwrap_or(status)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use cantle_core::policy::{Limits, Network, Policy};
    use serde_json::{Value, json};

    use super::{CommandLimits, network};

    fn fields(network_policy: Network) -> Option<Value> {
        let mut policy = Policy::unconfined();
        policy.network = Some(network_policy);
        network(&policy).map(Value::Object)
    }

    #[test]
    fn network_policy_becomes_request_fields() {
        let off = json!({ "allow_internet_access": false });
        assert_eq!(fields(Network::Off), Some(off.clone()));
        assert_eq!(fields(Network::Hosts(Vec::new())), Some(off));
        let hosts = ["files.example.com", "*.example.org"].map(|host| host.parse().unwrap());
        let expected = json!({
            "network": { "allowOut": ["files.example.com", "*.example.org"], "denyOut": ["0.0.0.0/0"] }
        });
        assert_eq!(fields(Network::Hosts(hosts.into())), Some(expected));
        let port = "example.org:8443".parse().unwrap();
        assert_eq!(fields(Network::Hosts(vec![port])), None);
    }

    #[test]
    fn limits_use_the_units_of_ulimit() {
        let mut limits = Limits::default();
        limits.cpu_time = Some(Duration::from_millis(1500));
        limits.memory_bytes = Some(512 << 20);
        limits.processes = Some(100);
        limits.file_size_bytes = Some(1_000_000);
        limits.open_files = Some(64);
        assert_eq!(
            CommandLimits::new(&limits).ulimits,
            "t=2 v=524288 u=100 f=976 n=64"
        );
    }
}
