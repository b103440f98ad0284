//! What of a policy a machine of somebody else's enforces, and how it is asked to.

use std::time::Duration;

use cantle_core::policy::{Access, Limits, Network, Policy, PolicyField, Strictness};
use cantle_core::sandbox::{EnforcedBy, Enforcement, ExitStatus, SandboxError};
use serde_json::{Map, Value, json};

/// What enforces each field that the policy sets.
///
/// # Errors
/// Where the policy is strict and nothing enforces one of them.
pub(crate) fn report(policy: &Policy) -> Result<Vec<Enforcement>, SandboxError> {
    let report = Enforcement::report(policy, |field| enforced_by(policy, field));
    if policy.strictness == Strictness::BestEffort {
        return Ok(report);
    }
    let refused_fields: Vec<PolicyField> = report
        .iter()
        .filter(|it| it.by == EnforcedBy::NotEnforced)
        .map(|it| it.field)
        .collect();
    if refused_fields.is_empty() {
        return Ok(report);
    }
    Err(refused(refused_fields))
}

/// The error where nothing enforces these fields.
pub(crate) fn refused(fields: Vec<PolicyField>) -> SandboxError {
    SandboxError::unenforceable(crate::backend::NAME, fields).with_advice(
        "Leave these fields out, let them be enforced as far as possible (best effort), or take \
         another backend.",
    )
}

/// What was thought to be enforced is not.
pub(crate) fn give_up(report: &mut [Enforcement], field: PolicyField) {
    for it in report.iter_mut().filter(|it| it.field == field) {
        it.by = EnforcedBy::NotEnforced;
    }
}

fn enforced_by(policy: &Policy, field: PolicyField) -> EnforcedBy {
    match field {
        // Nothing of this host is there.
        PolicyField::ReadRoots | PolicyField::WriteRoots => EnforcedBy::Backend,
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

/// What is asked of the service about the network, as far as it can be told.
pub(crate) fn network(policy: &Policy) -> Option<Map<String, Value>> {
    let asked = match policy.network.as_ref()? {
        Network::Off => json!({ "allow_internet_access": false }),
        Network::Hosts(hosts) if hosts.is_empty() => json!({ "allow_internet_access": false }),
        Network::Hosts(hosts) => {
            let names: Vec<String> = hosts.iter().map(ToString::to_string).collect();
            // The service knows names, but no ports of theirs.
            if names.iter().any(|name| name.contains(':')) {
                return None;
            }
            json!({ "network": { "allowOut": names, "denyOut": ["0.0.0.0/0"] } })
        }
        _ => return None,
    };
    match asked {
        Value::Object(asked) => Some(asked),
        _ => None,
    }
}

/// The limits that are kept here, and those that each process takes along.
#[derive(Clone, Debug, Default)]
pub(crate) struct OwnLimits {
    pub(crate) wall_time: Option<Duration>,
    pub(crate) output_bytes: Option<u64>,
    cpu_seconds: Option<u64>,
    file_bytes: Option<u64>,
    /// For `ulimit`: letters and numbers.
    pub(crate) words: String,
}

impl OwnLimits {
    pub(crate) fn new(limits: &Limits) -> Self {
        let cpu_seconds = limits
            .cpu_time
            .map(|time| time.as_secs() + u64::from(time.subsec_nanos() > 0));
        let kibibytes = |bytes: Option<u64>| bytes.map(|bytes| bytes.div_ceil(1024));
        // Less than a block of 1024 bytes is none: rounded up it would be too much.
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
            wall_time: limits.wall_time,
            output_bytes: limits.output_bytes,
            cpu_seconds,
            file_bytes: limits.file_size_bytes,
            words: words.join(" "),
        }
    }

    /// What a death by the kernel was for.
    pub(crate) fn explain(&self, status: ExitStatus) -> ExitStatus {
        const CPU_TIME: i32 = 24;
        const FILE_SIZE: i32 = 25;
        let reached = |field, limit: Option<u64>| {
            limit.map(|limit| ExitStatus::LimitReached { field, limit })
        };
        let limit = match status {
            ExitStatus::Signal(CPU_TIME) => reached(PolicyField::CpuTime, self.cpu_seconds),
            ExitStatus::Signal(FILE_SIZE) => reached(PolicyField::FileSize, self.file_bytes),
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

    use super::{OwnLimits, network};

    fn asked(network_policy: Network) -> Option<Value> {
        let mut policy = Policy::unconfined();
        policy.network = Some(network_policy);
        network(&policy).map(Value::Object)
    }

    #[test]
    fn the_network_is_asked_for_in_the_services_words() {
        let off = json!({ "allow_internet_access": false });
        assert_eq!(asked(Network::Off), Some(off.clone()));
        assert_eq!(asked(Network::Hosts(Vec::new())), Some(off));
        let hosts = ["pypi.org", "*.debian.org"].map(|host| host.parse().unwrap());
        let expected = json!({
            "network": { "allowOut": ["pypi.org", "*.debian.org"], "denyOut": ["0.0.0.0/0"] }
        });
        assert_eq!(asked(Network::Hosts(hosts.into())), Some(expected));
        let port = "example.org:8443".parse().unwrap();
        assert_eq!(asked(Network::Hosts(vec![port])), None);
    }

    #[test]
    fn limits_are_told_in_the_shells_units() {
        let mut limits = Limits::default();
        limits.cpu_time = Some(Duration::from_millis(1500));
        limits.memory_bytes = Some(512 << 20);
        limits.processes = Some(100);
        limits.file_size_bytes = Some(1_000_000);
        limits.open_files = Some(64);
        assert_eq!(
            OwnLimits::new(&limits).words,
            "t=2 v=524288 u=100 f=976 n=64"
        );
    }
}
