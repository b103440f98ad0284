//! What a policy becomes in a container: what the engine is asked for, and what is to be said of it.

use std::collections::HashMap;

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, Mount, MountType,
    ResourcesUlimits,
};
use cantle_core::policy::{Access, Network, Policy, PolicyField, Strictness};
use cantle_core::sandbox::{EnforcedBy, Enforcement, SandboxError};

use crate::engine::{Engine, Limiting};
use crate::options::Options;
use crate::program;

/// Processes of a container whose policy doesn't say how many: a mistake of one line must not take the
/// engine's machine down.
const DEFAULT_PROCESSES: u64 = 4096;

/// Processes of ours in a container, which aren't the code's: the supervisor.
const OWN_PROCESSES: u64 = 1;

/// What the supervisor needs to start commands as another user and to end them. Commands have none.
const SUPERVISOR_CAPABILITIES: [&str; 5] = ["CHOWN", "KILL", "SETGID", "SETPCAP", "SETUID"];

/// How commands are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Means {
    /// By our supervisor, the first process.
    Supervisor,
    /// By the engine, one by one.
    Exec,
}

/// What a container is asked to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'w> {
    pub(crate) options: &'w Options,
    pub(crate) policy: &'w Policy,
    pub(crate) durable: bool,
    pub(crate) means: Means,
}

