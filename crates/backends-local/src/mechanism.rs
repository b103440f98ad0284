//! The mechanisms of the kernel that confine code.

/// A mechanism of the kernel that confines code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Mechanism {
    /// Namespaces: private files, processes, network and users.
    Namespaces,
    /// Landlock: rules for files, signals and sockets.
    Landlock,
    /// A system call filter (seccomp).
    SystemCalls,
    /// An unprivileged user, if this process is root's.
    Identity,
    /// Control groups: limits for all processes together, if this process may create them.
    ControlGroups,
    /// File systems of limited size in files, if this process is root's.
    DiskImages,
}

/// The mechanisms that may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mechanisms {
    excluded: u8,
}

impl Mechanisms {
    pub(crate) fn without(self, mechanism: Mechanism) -> Self {
        Self {
            excluded: self.excluded | 1 << mechanism as u8,
        }
    }

    #[cfg(confined)]
    pub(crate) fn include(self, mechanism: Mechanism) -> bool {
        self.excluded & 1 << mechanism as u8 == 0
    }
}
