//! What a case is: an attack, how one sees that it succeeded, and what must stop it.

use std::future::Future;
use std::pin::Pin;

use cantle_backends_local::Wall;
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{EnforcedBy, SandboxInfo};

use crate::arena::Arena;
use crate::fixture::Fixture;
use crate::mode::Mode;
use crate::ran::Ran;

/// Files of the host are kept by either.
pub(crate) const FILES: &[Wall] = &[Wall::Namespaces, Wall::Landlock];
pub(crate) const NAMESPACES: &[Wall] = &[Wall::Namespaces];
pub(crate) const FILTER: &[Wall] = &[Wall::SystemCalls];

/// Whether an attack succeeded; an error where it could not be tried.
pub(crate) type Tried<'a> = Pin<Box<dyn Future<Output = Result<bool, String>> + Send + 'a>>;

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) policy: fn(&Fixture) -> Policy,
    pub(crate) attack: Attack,
    /// Any of these blocks it.
    pub(crate) stopped_by: &'static [Wall],
    /// What is said where none of them is there.
    pub(crate) gap: Gap,
    pub(crate) unwalled: Unwalled,
    /// An ordinary user can't do it, with walls or without.
    pub(crate) takes_root: bool,
    /// Modes in which it is dangerous to try, because nothing would stop it.
    pub(crate) only_with: &'static [Wall],
    /// It depends on how commands are run, not on which walls stand around them.
    pub(crate) is_structural: bool,
    /// It needs the machine for itself.
    pub(crate) alone: bool,
}

/// What is done.
#[derive(Clone, Copy)]
pub(crate) enum Attack {
    /// A line for the shell, and the sign of its success.
    Shell(&'static str, Sign),
    /// A script, after `prelude.py`.
    Python(&'static str, Sign),
    /// Whatever it takes.
    Told(for<'a> fn(&'a Arena) -> Tried<'a>),
}

/// How one sees that an attack has succeeded.
pub(crate) type Sign = fn(&Fixture, &Ran) -> bool;

/// Why an attack may succeed where none of the walls against it stands. That those aren't among the
/// walls of the sandbox's report is always asked.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    /// There is none: something else stops it in every mode.
    None,
    /// The report says that the field is not enforced.
    Field(PolicyField),
    /// The policy has no field for it, and the report doesn't name the wall.
    Wall,
    /// A weakness that stays with the walls that there are, in words.
    Known(&'static str),
}

/// How an attack is tried without its wall.
#[derive(Clone, Copy)]
pub(crate) enum Unwalled {
    /// In a sandbox whose policy asks for nothing.
    Unconfined,
    /// In a sandbox without these walls.
    Without(&'static [Wall]),
    /// Under another policy.
    Under(fn(&Fixture) -> Policy),
    /// As an ordinary child of the test.
    Raw,
    /// Not at all, because.
    No(&'static str),
}

/// What must become of an attack.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Expected {
    Blocked,
    NotEnforced(Gap),
}

impl Case {
    fn new(name: &'static str, attack: Attack) -> Self {
        Self {
            name,
            policy: |_| Policy::workspace(),
            attack,
            stopped_by: &[],
            gap: Gap::None,
            unwalled: Unwalled::Unconfined,
            takes_root: false,
            only_with: &[],
            is_structural: false,
            alone: false,
        }
    }

    pub(crate) fn shell(name: &'static str, line: &'static str, sign: Sign) -> Self {
        Self::new(name, Attack::Shell(line, sign))
    }

    pub(crate) fn python(name: &'static str, script: &'static str, sign: Sign) -> Self {
        Self::new(name, Attack::Python(script, sign))
    }

    pub(crate) fn told(name: &'static str, attack: for<'a> fn(&'a Arena) -> Tried<'a>) -> Self {
        Self::new(name, Attack::Told(attack))
    }

    /// A promise that no wall keeps but our own code: there is nothing to take away.
    pub(crate) fn promise(name: &'static str, broken: for<'a> fn(&'a Arena) -> Tried<'a>) -> Self {
        Self::told(name, broken)
            .structural()
            .unwalled(Unwalled::No("no wall of the kernel's keeps it"))
    }

    pub(crate) fn under(self, policy: fn(&Fixture) -> Policy) -> Self {
        Self { policy, ..self }
    }

    /// Any of these stops it; where there is none, this is said.
    pub(crate) fn stopped_by(self, stopped_by: &'static [Wall], gap: Gap) -> Self {
        Self {
            stopped_by,
            gap,
            ..self
        }
    }

    pub(crate) fn unwalled(self, unwalled: Unwalled) -> Self {
        Self { unwalled, ..self }
    }

    pub(crate) fn takes_root(self) -> Self {
        Self {
            takes_root: true,
            ..self
        }
    }

    pub(crate) fn only_with(self, only_with: &'static [Wall]) -> Self {
        Self { only_with, ..self }
    }

    pub(crate) fn structural(self) -> Self {
        Self {
            is_structural: true,
            ..self
        }
    }

    pub(crate) fn alone(self) -> Self {
        Self {
            alone: true,
            ..self
        }
    }

    /// Whether it may end differently than in the modes before.
    pub(crate) fn depends_on(&self, mode: Mode) -> bool {
        if mode.is_ungrouped() {
            self.stopped_by.contains(&Wall::ControlGroups)
        } else if mode.is_structural() {
            true
        } else if mode.has(Wall::Identity) {
            !self.is_structural
        } else {
            self.takes_root || self.stopped_by.contains(&Wall::Identity)
        }
    }

    /// What must become of it in a sandbox with this report.
    pub(crate) fn expected(&self, mode: Mode, info: &SandboxInfo) -> Expected {
        let stands = |wall: &Wall| match wall {
            // Only where our process may make them, which the report says.
            Wall::ControlGroups => info
                .enforcement
                .iter()
                .any(|said| said.field == PolicyField::Memory && said.by == EnforcedBy::Kernel),
            wall => mode.has(*wall),
        };
        match self.gap {
            Gap::None => Expected::Blocked,
            _ if self.stopped_by.iter().any(stands) => Expected::Blocked,
            gap => Expected::NotEnforced(gap),
        }
    }

    /// The policy, such that a sandbox opens also where walls are missing.
    pub(crate) fn policy(&self, fixture: &Fixture) -> Policy {
        let mut policy = (self.policy)(fixture);
        policy.strictness = Strictness::BestEffort;
        policy
    }
}
