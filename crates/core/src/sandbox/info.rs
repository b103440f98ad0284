//! What a sandbox says about itself: where it is, and what is really in force.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::SandboxPath;
use crate::policy::{Policy, PolicyField};

/// What a sandbox is, fixed when it opens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct SandboxInfo {
    /// The backend that opened it.
    pub backend: String,
    /// Names it among the backend's sandboxes.
    pub id: String,
    /// Its working directory, absolute, as commands see it.
    pub working_directory: SandboxPath,
    /// How far its code is kept from everything else.
    pub isolation: Isolation,
    /// What it is kept by, in words for people, e.g. `Landlock 7`.
    #[serde(default)]
    pub walls: Vec<String>,
    /// For every field the policy sets, what enforces it.
    pub enforcement: Vec<Enforcement>,
    /// What is left when our process dies.
    pub survival: Survival,
}

impl SandboxInfo {
    /// A sandbox without isolation of which nothing survives and on which nothing is enforced.
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
            walls: Vec::new(),
            enforcement: Vec::new(),
            survival: Survival::Nothing,
        }
    }
}

/// How far code in a sandbox is kept from everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Isolation {
    /// Not at all: code can do what the user can do.
    None,
    /// The kernel restricts it, on this host.
    Kernel,
    /// It runs in a container.
    Container,
    /// It runs on another machine, real or virtual.
    Machine,
}

impl fmt::Display for Isolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Kernel => "kernel",
            Self::Container => "container",
            Self::Machine => "machine",
        })
    }
}

/// What enforces one policy field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Enforcement {
    /// The field.
    pub field: PolicyField,
    /// What enforces it.
    pub by: EnforcedBy,
}

impl Enforcement {
    /// `field` is enforced by `by`.
    #[must_use]
    pub fn new(field: PolicyField, by: EnforcedBy) -> Self {
        Self { field, by }
    }

    /// The report for a policy: for each field that is set, what `by` says of it.
    #[must_use]
    pub fn report(policy: &Policy, by: impl Fn(PolicyField) -> EnforcedBy) -> Vec<Self> {
        policy
            .fields()
            .into_iter()
            .map(|field| Self::new(field, by(field)))
            .collect()
    }
}

/// What enforces a policy field.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum EnforcedBy {
    /// The kernel, for the sandbox as a whole.
    Kernel,
    /// The backend: an engine, a disposable image, or our own process.
    Backend,
    /// The kernel, but for each process by itself.
    PerProcess,
    /// Measured now and then, and acted on.
    Polled,
    /// Nothing.
    NotEnforced,
}

/// What is left of a sandbox when our process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Survival {
    /// Nothing that can be used again.
    Nothing,
    /// The files.
    Workspace,
    /// The files and the processes.
    Processes,
}
