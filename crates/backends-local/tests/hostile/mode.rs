//! The ways in which sandboxes are opened here, and who opens them.

use std::fmt;

use cantle_backends_local::{LocalBackend, Wall};

/// Who runs the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Root,
    Ordinary,
}

impl Who {
    pub(crate) fn of_this_process() -> Self {
        if rustix::process::geteuid().is_root() {
            Self::Root
        } else {
            Self::Ordinary
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Root => "root",
            Self::Ordinary => "user",
        })
    }
}

/// Walls that are left out, as on a machine that hasn't got them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) without: &'static [Wall],
}

impl Mode {
    /// Those that a user can have.
    pub(crate) fn all(who: Who) -> impl Iterator<Item = Self> {
        const ALL: &[Mode] = &[
            Mode {
                name: "all walls",
                without: &[],
            },
            Mode {
                name: "without namespaces",
                without: &[Wall::Namespaces],
            },
            Mode {
                name: "without Landlock",
                without: &[Wall::Landlock],
            },
            Mode {
                name: "without the filter",
                without: &[Wall::SystemCalls],
            },
            Mode {
                name: "Landlock alone",
                without: &[Wall::Namespaces, Wall::SystemCalls],
            },
            Mode {
                name: "the filter alone",
                without: &[Wall::Namespaces, Wall::Landlock],
            },
            Mode {
                name: "without control groups",
                without: &[Wall::ControlGroups],
            },
            Mode {
                name: "as root inside",
                without: &[Wall::Identity],
            },
        ];
        // What is one user's alone, and what root need not repeat.
        let wanted = move |mode: &Mode| match who {
            Who::Root => mode.without.len() < 2,
            Who::Ordinary => mode.has(Wall::Identity),
        };
        ALL.iter().copied().filter(wanted)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let all = [Who::Root, Who::Ordinary].into_iter().flat_map(Self::all);
        all.into_iter().find(|mode| mode.name == name)
    }

    pub(crate) fn has(self, wall: Wall) -> bool {
        !self.without.contains(&wall)
    }

    /// Whether all that is missing are control groups.
    pub(crate) fn is_ungrouped(self) -> bool {
        self.without == [Wall::ControlGroups]
    }

    /// Whether it is one of the two ways to run commands: in namespaces, and among the host's
    /// processes.
    pub(crate) fn is_structural(self) -> bool {
        self.without.iter().all(|wall| *wall == Wall::Namespaces)
    }

    pub(crate) fn backend(self) -> LocalBackend {
        without(self.without)
    }
}

/// A backend without some walls. Its programs are the system's, which can be seen in any sandbox.
pub(crate) fn without(walls: &[Wall]) -> LocalBackend {
    let backend = LocalBackend::new().with_path("/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    walls
        .iter()
        .fold(backend, |backend, wall| backend.without(*wall))
}
