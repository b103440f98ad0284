//! Writing bodies: the other half of [`Reader`](crate::wire::Reader).

use core::ffi::CStr;

use crate::tasks::Task;
use crate::wire::{Group, Setup, Spawn, Step};

/// Writes a body.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    bytes: Vec<u8>,
}

impl Writer {
    /// An empty body.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What was written.
    #[must_use]
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    fn u32(&mut self, number: u32) -> &mut Self {
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn u64(&mut self, number: u64) -> &mut Self {
        self.bytes.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        // A body of 4 GiB can't be made: its files are bounded by the kernel's argument limit.
        self.u32(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.bytes.extend_from_slice(bytes);
        self.bytes.push(0);
        self
    }

    fn identity(&mut self, identity: Option<(u32, u32)>) -> &mut Self {
        let (uid, gid) = identity.unwrap_or_default();
        self.u32(identity.is_some().into()).u32(uid).u32(gid)
    }

    /// A string.
    pub fn string(&mut self, text: &CStr) -> &mut Self {
        self.bytes(text.to_bytes())
    }

    /// The start of a body for [`Order::Setup`](crate::wire::Order::Setup).
    pub fn setup(&mut self, setup: &Setup<'_>) -> &mut Self {
        self.u64(setup.namespaces)
            .string(setup.uid_map)
            .string(setup.gid_map)
            .u32(setup.deny_setgroups.into())
            .u32(setup.groups)
    }

    /// One of the groups that follow.
    pub fn group(&mut self, group: &Group<'_>) -> &mut Self {
        self.string(group.directory)
            .string(group.stop)
            .string(group.word)
    }

    /// The start of a body for [`Order::Spawn`](crate::wire::Order::Spawn); the programs, the
    /// arguments and the variables follow as strings.
    pub fn spawn(&mut self, spawn: &Spawn<'_>) -> &mut Self {
        let (has_terminal, size) = match spawn.terminal {
            Some((rows, columns)) => (1, u32::from(rows) << 16 | u32::from(columns)),
            None => (0, 0),
        };
        self.string(spawn.directory)
            .u32(spawn.takes_terminal.into())
            .u32(has_terminal)
            .u32(size)
            .u32(spawn.programs)
            .u32(spawn.arguments)
            .u32(spawn.variables)
    }

    /// What a command without a program does; the paths of [`Task::Find`] follow as strings.
    pub fn task(&mut self, task: &Task<'_>) -> &mut Self {
        match *task {
            Task::Read {
                path,
                offset,
                length,
            } => self.u32(1).string(path).u64(offset).u64(length),
            Task::Write { path, mode } => self.u32(2).string(path).u32(mode),
            Task::Look { path } => self.u32(3).string(path),
            Task::List { path } => self.u32(4).string(path),
            Task::MakeDirectory { path } => self.u32(5).string(path),
            Task::Remove { path } => self.u32(6).string(path),
            Task::Move { from, to } => self.u32(7).string(from).string(to),
            Task::Find { count } => self.u32(8).u32(count),
            Task::Place { path, mode, staged } => self.u32(9).string(path).u32(mode).string(staged),
            Task::Offer {
                path,
                offered,
                least_bytes,
            } => self.u32(10).string(path).string(offered).u64(least_bytes),
        }
    }

    /// A step that must succeed.
    pub fn step(&mut self, step: &Step<'_>) -> &mut Self {
        self.any_step(0, step)
    }

    /// A step that may fail; `wall` is the bit that says so, below 64.
    pub fn optional(&mut self, wall: u8, step: &Step<'_>) -> &mut Self {
        self.any_step(u32::from(wall) + 1, step)
    }

    fn any_step(&mut self, wall: u32, step: &Step<'_>) -> &mut Self {
        let tag = match step {
            Step::Mount { .. } => 1,
            Step::Attributes { .. } => 2,
            Step::MakeDirectory { .. } => 3,
            Step::MakeFile { .. } => 4,
            Step::Link { .. } => 5,
            Step::Root { .. } => 6,
            Step::HostName { .. } => 7,
            Step::Loopback => 8,
            Step::OpenDirectory { .. } => 9,
            Step::Listen { .. } => 10,
            Step::Unprivileged { .. } => 11,
            Step::Landlock { .. } => 12,
            Step::Allow { .. } => 13,
            Step::Filter { .. } => 14,
            Step::FilterCommands { .. } => 15,
            Step::Limit { .. } => 16,
            Step::Commands { .. } => 17,
            Step::Give { .. } => 18,
            Step::Staging => 19,
        };
        self.u32(tag).u32(wall);
        match *step {
            Step::Mount {
                source,
                target,
                kind,
                flags,
                data,
            } => self
                .string(source)
                .string(target)
                .string(kind)
                .u64(flags)
                .string(data),
            Step::Attributes { target, set } => self.string(target).u64(set),
            Step::MakeDirectory { path, mode } => self.string(path).u32(mode),
            Step::Give {
                path,
                identity,
                mode,
            } => self.string(path).identity(identity).u32(mode),
            Step::MakeFile { path, content } => self.string(path).string(content),
            Step::Link { path, target } => self.string(path).string(target),
            Step::Root { path } | Step::OpenDirectory { path } => self.string(path),
            Step::HostName { name } => self.string(name),
            Step::Listen { port } => self.u32(port.into()),
            Step::Unprivileged { identity } => self.identity(identity),
            Step::Commands { identity, root } => self.identity(identity).string(root),
            Step::Loopback | Step::Staging => self,
            Step::Landlock { rules } => self.u32(rules),
            Step::Allow { path, access } => self.string(path).u64(access),
            Step::Filter { program } | Step::FilterCommands { program } => self.bytes(program),
            Step::Limit {
                resource,
                soft,
                hard,
            } => self.u32(resource).u64(soft).u64(hard),
        }
    }
}
