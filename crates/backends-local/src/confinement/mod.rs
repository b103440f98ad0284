//! From a policy to a plan for the supervisor, and from its outcome to an enforcement report.
//!
//! There are three modes. With [namespaces](Mode::Namespaces) commands have a private view of the file
//! system, processes and network, backed by Landlock and a system call filter. Where namespaces are
//! forbidden, [Landlock](Mode::Landlock) and a stricter filter confine them. Without either, or if the
//! policy demands nothing, they run [unconfined](Mode::Open). The plan is complete and ordered; the
//! supervisor only performs it.

mod limits;
mod memory;
mod owners;
mod quotas;
mod rights;
mod steps;
mod view;

use std::ffi::CString;
use std::path::Path;

use cantle_core::policy::{Limits, Network, Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Isolation, SandboxError};
use cantle_supervisor::filter::{self, AllowedSockets, FilterOptions};
use cantle_supervisor::wire::{Setup, SetupReply, Step};

use self::owners::MappedRoot;
use self::steps::Steps;
use self::view::SandboxMounts;
pub(crate) use self::view::{TEMPORARY, roots_within, workspace};
use crate::files::{HostPaths, SizedFields};
use crate::groups::Groups;
use crate::identity::Identity;
use crate::mechanism::{Mechanism, Mechanisms};
use crate::mode::{Mode, is_confined};
use crate::storage::Storage;
use crate::supervisor::SetupOutcome;

/// Bits of optional steps.
const LANDLOCK: u8 = 0;
const TERMINALS: u8 = 1;
const FILTER: u8 = 2;
const QUOTAS: u8 = 3;

const NEW_NAMESPACES: u64 = {
    let mounts = 0x0002_0000;
    let control_groups = 0x0200_0000;
    let host_name = 0x0400_0000;
    let ipc = 0x0800_0000;
    let users = 0x1000_0000;
    let processes = 0x2000_0000;
    mounts | control_groups | host_name | ipc | users | processes
};
const NEW_NETWORK: u64 = 0x4000_0000;

/// The input of a [`Plan`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConfinementRequest<'a> {
    pub(crate) policy: &'a Policy,
    /// The policy's limits and the defaults that are enforced as they would be, all but memory.
    pub(crate) limits: &'a Limits,
    pub(crate) identity: Identity,
    pub(crate) mechanisms: Mechanisms,
    /// The path of the working directory inside a private view.
    pub(crate) workspace: &'a Path,
}

/// The orders that build a sandbox.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// The body of the setup order.
    pub(crate) body: Vec<u8>,
    /// The name of each step; completes "failed to …".
    pub(crate) names: Vec<String>,
    /// The medium of the files. It passes out the descriptor of a file system.
    pub(crate) storage: Storage,
}

impl Plan {
    /// Plans a sandbox.
    pub(crate) fn new(
        (mode, storage): (Mode, Storage),
        request: ConfinementRequest<'_>,
        paths: &HostPaths,
        groups: &Groups,
    ) -> Result<Self, SandboxError> {
        let ConfinementRequest {
            policy,
            limits,
            identity,
            workspace,
            ..
        } = request;
        let is_confined = is_confined(policy);
        let in_namespaces = mode == Mode::Namespaces;
        let (uid_map, gid_map) = id_maps(identity);
        let shared_group = groups.shared_directory().unwrap_or_default();
        let has_group = groups.has_version_two();
        let groups = groups.cleanups();
        let mapped_roots = match in_namespaces {
            true => {
                let write_roots = policy.write_roots.as_deref().unwrap_or_default();
                MappedRoot::of(view::targets(write_roots)?, identity)?
            }
            false => Vec::new(),
        };
        let setup = Setup {
            namespaces: match (mode, &policy.network) {
                (Mode::Namespaces, None) => NEW_NAMESPACES,
                (Mode::Namespaces, Some(_)) => NEW_NAMESPACES | NEW_NETWORK,
                _ => 0,
            },
            uid_map: if in_namespaces { &uid_map } else { c"" },
            gid_map: if in_namespaces { &gid_map } else { c"" },
            deny_setgroups: in_namespaces && Identity::current().0 != 0,
            groups: u32::try_from(groups.len()).unwrap_or(u32::MAX),
            mapped: u32::try_from(mapped_roots.len()).unwrap_or(u32::MAX),
            shared_group: &shared_group,
            has_image: storage == Storage::Image,
            has_group,
        };
        let mapped: Vec<_> = mapped_roots.iter().map(MappedRoot::for_guard).collect();
        let mut steps = Steps::new(&setup, &groups, &mapped);
        if in_namespaces {
            quotas::build(&mut steps);
            let mounts = SandboxMounts {
                paths,
                workspace,
                storage,
                mapped_roots: &mapped_roots,
            };
            view::build(&mut steps, policy, identity, mounts)?;
            steps.add("set the host name", &Step::Hostname { name: c"cantle" });
            if let Some(network) = &policy.network {
                steps.add("start the loopback interface", &Step::Loopback);
                if matches!(network, Network::Hosts(_)) {
                    let listen = Step::Listen {
                        port: cantle_proxy::PORT,
                    };
                    steps.add("listen for the proxy", &listen);
                }
            }
        }
        // Only in a user namespace do all of the user's processes belong to the sandbox.
        limits::build(&mut steps, limits, is_confined, in_namespaces);
        if is_confined {
            restrict(&mut steps, mode, request, paths)?;
        }
        let (body, names) = steps.finish();
        Ok(Self {
            mode,
            body,
            names,
            storage,
        })
    }
}

