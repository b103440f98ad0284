//! Translation of a policy into a container's configuration, and of a configuration into an enforcement report.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, ResourcesUlimits,
};
use cantle_core::policy::{Access, Limits, Network, Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Enforcement, SandboxError};
use cantle_proxy::ProxySettings;

use super::facts::{ContainerFacts, NO_NETWORK};
use crate::engine::{Engine, SupportedLimits};
use crate::options::Options;
use crate::program;

/// Processes of the container that run none of the sandbox's code: the supervisor.
const OWN_PROCESSES: u64 = 1;

/// Capabilities that the supervisor needs to start and kill another user's commands, which have none.
const SUPERVISOR_CAPABILITIES: [&str; 5] = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"];

/// Options of the tmpfs that covers a volume of a read-only image.
const COVER: &str = "ro,noexec,nosuid,nodev,size=4096,mode=0755";

/// The most inodes that tmpfs accepts: it counts 1024 bytes for each (`BOGO_INODE_SIZE`).
const MAX_INODES: u64 = u64::MAX / 1024;

/// The engine's value for unlimited memory and swap.
const UNLIMITED: i64 = -1;

/// The inputs of a new container's configuration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ContainerSpec<'s> {
    pub(crate) options: &'s Options,
    pub(crate) policy: &'s Policy,
    /// Limits that apply unless the policy names them.
    pub(crate) defaults: &'s Limits,
    pub(crate) durable: bool,
    /// Whether the first process is the supervisor; otherwise the engine starts each command.
    pub(crate) supervised: bool,
    /// The paths at which the image has the engine mount new volumes.
    pub(crate) image_volumes: &'s [String],
}

impl ContainerSpec<'_> {
    /// Whether files are in tmpfs of limited size.
    fn is_sized(&self) -> bool {
        let limits = &self.policy.limits;
        !self.durable && limits.disk_bytes.or(limits.inodes).is_some()
    }

    /// Whether the image is read-only, and writable directories are tmpfs.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only_root || self.is_sized()
    }

    /// Whether files survive this process; those in tmpfs don't.
    pub(crate) fn survives(&self) -> bool {
        self.durable && !self.options.read_only_root
    }

    /// Whether the working directory and `/tmp` have to be created through the engine; the supervisor creates
    /// them itself.
    pub(crate) fn lacks_directories(&self) -> bool {
        !self.supervised && !self.is_read_only()
    }

    /// Reports how each policy field will be enforced.
    ///
    /// # Errors
    /// The policy is strict and a field can't be enforced.
    pub(crate) fn enforcement(&self, engine: &Engine) -> Result<Vec<Enforcement>, SandboxError> {
        let supported = engine.supported_limits();
        let facts = ContainerFacts::planned(self.host_config(supported));
        enforcement(
            &facts,
            self.policy,
            self.defaults,
            supported,
            self.supervised,
            "",
        )
    }

    /// Returns the request that creates the container.
    pub(crate) fn body(
        &self,
        image: &str,
        labels: HashMap<String, String>,
        entry: Vec<String>,
        supported: SupportedLimits,
    ) -> ContainerCreateBody {
        let text = |text: &str| Some(text.to_owned());
        ContainerCreateBody {
            image: text(image),
            entrypoint: Some(entry),
            cmd: Some(Vec::new()),
            user: text(if self.supervised {
                "0:0"
            } else {
                &self.options.user_text
            }),
            working_dir: Some(self.options.working_directory.to_string()),
            hostname: text("sandbox"),
            healthcheck: Some(HealthConfig {
                test: Some(vec!["NONE".to_owned()]),
                ..HealthConfig::default()
            }),
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            open_stdin: Some(true),
            // The end of the attached stream closes stdin, and the first process exits at its end.
            stdin_once: Some(true),
            labels: Some(labels),
            host_config: Some(self.host_config(supported)),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self, supported: SupportedLimits) -> HostConfig {
        let limits = &self.policy.limits.with_defaults(self.defaults);
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let processes = limits.processes.filter(|_| supported.processes);
        let memory = limits.memory_bytes.filter(|_| supported.memory).map(number);
        let mut host = HostConfig {
            auto_remove: Some(!self.survives()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: self
                .supervised
                .then(|| SUPERVISOR_CAPABILITIES.map(str::to_owned).into()),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            pids_limit: processes.map(|limit| number(limit.saturating_add(OWN_PROCESSES))),
            memory,
            // The sum of memory and swap, so there is no swap.
            memory_swap: memory.filter(|_| supported.swap),
            network_mode: match self.policy.network {
                Some(Network::Off) => Some(NO_NETWORK.to_owned()),
                // The supervisor carries connections to the proxy.
                Some(Network::Hosts(_)) if self.supervised => Some(NO_NETWORK.to_owned()),
                _ => self.options.network.clone(),
            },
            runtime: self.options.runtime.clone(),
            readonly_rootfs: Some(self.is_read_only()),
            // An init that reaps orphans; the supervisor does it itself.
            init: (!self.supervised).then_some(true),
            ipc_mode: Some("private".to_owned()),
            privileged: Some(false),
            mounts: self.supervised.then(|| vec![program::mount(true)]),
            // The supervisor needs more itself, and sets them for each command.
            ulimits: (!self.supervised).then(|| ulimits(limits)),
            ..HostConfig::default()
        };
        self.add_tmpfs(&mut host, supported);
        host
    }

    /// Adds tmpfs mounts if the image is read-only.
    fn add_tmpfs(&self, host: &mut HostConfig, supported: SupportedLimits) {
        if !self.is_read_only() {
            return;
        }
        let limits = &self.policy.limits;
        // The disk limit is shared: a quarter for `/tmp`, an eighth for shared memory, the rest for the
        // working directory.
        let share = |limit: Option<u64>, parts: u64| {
            let limit = limit.filter(|_| self.is_sized())?;
            Some((limit / 8).saturating_mul(parts).max(1))
        };
        let file_system = |parts: u64, options: String| {
            let mut text = format!("rw,exec,nosuid,nodev,{options}");
            if let Some(size) = share(limits.disk_bytes, parts) {
                text = format!("{text},size={size}");
            }
            if let Some(inodes) = share(limits.inodes, parts).filter(|_| supported.tmpfs) {
                text = format!("{text},nr_inodes={}", inodes.clamp(8, MAX_INODES));
            }
            text
        };
        let (user, group) = self.options.user;
        let owner = if self.supervised {
            // The supervisor changes its owner.
            "mode=0755".to_owned()
        } else if supported.tmpfs {
            format!("mode=0755,uid={user},gid={group}")
        } else {
            "mode=0777".to_owned()
        };
        let workspace = file_system(if limits.disk_bytes.is_some() { 5 } else { 6 }, owner);
        let temporary = file_system(2, "mode=1777".to_owned());
        // The image's volumes would be writable and unlimited. The engine mounts none where there is a tmpfs.
        let volumes = self.image_volumes.iter().cloned();
        let mut tmpfs: HashMap<_, _> = volumes.map(|path| (path, COVER.to_owned())).collect();
        tmpfs.insert(self.options.working_directory.to_string(), workspace);
        tmpfs.insert("/tmp".to_owned(), temporary);
        host.tmpfs = Some(tmpfs);
        let shared = share(limits.disk_bytes, 1);
        host.shm_size = shared.map(|size| i64::try_from(size.min(64 << 20)).unwrap_or(1));
    }
}

/// The limits that the kernel counts for each process.
fn ulimits(limits: &Limits) -> Vec<ResourcesUlimits> {
    let seconds = limits.cpu_time.map(|time| time.as_secs().max(1));
    let each = [
        ("cpu", seconds),
        ("fsize", limits.file_size_bytes),
        ("nofile", limits.open_files),
    ];
    let ulimit = |(name, limit): (&str, Option<u64>)| {
        let limit = limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX))?;
        Some(ResourcesUlimits {
            name: Some(name.to_owned()),
            soft: Some(limit),
            hard: Some(limit),
        })
    };
    each.into_iter().filter_map(ulimit).collect()
}

