//! Description of a sandbox and its enforcement.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{SandboxError, SandboxPath};
use crate::policy::{Limits, Network, Policy, PolicyField, Strictness};

/// Description of a sandbox, fixed when it opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// The backend that opened it.
    pub backend: String,
    /// Its identifier, unique among the backend's sandboxes.
    pub id: String,
    /// Its working directory, absolute, as commands see it.
    pub working_directory: SandboxPath,
    /// How its code is separated from the host.
    pub isolation: Isolation,
    /// Names of the mechanisms that confine it, e.g. `Landlock 7`.
    #[serde(default, rename = "walls")]
    pub mechanisms: Vec<String>,
    /// The enforcement of each field that the policy sets.
    pub enforcement: Vec<Enforcement>,
    /// The network that the policy allows, whether or not that is enforced; `None` if it sets none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// State that survives the death of the owner's process.
    pub survival: Survival,
}

impl SandboxInfo {
    /// Creates the description of a sandbox without isolation, enforcement or survival.
    pub fn new(
        backend: impl Into<String>,
        id: impl Into<String>,
        working_directory: SandboxPath,
    ) -> Self {
        Self {
            backend: backend.into(),
            id: id.into(),
            working_directory,
            isolation: Isolation::None,
            mechanisms: Vec::new(),
            enforcement: Vec::new(),
            network: None,
            survival: Survival::Nothing,
        }
    }

    /// Returns the network to which commands are restricted; `None` if they are not, or that is not enforced.
    pub fn enforced_network(&self) -> Option<&Network> {
        let network = self.network.as_ref();
        network.filter(|_| self.enforces(PolicyField::Network))
    }

    /// Returns whether a policy field is set and enforced.
    pub fn enforces(&self, field: PolicyField) -> bool {
        let mut fields = self.enforcement.iter();
        fields.any(|it| it.field == field && it.by != EnforcedBy::NotEnforced)
    }

    /// Returns the enforcement of what the policy demands, without default limits.
    pub fn demanded(&self) -> impl Iterator<Item = &Enforcement> {
        self.enforcement.iter().filter(|it| !it.is_default)
    }
}

/// How code in a sandbox is separated from the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// Not at all: code has the user's permissions.
    None,
    /// By restrictions of this host's kernel.
    Kernel,
    /// By a container.
    Container,
    /// By running on another machine, physical or virtual.
    Machine,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// The enforcement of one policy field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Enforcement {
    /// The field.
    pub field: PolicyField,
    /// Enforcer of the field.
    pub by: EnforcedBy,
    /// Whether the field is a limit that only a default sets.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_default: bool,
}

impl Enforcement {
    /// Creates an entry.
    pub fn new(field: PolicyField, by: EnforcedBy) -> Self {
        Self {
            field,
            by,
            is_default: false,
        }
    }

    /// Creates the report for a policy by calling `by` for each field that is set.
    pub fn report(policy: &Policy, by: impl Fn(PolicyField) -> EnforcedBy) -> Vec<Self> {
        Self::report_with_defaults(policy, &Limits::default(), by)
    }

    /// Like [`report`](Self::report), with the limits of `defaults` that the policy leaves open.
    pub fn report_with_defaults(
        policy: &Policy,
        defaults: &Limits,
        by: impl Fn(PolicyField) -> EnforcedBy,
    ) -> Vec<Self> {
        let named = policy.fields();
        let mut whole = policy.clone();
        whole.limits = policy.limits.with_defaults(defaults);
        let fields = whole.fields().into_iter();
        fields
            .map(|field| Self {
                is_default: !named.contains(&field),
                ..Self::new(field, by(field))
            })
            .collect()
    }

    /// Whether something demanded is not enforced.
    pub fn is_missing(&self) -> bool {
        self.by == EnforcedBy::NotEnforced && !self.is_default
    }

    /// Returns the report of a policy, if everything is enforced that it demands.
    ///
    /// # Errors
    /// The policy is strict and fields are not enforced: the error that `refuse` makes of them.
    pub fn check_strict(
        policy: &Policy,
        report: Vec<Self>,
        refuse: impl FnOnce(Vec<PolicyField>) -> SandboxError,
    ) -> Result<Vec<Self>, SandboxError> {
        let missing = report.iter().filter(|it| it.is_missing());
        let missing: Vec<_> = missing.map(|it| it.field).collect();
        if missing.is_empty() || policy.strictness == Strictness::BestEffort {
            return Ok(report);
        }
        Err(refuse(missing))
    }
}

/// The mechanism that enforces a policy field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EnforcedBy {
    /// The kernel, for the sandbox as a whole.
    Kernel,
    /// The backend: a container engine, a disposable image, or this process.
    Backend,
    /// The kernel, for each process separately.
    PerProcess,
    /// The backend, by measuring now and then. The limit can be exceeded for a moment.
    Polled,
    /// Nothing.
    NotEnforced,
}

/// State of a sandbox that survives the death of its owner's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Survival {
    /// Nothing that can be reattached.
    Nothing,
    /// The files.
    Workspace,
    /// The files and the processes.
    Processes,
}