/// Adds the steps that restrict init, and with it all commands.
fn restrict(
    steps: &mut Steps,
    mode: Mode,
    request: ConfinementRequest<'_>,
    paths: &HostPaths,
) -> Result<(), SandboxError> {
    let ConfinementRequest {
        policy,
        identity,
        mechanisms,
        workspace,
        ..
    } = request;
    let other = identity.is_other.then_some((identity.uid, identity.gid));
    let identity = Step::DropPrivileges { identity: other };
    steps.add("drop privileges", &identity);
    match mode {
        Mode::Namespaces if mechanisms.include(Mechanism::Landlock) => {
            steps.landlock(Some(LANDLOCK), &rights::in_view(policy, workspace)?);
        }
        Mode::Landlock => steps.landlock(None, &rights::on_host(policy, paths)?),
        Mode::Namespaces | Mode::Open => {}
    }
    if mechanisms.include(Mechanism::SystemCalls) {
        let options = FilterOptions {
            sockets: match (&policy.network, mode) {
                (None, _) | (_, Mode::Namespaces) => AllowedSockets::Ordinary,
                _ => AllowedSockets::PairsOnly,
            },
            shares_with_host: mode != Mode::Namespaces,
            subprocesses: policy.subprocesses != Some(false),
            // In files that others can execute, they would let commands act as their owner.
            set_id_modes: policy.write_roots.as_ref().is_some_and(Vec::is_empty),
        };
        let program = &filter::program(options);
        steps.add_optional(FILTER, &Step::Filter { program });
        if policy.subprocesses == Some(false) {
            let program = &filter::without_subprocesses();
            steps.add("filter commands", &Step::CommandFilter { program });
        }
    }
    Ok(())
}

/// Returns the user and the group mapping of a user namespace.
fn id_maps(identity: Identity) -> (CString, CString) {
    let (own_uid, own_gid) = Identity::current();
    let map = |own: u32, other: u32| {
        // This user performs the setup, the other one runs commands.
        let mut map = format!("{own} {own} 1\n");
        if other != own {
            map += &format!("{other} {other} 1\n");
        }
        CString::new(map).unwrap_or_default()
    };
    (map(own_uid, identity.uid), map(own_gid, identity.gid))
}

/// The mechanisms in force in a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct EnforcementState {
    mode: Mode,
    /// The Landlock ABI version in force; 0 for none.
    landlock: u32,
    pub(crate) has_filter: bool,
    pub(crate) has_terminals: bool,
    identity: Identity,
    pub(crate) has_network: bool,
    storage: Storage,
    /// The fields that the size of the files' file system limits.
    sized: SizedFields,
    /// The fields that control groups limit.
    limited_by_groups: Vec<PolicyField>,
}

impl EnforcementState {
    pub(crate) fn new(
        plan: &Plan,
        request: ConfinementRequest<'_>,
        groups: &Groups,
        outcome: &SetupOutcome,
    ) -> Self {
        let ConfinementRequest {
            policy,
            identity,
            mechanisms,
            ..
        } = request;
        let succeeded = |bit: u8| outcome.missing & (1 << bit) == 0;
        let in_namespaces = plan.mode == Mode::Namespaces;
        Self {
            mode: plan.mode,
            landlock: outcome.landlock,
            has_filter: is_confined(policy)
                && mechanisms.include(Mechanism::SystemCalls)
                && succeeded(FILTER),
            has_terminals: in_namespaces && succeeded(TERMINALS),
            identity,
            has_network: in_namespaces && policy.network.is_some(),
            storage: plan.storage,
            sized: match (plan.storage, outcome.opened.first()) {
                (Storage::Memory, _) => SizedFields {
                    disk: true,
                    inodes: true,
                },
                (Storage::Image, Some(mounted)) => SizedFields::of(mounted, request.limits),
                _ => SizedFields::default(),
            },
            limited_by_groups: match succeeded(SetupReply::GROUPS) {
                true => groups.limits().fields(),
                false => Vec::new(),
            },
        }
    }