/// Note of an [`enforcement`] error where the container exists already.
pub(crate) const EXISTING_CONTAINER: &str =
    " The container's own limits are fixed when it is created.";

/// Reports how each field of a policy, and each default limit, is enforced in a container with this configuration.
///
/// # Errors
/// The policy is strict and a field isn't enforced; `note` is added to the advice.
pub(crate) fn enforcement(
    facts: &ContainerFacts,
    policy: &Policy,
    defaults: &Limits,
    supported: SupportedLimits,
    supervised: bool,
    note: &str,
) -> Result<Vec<Enforcement>, SandboxError> {
    let (host, limits) = (&facts.host, &policy.limits.with_defaults(defaults));
    let within = |value: Option<i64>, limit: Option<u64>| {
        let value = value.and_then(|value| u64::try_from(value).ok());
        value
            .zip(limit)
            .is_some_and(|(value, limit)| 0 < value && value <= limit)
    };
    let ulimits = ulimits(limits);
    let has_ulimit = |name: &str| {
        let hard = |ulimits: &[ResourcesUlimits]| {
            let named = ulimits.iter().find(|it| it.name.as_deref() == Some(name));
            named.and_then(|ulimit| ulimit.hard)
        };
        let actual = host.ulimits.as_deref().and_then(hard);
        actual
            .zip(hard(&ulimits))
            .is_some_and(|(actual, limit)| actual <= limit)
    };
    let report = Enforcement::report_with_defaults(policy, defaults, |field| {
        let by_kernel = match field {
            PolicyField::ReadRoots | PolicyField::WriteRoots | PolicyField::HiddenPaths
                if facts.hides_host() =>
            {
                return EnforcedBy::Backend;
            }
            PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
                return EnforcedBy::Backend;
            }
            // Commands could change whatever the kernel enforces.
            _ if !facts.weaknesses.is_empty() => false,
            PolicyField::CpuTime if supervised || has_ulimit("cpu") => {
                return EnforcedBy::PerProcess;
            }
            PolicyField::FileSize if supervised || has_ulimit("fsize") => {
                return EnforcedBy::PerProcess;
            }
            PolicyField::OpenFiles if supervised || has_ulimit("nofile") => {
                return EnforcedBy::PerProcess;
            }
            PolicyField::Network => match policy.network {
                Some(Network::Off) => facts.is_offline,
                _ => proxy(policy, facts.is_offline && supervised).is_some(),
            },
            PolicyField::Memory => {
                // An engine that can't limit swap has it unlimited in every container.
                let unlimited_swap = supported.swap && host.memory_swap == Some(UNLIMITED);
                supported.memory && !unlimited_swap && within(host.memory, limits.memory_bytes)
            }
            PolicyField::Processes => {
                let limit = limits
                    .processes
                    .map(|limit| limit.saturating_add(OWN_PROCESSES));
                supported.processes && within(host.pids_limit, limit)
            }
            PolicyField::Disk => within(tmpfs_total(facts, "size"), limits.disk_bytes),
            PolicyField::Inodes => within(tmpfs_total(facts, "nr_inodes"), limits.inodes),
            // A read-only working directory, subprocesses, and fields added later.
            _ => false,
        };
        if by_kernel {
            EnforcedBy::Kernel
        } else {
            EnforcedBy::NotEnforced
        }
    });
    Enforcement::check_strict(policy, report, |missing| {
        let exceptions: Vec<_> = facts.exceptions().map(String::as_str).collect();
        let has = match &*exceptions {
            [] => String::new(),
            all => format!(" The container has: {}.", all.join("; ")),
        };
        unenforceable(policy, missing, &format!("{note}{has}"))
    })
}