impl Wanted<'_> {
    /// Whether the files are kept in file systems of limited size, in memory.
    fn is_sized(&self) -> bool {
        let limits = &self.policy.limits;
        !self.durable && limits.disk_bytes.or(limits.inodes).is_some()
    }

    /// Whether the image can't be written, and what can is in memory.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.read_only_root || self.is_sized()
    }

    /// Whether the files outlive our process. Those in memory don't.
    pub(crate) fn keeps(&self) -> bool {
        self.durable && !self.options.read_only_root
    }

    /// Whether nobody makes the working directory, the user's, and one for temporary files, unless we do.
    /// A supervisor does it itself.
    pub(crate) fn lacks_directories(&self) -> bool {
        self.means == Means::Exec && !self.is_read_only()
    }

    /// What enforces each field, or the error of a strict policy that asks for more.
    pub(crate) fn enforcement(&self, engine: &Engine) -> Result<Vec<Enforcement>, SandboxError> {
        let limiting = engine.limiting();
        let report = Enforcement::report(self.policy, |field| self.enforced_by(field, limiting));
        checked(self.policy, report, "")
    }

    fn enforced_by(&self, field: PolicyField, limiting: Limiting) -> EnforcedBy {
        let kernel = |can: bool| {
            if can {
                EnforcedBy::Kernel
            } else {
                EnforcedBy::NotEnforced
            }
        };
        match field {
            // Nothing of the host is in a container; the image is thrown away.
            PolicyField::ReadRoots | PolicyField::WriteRoots => EnforcedBy::Backend,
            PolicyField::Network => kernel(self.policy.network == Some(Network::Off)),
            PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
                EnforcedBy::Backend
            }
            PolicyField::Memory => kernel(limiting.memory),
            PolicyField::Processes => kernel(limiting.processes),
            PolicyField::Disk => kernel(self.is_sized()),
            PolicyField::Inodes => kernel(self.is_sized() && limiting.tmpfs),
            PolicyField::CpuTime | PolicyField::FileSize | PolicyField::OpenFiles => {
                EnforcedBy::PerProcess
            }
            // `Subprocesses`, a working directory that can't be written, and what is newer than this.
            _ => EnforcedBy::NotEnforced,
        }
    }

    /// What the engine is asked for.
    pub(crate) fn body(
        &self,
        image: &str,
        labels: HashMap<String, String>,
        entry: Vec<String>,
        limiting: Limiting,
    ) -> ContainerCreateBody {
        let text = |text: &str| Some(text.to_owned());
        ContainerCreateBody {
            image: text(image),
            // The first process is ours, whatever the image would start.
            entrypoint: Some(entry),
            cmd: Some(Vec::new()),
            user: text(match self.means {
                Means::Supervisor => "0:0",
                Means::Exec => &self.options.user_text,
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
            // When our stream ends, so does its input, and then it.
            stdin_once: Some(true),
            labels: Some(labels),
            host_config: Some(self.host_config(limiting)),
            ..ContainerCreateBody::default()
        }
    }

    fn host_config(&self, limiting: Limiting) -> HostConfig {
        let limits = &self.policy.limits;
        let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        let processes = limits.processes.unwrap_or(DEFAULT_PROCESSES);
        let memory = limits.memory_bytes.filter(|_| limiting.memory).map(number);
        let is_supervised = self.means == Means::Supervisor;
        let mut host = HostConfig {
            auto_remove: Some(!self.keeps()),
            log_config: Some(HostConfigLogConfig {
                typ: Some("none".to_owned()),
                config: None,
            }),
            cap_drop: Some(vec!["ALL".to_owned()]),
            cap_add: is_supervised.then(|| SUPERVISOR_CAPABILITIES.map(str::to_owned).into()),
            security_opt: Some(vec!["no-new-privileges".to_owned()]),
            pids_limit: limiting
                .processes
                .then(|| number(processes.saturating_add(OWN_PROCESSES))),
            memory,
            // As much as memory: no swap beside it.
            memory_swap: memory.filter(|_| limiting.swap),
            nano_cpus: self
                .options
                .cpus
                .filter(|_| limiting.cpu)
                .map(|cpus| (cpus * 1e9) as i64),
            network_mode: match self.policy.network {
                Some(Network::Off) => Some("none".to_owned()),
                _ => self.options.network.clone(),
            },
            runtime: self.options.runtime.clone(),
            readonly_rootfs: Some(self.is_read_only()),
            // Who adopts orphans: our supervisor does it itself.
            init: (!is_supervised).then_some(true),
            ipc_mode: Some("private".to_owned()),
            privileged: Some(false),
            mounts: is_supervised.then(|| vec![program_mount(true)]),
            // With a supervisor each command gets them; it needs more for itself.
            ulimits: (!is_supervised).then(|| self.ulimits()),
            ..HostConfig::default()
        };
        self.add_file_systems(&mut host, limiting);
        host
    }

    fn ulimits(&self) -> Vec<ResourcesUlimits> {
        let limits = &self.policy.limits;
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

    /// File systems in memory, where the root can't be written.
    fn add_file_systems(&self, host: &mut HostConfig, limiting: Limiting) {
        if !self.is_read_only() {
            return;
        }
        let limits = &self.policy.limits;
        // The limit is of all files together: a quarter is for temporary ones, an eighth for shared
        // memory, the rest for the working directory.
        let share = |limit: Option<u64>, parts: u64| {
            let limit = limit.filter(|_| self.is_sized())?;
            Some((limit / 8).saturating_mul(parts).max(1))
        };
        let file_system = |parts: u64, options: String| {
            let mut text = format!("rw,exec,nosuid,nodev,{options}");
            if let Some(size) = share(limits.disk_bytes, parts) {
                text = format!("{text},size={size}");
            }
            if let Some(inodes) = share(limits.inodes, parts).filter(|_| limiting.tmpfs) {
                text = format!("{text},nr_inodes={}", inodes.max(8));
            }
            text
        };
        let (user, group) = self.options.user;
        let own = match self.means {
            // It gives it to the user.
            Means::Supervisor => "mode=0755".to_owned(),
            Means::Exec if limiting.tmpfs => format!("mode=0755,uid={user},gid={group}"),
            // Nobody else is in the container.
            Means::Exec => "mode=0777".to_owned(),
        };
        let own = file_system(if limits.disk_bytes.is_some() { 5 } else { 6 }, own);
        let temporary = file_system(2, "mode=1777".to_owned());
        let tmpfs = [
            (self.options.working_directory.to_string(), own),
            ("/tmp".to_owned(), temporary),
        ];
        host.tmpfs = Some(tmpfs.into());
        let shared = share(limits.disk_bytes, 1);
        host.shm_size = shared.map(|size| i64::try_from(size.min(64 << 20)).unwrap_or(1));
    }
}

/// Our program in a container: on the volume that holds it.
pub(crate) fn program_mount(read_only: bool) -> Mount {
    Mount {
        typ: Some(MountType::VOLUME),
        source: Some(program::volume_name()),
        target: Some(program::DIRECTORY.to_owned()),
        read_only: Some(read_only),
        ..Mount::default()
    }
}

/// What enforces each field of a policy in a container that exists, or the error of a strict policy that
/// asks for more.
pub(crate) fn enforcement_of(
    host: &HostConfig,
    policy: &Policy,
    options: &Options,
    limiting: Limiting,
) -> Result<Vec<Enforcement>, SandboxError> {
    let limits = &policy.limits;
    let kernel = |holds: bool| {
        if holds {
            EnforcedBy::Kernel
        } else {
            EnforcedBy::NotEnforced
        }
    };
    let within = |has: Option<i64>, limit: Option<u64>, more: u64| {
        let has = has
            .filter(|has| *has > 0)
            .and_then(|has| u64::try_from(has).ok());
        has.zip(limit)
            .is_some_and(|(has, limit)| has <= limit.saturating_add(more))
    };
    let sees_host = host.privileged == Some(true)
        || host.binds.iter().flatten().next().is_some()
        || host
            .mounts
            .iter()
            .flatten()
            .any(|mount| mount.typ == Some(MountType::BIND))
        || host.devices.iter().flatten().next().is_some()
        || [&host.pid_mode, &host.ipc_mode]
            .iter()
            .any(|mode| mode.as_deref() == Some("host"));
    let size = |option: &str| {
        let mounts = host.tmpfs.iter().flatten();
        let values = mounts.map(|(_, text)| {
            let mut parts = text.split(',').filter_map(|part| part.split_once('='));
            parts
                .find(|(name, _)| *name == option)
                .and_then(|(_, value)| value.parse::<u64>().ok())
        });
        let sizes: Option<Vec<u64>> = values.collect();
        let is_sealed = host.readonly_rootfs == Some(true);
        sizes
            .filter(|sizes| is_sealed && !sizes.is_empty())
            .map(|sizes| sizes.iter().sum::<u64>())
    };
    let report = Enforcement::report(policy, |field| match field {
        PolicyField::ReadRoots | PolicyField::WriteRoots if !sees_host => EnforcedBy::Backend,
        PolicyField::Network => {
            let is_off = host.network_mode.as_deref() == Some("none");
            kernel(is_off && policy.network == Some(Network::Off))
        }
        PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
            EnforcedBy::Backend
        }
        PolicyField::Memory => {
            kernel(limiting.memory && within(host.memory, limits.memory_bytes, 0))
        }
        PolicyField::Processes => {
            kernel(limiting.processes && within(host.pids_limit, limits.processes, OWN_PROCESSES))
        }
        PolicyField::Disk => kernel(
            size("size")
                .zip(limits.disk_bytes)
                .is_some_and(|(size, limit)| size <= limit),
        ),
        PolicyField::Inodes => kernel(
            size("nr_inodes")
                .zip(limits.inodes)
                .is_some_and(|(size, limit)| size <= limit),
        ),
        PolicyField::CpuTime | PolicyField::FileSize | PolicyField::OpenFiles
            if options.supervised =>
        {
            EnforcedBy::PerProcess
        }
        _ => EnforcedBy::NotEnforced,
    });
    checked(
        policy,
        report,
        " The container's own limits are what it was made with.",
    )
}

/// Refuses a report in which a field of a strict policy isn't enforced.
pub(crate) fn checked(
    policy: &Policy,
    report: Vec<Enforcement>,
    why: &str,
) -> Result<Vec<Enforcement>, SandboxError> {
    let missing: Vec<_> = report
        .iter()
        .filter(|enforcement| enforcement.by == EnforcedBy::NotEnforced)
        .map(|enforcement| enforcement.field)
        .collect();
    if missing.is_empty() || policy.strictness == Strictness::BestEffort {
        return Ok(report);
    }
    let mut advice =
        "Take these fields out of the policy, accept that they aren't enforced (best effort), or \
                      use a backend that enforces them."
            .to_owned();
    if missing.contains(&PolicyField::Network) {
        advice.push_str(
            " A container has a network or none: allowed hosts are enforced by the local backend.",
        );
    }
    if policy.working_directory == Access::ReadOnly {
        advice.push_str(" In a container the working directory can be written; the host can't.");
    }
    advice.push_str(why);
    Err(SandboxError::unenforceable("docker", missing).with_advice(advice))
}
