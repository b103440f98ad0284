//! From a policy to walls: what is asked of the supervisor, and what is said of it afterwards.
//!
//! There are three ways to run commands. With [namespaces](Mode::Namespaces) they have a view of
//! the file system, processes and a network of their own, and Landlock and a system call filter
//! stand behind that. Where namespaces are forbidden, [Landlock](Mode::Rules) and a stricter filter
//! are what there is. Without either, or where the policy asks for nothing, they run
//! [openly](Mode::Open). Everything is planned here, in order; the supervisor only does it.

mod bpf;
mod filter;
mod limits;
mod rights;
mod steps;
mod view;

use std::ffi::CString;
use std::path::Path;

use cantle_core::policy::{Access, Network, Policy, PolicyField};
use cantle_core::sandbox::{EnforcedBy, Isolation, SandboxError};
use cantle_supervisor::wire::{Ready, Setup, Step};

use self::filter::{Openness, Sockets};
pub(crate) use self::limits::OWN_PROCESSES;
use self::steps::Steps;
use self::view::Site;
pub(crate) use self::view::{TEMPORARY, workspace};
use crate::backend::{Wall, Walls};
use crate::files::{NOBODY, Places};
use crate::groups::Groups;

/// Bits for walls that may be missing.
const LANDLOCK: u8 = 0;
const TERMINALS: u8 = 1;
const FILTER: u8 = 2;

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

/// The port of 127.0.0.1 on which a sandbox finds the proxy.
pub(crate) const PROXY_PORT: u16 = 3128;

/// How commands are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// In namespaces.
    Namespaces,
    /// Among the host's files and processes, under Landlock's rules.
    Rules,
    /// As the user's own programs.
    Open,
}

impl Mode {
    /// The ways to run commands under a policy, the best one first.
    pub(crate) fn candidates(policy: &Policy, walls: Walls) -> Vec<Self> {
        if !is_confined(policy) {
            return vec![Self::Open];
        }
        let mut modes = Vec::new();
        if has_view(policy) && walls.include(Wall::Namespaces) {
            modes.push(Self::Namespaces);
        }
        if walls.include(Wall::Landlock) {
            modes.push(Self::Rules);
        }
        modes.push(Self::Open);
        modes
    }
}

/// Whether a policy asks for a wall.
fn is_confined(policy: &Policy) -> bool {
    policy.read_roots.is_some()
        || policy.write_roots.is_some()
        || policy.network.is_some()
        || policy.working_directory != Access::ReadWrite
        || policy.subprocesses == Some(false)
}

/// Whether commands can have a view of the file system of their own. It is made of what may be read
/// and written; where that is all of it, there is none to be made.
fn has_view(policy: &Policy) -> bool {
    let read = policy.read_roots.iter().flat_map(|roots| &roots.paths);
    let written = policy.write_roots.iter().flatten();
    policy.read_roots.is_some() && read.chain(written).all(|path| path.parent().is_some())
}

/// Who runs a sandbox's commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Whether that is somebody else than our process is.
    pub(crate) is_other: bool,
}

impl Identity {
    /// Our user, or nobody where that would be root.
    pub(crate) fn for_commands(policy: &Policy, walls: Walls) -> Self {
        let (uid, gid) = Self::own();
        let is_root = uid == 0 && is_confined(policy);
        if is_root && walls.include(Wall::Identity) && Self::has_others() {
            return Self {
                uid: NOBODY,
                gid: NOBODY,
                is_other: true,
            };
        }
        Self {
            uid,
            gid,
            is_other: false,
        }
    }

    /// Whether nobody is somebody here: a user namespace may know root alone.
    fn has_others() -> bool {
        let includes = |map: &str| {
            // Each line: the first number here, its number outside, how many.
            map.lines().any(|line| {
                let mut numbers = line.split_whitespace().map(str::parse::<u64>);
                match (numbers.next(), numbers.nth(1)) {
                    (Some(Ok(first)), Some(Ok(count))) => {
                        (first..first + count).contains(&NOBODY.into())
                    }
                    _ => false,
                }
            })
        };
        ["/proc/self/uid_map", "/proc/self/gid_map"]
            .into_iter()
            .all(|map| std::fs::read_to_string(map).is_ok_and(|map| includes(&map)))
    }

    fn own() -> (u32, u32) {
        let uid = rustix::process::geteuid();
        let gid = rustix::process::getegid();
        (uid.as_raw(), gid.as_raw())
    }
}

/// What walls are built for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) identity: Identity,
    pub(crate) walls: Walls,
    /// Where commands see their working directory, where they have a view of their own.
    pub(crate) workspace: &'a Path,
    /// Whether the files may have to outlive the sandbox.
    pub(crate) is_durable: bool,
}