/// Returns the proxy of a container, if the policy allows hosts; `is_possible` says that it is supervised and has no
/// network.
pub(crate) fn proxy(policy: &Policy, is_possible: bool) -> Option<ProxySettings> {
    match &policy.network {
        Some(Network::Hosts(hosts)) if is_possible => Some(ProxySettings::new(hosts.clone())),
        _ => None,
    }
}

/// Returns the sum of an option over all writable tmpfs mounts, if they are all that can be written and all have it.
fn tmpfs_total(facts: &ContainerFacts, option: &str) -> Option<i64> {
    let host = &facts.host;
    let mounts = host.tmpfs.as_ref().filter(|mounts| !mounts.is_empty())?;
    let value = |options: &String| {
        let mut options = options.split(',').filter_map(|part| part.split_once('='));
        options
            .find(|(name, _)| *name == option)?
            .1
            .parse::<i64>()
            .ok()
    };
    let is_writable = |options: &&String| !options.split(',').any(|option| option == "ro");
    let writable = mounts.values().filter(is_writable);
    let total = writable.map(value).sum::<Option<i64>>();
    total.filter(|_| host.readonly_rootfs == Some(true) && !facts.has_writable_mounts)
}

fn unenforceable(policy: &Policy, missing: Vec<PolicyField>, note: &str) -> SandboxError {
    let mut advice =
        "Remove these fields from the policy, accept that they aren't enforced (best effort), or use a \
         backend that enforces them."
            .to_owned();
    if missing.contains(&PolicyField::Network) {
        advice
            .push_str(" In a container, allowed hosts need the supervisor, and no other network.");
    }
    if policy.working_directory == Access::ReadOnly {
        advice.push_str(" In a container the working directory is writable; the host is not.");
    }
    advice.push_str(note);
    SandboxError::unenforceable("docker", missing).with_advice(advice)
}

#[cfg(test)]
mod tests {
    use cantle_core::policy::Strictness;

    use super::*;

    #[test]
    fn memory_limit_with_unlimited_swap_is_not_enforced() {
        let limit = 64 << 20;
        let mut policy = Policy::unconfined();
        policy.strictness = Strictness::BestEffort;
        policy.limits.memory_bytes = Some(limit);
        let enforced_by = |memory_swap, swap| {
            let supported = SupportedLimits {
                memory: true,
                swap,
                processes: true,
                tmpfs: true,
            };
            let host = HostConfig {
                memory: i64::try_from(limit).ok(),
                memory_swap,
                ..HostConfig::default()
            };
            let facts = ContainerFacts::planned(host);
            let none = Limits::default();
            let report = enforcement(&facts, &policy, &none, supported, true, "").unwrap();
            let memory = report.iter().find(|it| it.field == PolicyField::Memory);
            memory.map(|it| it.by)
        };
        let kernel = Some(EnforcedBy::Kernel);
        assert_eq!(enforced_by(Some(128 << 20), true), kernel);
        assert_eq!(enforced_by(None, true), kernel);
        assert_eq!(enforced_by(Some(-1), false), kernel);
        let not = Some(EnforcedBy::NotEnforced);
        assert_eq!(enforced_by(Some(-1), true), not);
    }
}