    pub(crate) fn isolation(&self) -> Isolation {
        match self.mode {
            Mode::Namespaces | Mode::Landlock => Isolation::Kernel,
            Mode::Open => Isolation::None,
        }
    }

    /// Returns the names of the mechanisms, for display.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.mode == Mode::Namespaces {
            let network = if self.has_network { ", network" } else { "" };
            names.push(format!("namespaces (user, mount, process, IPC{network})"));
        }
        if self.landlock > 0 {
            names.push(format!("Landlock {}", self.landlock));
        }
        if self.has_filter {
            names.push("system call filter".to_owned());
        }
        if self.identity.is_other {
            names.push(format!("user {}", self.identity.uid));
        }
        if !self.limited_by_groups.is_empty() {
            let fields = self.limited_by_groups.iter().map(|field| field.as_str());
            let fields: Vec<_> = fields.collect();
            names.push(format!("control groups ({})", fields.join(", ")));
        }
        if self.storage == Storage::Image {
            names.push("disk image".to_owned());
        }
        names
    }

    /// Returns the enforcement of a field of the policy.
    pub(crate) fn enforced_by(&self, field: PolicyField, policy: &Policy) -> EnforcedBy {
        let confined = match self.mode {
            Mode::Namespaces | Mode::Landlock => EnforcedBy::Kernel,
            Mode::Open => EnforcedBy::NotEnforced,
        };
        let in_namespaces = match self.mode {
            Mode::Namespaces => EnforcedBy::Kernel,
            Mode::Landlock | Mode::Open => EnforcedBy::NotEnforced,
        };
        // Landlock does not restrict truncation before version 3.
        let writing = match self.mode {
            Mode::Landlock if self.landlock < 3 => EnforcedBy::NotEnforced,
            _ => confined,
        };
        match field {
            PolicyField::ReadRoots => confined,
            // Rules only add rights: with all files writable, the working directory is, too.
            PolicyField::WorkingDirectory
                if policy.read_roots.is_none() && policy.write_roots.is_none() =>
            {
                EnforcedBy::NotEnforced
            }
            // Landlock can't take away what it has allowed above.
            PolicyField::WriteRoots if view::has_read_only_parts(policy) => in_namespaces,
            PolicyField::WriteRoots | PolicyField::WorkingDirectory => writing,
            PolicyField::HiddenPaths => in_namespaces,
            PolicyField::Network => match &policy.network {
                Some(Network::Off) if self.has_filter => EnforcedBy::Kernel,
                _ => in_namespaces,
            },
            PolicyField::Subprocesses if self.has_filter || policy.subprocesses == Some(true) => {
                EnforcedBy::Kernel
            }
            PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
                EnforcedBy::Backend
            }
            PolicyField::Memory | PolicyField::Processes
                if self.limited_by_groups.contains(&field) =>
            {
                EnforcedBy::Kernel
            }
            // A default of each process could refuse what programs reserve and never use.
            PolicyField::Memory if policy.limits.memory_bytes.is_none() => EnforcedBy::NotEnforced,
            PolicyField::CpuTime | PolicyField::Memory => EnforcedBy::PerProcess,
            PolicyField::FileSize | PolicyField::OpenFiles => EnforcedBy::Kernel,
            // The kernel does not count root's processes.
            PolicyField::Processes if self.identity.uid == 0 => EnforcedBy::Polled,
            PolicyField::Processes => match self.mode {
                Mode::Namespaces => EnforcedBy::Kernel,
                Mode::Landlock | Mode::Open => EnforcedBy::Polled,
            },
            PolicyField::Disk if self.sized.disk => EnforcedBy::Kernel,
            PolicyField::Inodes if self.sized.inodes => EnforcedBy::Kernel,
            PolicyField::Disk | PolicyField::Inodes => EnforcedBy::Polled,
            _ => EnforcedBy::NotEnforced,
        }
    }
}