/// What the supervisor is to do.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    /// The body of its first order.
    pub(crate) body: Vec<u8>,
    /// What each step is for; completes "failed to …".
    pub(crate) names: Vec<String>,
    /// Whether the files are on a file system of the sandbox's own, which it hands out.
    pub(crate) has_storage: bool,
    /// Whether it hands out the socket of the proxy.
    pub(crate) has_proxy: bool,
}

impl Plan {
    /// Plans a sandbox.
    pub(crate) fn new(
        mode: Mode,
        wanted: Wanted<'_>,
        places: &Places,
        groups: &Groups,
    ) -> Result<Self, SandboxError> {
        let Wanted {
            policy,
            identity,
            walls,
            workspace,
            is_durable,
        } = wanted;
        let is_confined = is_confined(policy);
        let in_namespaces = mode == Mode::Namespaces;
        let maps = Maps::new(identity);
        let groups = groups.ends();
        let setup = Setup {
            namespaces: match (mode, &policy.network) {
                (Mode::Namespaces, None) => NEW_NAMESPACES,
                (Mode::Namespaces, Some(_)) => NEW_NAMESPACES | NEW_NETWORK,
                _ => 0,
            },
            uid_map: if in_namespaces { &maps.uids } else { c"" },
            gid_map: if in_namespaces { &maps.gids } else { c"" },
            deny_setgroups: in_namespaces && Identity::own().0 != 0,
            groups: u32::try_from(groups.len()).unwrap_or(u32::MAX),
        };
        let mut steps = Steps::new(&setup, &groups);
        let mut plan = Self {
            mode,
            body: Vec::new(),
            names: Vec::new(),
            has_storage: false,
            has_proxy: false,
        };
        if in_namespaces {
            // In memory, which nothing outlives.
            plan.has_storage = view::is_sized(&policy.limits) && !is_durable;
            let site = Site {
                places,
                workspace,
                has_storage: plan.has_storage,
            };
            view::build(&mut steps, policy, identity, site)?;
            steps.add("name the machine", &Step::HostName { name: c"cantle" });
            if let Some(network) = &policy.network {
                steps.add("start the loopback interface", &Step::Loopback);
                if matches!(network, Network::Hosts(_)) {
                    plan.has_proxy = true;
                    let listen = Step::Listen { port: PROXY_PORT };
                    steps.add("listen for the proxy", &listen);
                }
            }
        }
        // Only in a user namespace are a user's processes the sandbox's own.
        limits::build(&mut steps, &policy.limits, is_confined, in_namespaces);
        if is_confined {
            let other = identity.is_other.then_some((identity.uid, identity.gid));
            let identity = Step::Unprivileged { identity: other };
            steps.add("give up privileges", &identity);
            match mode {
                Mode::Namespaces if walls.include(Wall::Landlock) => {
                    steps.landlock(Some(LANDLOCK), &rights::in_view(policy, workspace)?);
                }
                Mode::Rules => steps.landlock(None, &rights::on_host(policy, places)?),
                Mode::Namespaces | Mode::Open => {}
            }
            if walls.include(Wall::SystemCalls) {
                let openness = Openness {
                    sockets: match (&policy.network, mode) {
                        (None, _) | (_, Mode::Namespaces) => Sockets::Ordinary,
                        _ => Sockets::None,
                    },
                    shares_with_host: !in_namespaces,
                    subprocesses: policy.subprocesses != Some(false),
                };
                let program = &filter::program(openness);
                steps.add_optional(FILTER, &Step::Filter { program });
                if policy.subprocesses == Some(false) {
                    let program = &filter::for_single_programs();
                    steps.add("filter commands", &Step::FilterCommands { program });
                }
            }
        }
        (plan.body, plan.names) = steps.finish();
        Ok(plan)
    }
}

/// Who is who in a user namespace.
struct Maps {
    uids: CString,
    gids: CString,
}

impl Maps {
    fn new(identity: Identity) -> Self {
        let (own_uid, own_gid) = Identity::own();
        let map = |own: u32, other: u32| {
            // Ourselves to build, the other one to run commands.
            let mut map = format!("{own} {own} 1\n");
            if other != own {
                map += &format!("{other} {other} 1\n");
            }
            CString::new(map).unwrap_or_default()
        };
        Self {
            uids: map(own_uid, identity.uid),
            gids: map(own_gid, identity.gid),
        }
    }
}

