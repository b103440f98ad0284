//! Cases: an attack, the sign of its success, and the mechanisms that must stop it.

use std::future::Future;
use std::pin::Pin;

use cantle_backends_local::Mechanism;
use cantle_core::policy::{Policy, PolicyField, Strictness};
use cantle_core::sandbox::{EnforcedBy, SandboxInfo};

use crate::arena::Arena;
use crate::fixture::Fixture;
use crate::mode::Mode;
use crate::result::CommandResult;

/// Either mechanism protects the host's files.
pub(crate) const FILES: &[Mechanism] = &[Mechanism::Namespaces, Mechanism::Landlock];
pub(crate) const NAMESPACES: &[Mechanism] = &[Mechanism::Namespaces];
pub(crate) const FILTER: &[Mechanism] = &[Mechanism::SystemCalls];

/// Whether an attack succeeded; an error if it could not be tried.
pub(crate) type Tried<'a> = Pin<Box<dyn Future<Output = Result<bool, String>> + Send + 'a>>;

/// One attack.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) policy: fn(&Fixture) -> Policy,
    pub(crate) attack: Attack,
    /// Mechanisms of which any one blocks it.
    pub(crate) stopped_by: &'static [Mechanism],
    /// The justification for success without any of them.
    pub(crate) gap: Gap,
    pub(crate) control: NegativeControl,
    /// Only root can do it, even unconfined.
    pub(crate) takes_root: bool,
    /// Mechanisms without which it is too dangerous to try.
    pub(crate) only_with: &'static [Mechanism],
    /// The outcome depends on how commands are run, not on the mechanisms.
    pub(crate) is_structural: bool,
    /// It must not run concurrently with others.
    pub(crate) alone: bool,
}

/// The action of an attack.
#[derive(Clone, Copy)]
pub(crate) enum Attack {
    /// A shell line, and the sign of its success.
    Shell(&'static str, Sign),
    /// A Python script that follows `prelude.py`, and the sign of its success.
    Python(&'static str, Sign),
    /// Arbitrary test code.
    Told(for<'a> fn(&'a Arena) -> Tried<'a>),
}

/// Detects the success of an attack.
pub(crate) type Sign = fn(&Fixture, &CommandResult) -> bool;

/// The reason why an attack may succeed without the mechanisms against it. In any case the sandbox must not
/// report those mechanisms.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gap {
    /// It may not: something else stops it in every mode.
    None,
    /// The report lists the field as not enforced.
    Field(PolicyField),
    /// The policy has no field for it, and the report does not list the mechanism.
    Mechanism,
    /// A known weakness of the remaining mechanisms.
    Known(&'static str),
}

/// How to prove that an attack works without the mechanisms against it.
#[derive(Clone, Copy)]
pub(crate) enum NegativeControl {
    /// In a sandbox with an unconfined policy.
    Unconfined,
    /// In a sandbox without these mechanisms.
    Without(&'static [Mechanism]),
    /// In a sandbox with another policy.
    Under(fn(&Fixture) -> Policy),
    /// As an ordinary child process of the test.
    Raw,
    /// Not at all, for this reason.
    No(&'static str),
}

/// The required outcome of an attack.
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
            control: NegativeControl::Unconfined,
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

    pub(crate) fn custom(name: &'static str, attack: for<'a> fn(&'a Arena) -> Tried<'a>) -> Self {
        Self::new(name, Attack::Told(attack))
    }

    /// A guarantee of the backend's own code, without a mechanism to remove.
    pub(crate) fn promise(name: &'static str, broken: for<'a> fn(&'a Arena) -> Tried<'a>) -> Self {
        Self::custom(name, broken)
            .structural()
            .control(NegativeControl::No("no mechanism of the kernel's keeps it"))
    }

    pub(crate) fn under(self, policy: fn(&Fixture) -> Policy) -> Self {
        Self { policy, ..self }
    }

    /// Sets the mechanisms of which any one stops it, and the justification without them.
    pub(crate) fn stopped_by(self, stopped_by: &'static [Mechanism], gap: Gap) -> Self {
        Self {
            stopped_by,
            gap,
            ..self
        }
    }

    pub(crate) fn control(self, control: NegativeControl) -> Self {
        Self { control, ..self }
    }

    pub(crate) fn takes_root(self) -> Self {
        Self {
            takes_root: true,
            ..self
        }
    }

    pub(crate) fn only_with(self, only_with: &'static [Mechanism]) -> Self {
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

    /// Whether its outcome may differ from that in the previous modes.
    pub(crate) fn depends_on(&self, mode: Mode) -> bool {
        if mode.is_ungrouped() {
            self.stopped_by.contains(&Mechanism::ControlGroups)
        } else if mode.is_structural() {
            true
        } else if mode.has(Mechanism::Identity) {
            !self.is_structural
        } else {
            self.takes_root || self.stopped_by.contains(&Mechanism::Identity)
        }
    }

    /// Returns the required outcome in a sandbox with this report.
    pub(crate) fn expected(&self, mode: Mode, info: &SandboxInfo) -> Expected {
        let stands = |mechanism: &Mechanism| match mechanism {
            // Only if this process may create them, which the report shows.
            Mechanism::ControlGroups => info
                .enforcement
                .iter()
                .any(|said| said.field == PolicyField::Memory && said.by == EnforcedBy::Kernel),
            mechanism => mode.has(*mechanism),
        };
        match self.gap {
            Gap::None => Expected::Blocked,
            _ if self.stopped_by.iter().any(stands) => Expected::Blocked,
            gap => Expected::NotEnforced(gap),
        }
    }

    /// Returns the policy, best effort, so that a sandbox opens without some mechanisms.
    pub(crate) fn policy(&self, fixture: &Fixture) -> Policy {
        let mut policy = (self.policy)(fixture);
        policy.strictness = Strictness::BestEffort;
        policy
    }
}
