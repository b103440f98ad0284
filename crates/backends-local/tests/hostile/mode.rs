//! The modes in which sandboxes are opened, and their user.

use std::fmt;

use cantle_backends_local::{LocalBackend, Mechanism};
use cantle_testkit::lane;

/// The user that runs the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TestUser {
    Root,
    Ordinary,
}

impl TestUser {
    pub(crate) fn of_this_process() -> Self {
        if rustix::process::geteuid().is_root() {
            Self::Root
        } else {
            Self::Ordinary
        }
    }
}

impl fmt::Display for TestUser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Root => "root",
            Self::Ordinary => "user",
        })
    }
}

/// A set of excluded mechanisms, as on a machine without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mode {
    pub(crate) name: &'static str,
    pub(crate) without: &'static [Mechanism],
}

impl Mode {
    /// Returns the modes for a user.
    pub(crate) fn all(who: TestUser) -> impl Iterator<Item = Self> {
        const ALL: &[Mode] = &[
            Mode {
                name: "all mechanisms",
                without: &[],
            },
            Mode {
                name: "without namespaces",
                without: &[Mechanism::Namespaces],
            },
            Mode {
                name: "without Landlock",
                without: &[Mechanism::Landlock],
            },
            Mode {
                name: "without the filter",
                without: &[Mechanism::SystemCalls],
            },
            Mode {
                name: "Landlock alone",
                without: &[Mechanism::Namespaces, Mechanism::SystemCalls],
            },
            Mode {
                name: "the filter alone",
                without: &[Mechanism::Namespaces, Mechanism::Landlock],
            },
            Mode {
                name: "without control groups",
                without: &[Mechanism::ControlGroups],
            },
            Mode {
                name: "as root inside",
                without: &[Mechanism::Identity],
            },
        ];
        let is_full = lane::is_full();
        let wanted = move |mode: &Mode| {
            // The others leave out one mechanism after the other.
            (is_full || mode.is_structural())
                && match who {
                    // Some apply to one user only; root need not repeat the others.
                    TestUser::Root => mode.without.len() < 2,
                    TestUser::Ordinary => mode.has(Mechanism::Identity),
                }
        };
        ALL.iter().copied().filter(wanted)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        let all = [TestUser::Root, TestUser::Ordinary]
            .into_iter()
            .flat_map(Self::all);
        all.into_iter().find(|mode| mode.name == name)
    }

    pub(crate) fn has(self, mechanism: Mechanism) -> bool {
        !self.without.contains(&mechanism)
    }

    /// Whether only control groups are excluded.
    pub(crate) fn is_ungrouped(self) -> bool {
        self.without == [Mechanism::ControlGroups]
    }

    /// Whether it is one of the two basic modes: with namespaces, and among the host's
    /// processes.
    pub(crate) fn is_structural(self) -> bool {
        self.without
            .iter()
            .all(|mechanism| *mechanism == Mechanism::Namespaces)
    }

    pub(crate) fn backend(self) -> LocalBackend {
        without(self.without)
    }
}

/// Creates a backend without some mechanisms. Its programs are the system's, visible in any sandbox.
pub(crate) fn without(mechanisms: &[Mechanism]) -> LocalBackend {
    let backend = LocalBackend::new().with_path("/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin");
    mechanisms
        .iter()
        .fold(backend, |backend, mechanism| backend.without(*mechanism))
}