/// What stands, once the supervisor has built it.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each says whether one thing is there"
)]
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    mode: Mode,
    /// Landlock's version; 0 where it isn't in force.
    landlock: u32,
    filter: bool,
    pub(crate) terminals: bool,
    identity: Identity,
    own_network: bool,
    /// Whether the files are on a file system of limited size.
    has_storage: bool,
    /// The fields that control groups limit, and what they are called.
    groups: Option<(Vec<PolicyField>, String)>,
}

impl Standing {
    pub(crate) fn new(
        plan: &Plan,
        wanted: Wanted<'_>,
        groups: &Groups,
        (missing, landlock): (u64, u32),
    ) -> Self {
        let Wanted {
            policy,
            identity,
            walls,
            ..
        } = wanted;
        let has_groups = !groups.is_empty() && missing & (1 << Ready::GROUPS) == 0;
        Self {
            mode: plan.mode,
            landlock,
            filter: is_confined(policy)
                && walls.include(Wall::SystemCalls)
                && missing & (1 << FILTER) == 0,
            terminals: plan.mode == Mode::Namespaces && missing & (1 << TERMINALS) == 0,
            identity,
            own_network: plan.mode == Mode::Namespaces && policy.network.is_some(),
            has_storage: plan.has_storage,
            groups: has_groups.then(|| (groups.fields(), groups.name())),
        }
    }

    fn grouped(&self, field: PolicyField) -> bool {
        let mut groups = self.groups.iter();
        groups.any(|(fields, _)| fields.contains(&field))
    }

    pub(crate) fn isolation(&self) -> Isolation {
        match self.mode {
            Mode::Namespaces | Mode::Rules => Isolation::Kernel,
            Mode::Open => Isolation::None,
        }
    }

    /// The walls, as people call them.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names = Vec::new();
        if self.mode == Mode::Namespaces {
            let network = if self.own_network { ", network" } else { "" };
            names.push(format!("namespaces (user, mount, process, IPC{network})"));
        }
        if self.landlock > 0 {
            names.push(format!("Landlock {}", self.landlock));
        }
        if self.filter {
            names.push("system call filter".to_owned());
        }
        if self.identity.is_other {
            names.push(format!("user {}", self.identity.uid));
        }
        names.extend(self.groups.iter().map(|(_, name)| name.clone()));
        names
    }

    /// What enforces a field of the policy.
    pub(crate) fn enforced_by(&self, field: PolicyField, policy: &Policy) -> EnforcedBy {
        let confined = match self.mode {
            Mode::Namespaces | Mode::Rules => EnforcedBy::Kernel,
            Mode::Open => EnforcedBy::NotEnforced,
        };
        let in_namespaces = match self.mode {
            Mode::Namespaces => EnforcedBy::Kernel,
            Mode::Rules | Mode::Open => EnforcedBy::NotEnforced,
        };
        // Before its third version Landlock lets files be cut short that can't be written.
        let writing = match self.mode {
            Mode::Rules if self.landlock < 3 => EnforcedBy::NotEnforced,
            _ => confined,
        };
        match field {
            PolicyField::ReadRoots => confined,
            // Rules only add up: where everything may be written, that may be, too.
            PolicyField::WorkingDirectory
                if policy.read_roots.is_none() && policy.write_roots.is_none() =>
            {
                EnforcedBy::NotEnforced
            }
            PolicyField::WriteRoots | PolicyField::WorkingDirectory => writing,
            PolicyField::Network => match &policy.network {
                Some(Network::Off) if self.filter => EnforcedBy::Kernel,
                _ => in_namespaces,
            },
            PolicyField::Subprocesses if self.filter || policy.subprocesses == Some(true) => {
                EnforcedBy::Kernel
            }
            PolicyField::Environment | PolicyField::WallTime | PolicyField::Output => {
                EnforcedBy::Backend
            }
            PolicyField::Memory | PolicyField::Processes if self.grouped(field) => {
                EnforcedBy::Kernel
            }
            PolicyField::CpuTime | PolicyField::Memory => EnforcedBy::PerProcess,
            PolicyField::FileSize | PolicyField::OpenFiles => EnforcedBy::Kernel,
            // The kernel counts nobody's processes who is root.
            PolicyField::Processes if self.identity.uid == 0 => EnforcedBy::Polled,
            PolicyField::Processes => match self.mode {
                Mode::Namespaces => EnforcedBy::Kernel,
                Mode::Rules | Mode::Open => EnforcedBy::Polled,
            },
            PolicyField::Disk | PolicyField::Inodes if self.has_storage => EnforcedBy::Kernel,
            PolicyField::Disk | PolicyField::Inodes => EnforcedBy::Polled,
            _ => EnforcedBy::NotEnforced,
        }
    }
}
