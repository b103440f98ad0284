//! The tiers, their backends, and what they can do.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::{Policy, PolicyField};
use cantle_core::sandbox::{Backend, Isolation, SandboxContext, SandboxError};

use super::MelleaError;
use super::policy::CapabilityPolicy;
use crate::packages::{PackageRequest, PackageStore};

/// Where and how code is executed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_enums, reason = "Mellea has these")]
pub enum Tier {
    /// Code is analysed only.
    Static,
    /// On this machine, unconfined.
    LocalUnsafe,
    /// On this machine, under a policy.
    #[default]
    Local,
    /// In a container, without a policy.
    DockerUnsafe,
    /// In a container, under a policy.
    Docker,
}

impl Tier {
    /// All tiers.
    pub const ALL: [Self; 5] = [
        Self::Static,
        Self::LocalUnsafe,
        Self::Local,
        Self::DockerUnsafe,
        Self::Docker,
    ];

    /// Returns Mellea's name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Static => "static",
            Self::LocalUnsafe => "local_unsafe",
            Self::Local => "local",
            Self::DockerUnsafe => "docker_unsafe",
            Self::Docker => "docker",
        }
    }

    pub(super) fn is_docker(self) -> bool {
        matches!(self, Self::DockerUnsafe | Self::Docker)
    }

    pub(super) fn is_unsafe(self) -> bool {
        matches!(self, Self::LocalUnsafe | Self::DockerUnsafe)
    }

    /// Returns the policy of a tier that is given none.
    pub(super) fn default_policy(self) -> Option<CapabilityPolicy> {
        match self {
            Self::Local => Some(CapabilityPolicy::local()),
            Self::Docker => Some(CapabilityPolicy::docker()),
            _ => None,
        }
    }

    /// Returns the time limit without a policy.
    pub(super) fn default_timeout(self) -> Duration {
        Duration::from_secs(if self.is_docker() { 60 } else { 30 })
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Tier {
    type Err = MelleaError;

    fn from_str(name: &str) -> Result<Self, MelleaError> {
        let found = Self::ALL.into_iter().find(|tier| tier.as_str() == name);
        found.ok_or_else(|| {
            let valid = Self::ALL.map(|tier| format!("'{tier}'")).join(", ");
            MelleaError::Value(format!(
                "Unknown execution tier '{name}'. Valid tiers: {valid}."
            ))
        })
    }
}

/// The names of what tiers may be capable of.
pub const CAPABILITIES: [&str; 8] = [
    "execute_code",
    "timeout_enforcement",
    "import_allowlist",
    "policy_applied",
    "copy_in",
    "copy_out",
    "package_installation",
    "docker_isolation",
];

/// The backends of the tiers. Immutable; clones are cheap.
#[must_use]
#[derive(Clone, Debug, Default)]
pub struct Mellea {
    local: Option<Arc<dyn Backend>>,
    docker: Option<Arc<dyn Backend>>,
    /// The store that installs packages, and where they come from.
    pub(super) packages: Option<(PackageStore, PackageRequest)>,
    pub(super) python: Option<String>,
}

impl Mellea {
    /// Creates tiers without backends: only `static` works.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the backend of the local tiers.
    pub fn local(mut self, backend: impl Backend + 'static) -> Self {
        self.local = Some(Arc::new(backend));
        self
    }

    /// Sets the backend of the Docker tiers.
    pub fn docker(mut self, backend: impl Backend + 'static) -> Self {
        self.docker = Some(Arc::new(backend));
        self
    }

    /// Sets the store that installs packages, and a request that says where they come from; the policies of
    /// environments say which ones. Without it, a call that needs packages fails.
    pub fn packages(mut self, store: PackageStore, source: PackageRequest) -> Self {
        self.packages = Some((store, source));
        self
    }

    /// Sets the Python to use; `python3` by default.
    pub fn python(mut self, python: impl Into<String>) -> Self {
        self.python = Some(python.into());
        self
    }

    pub(super) fn backend(&self, tier: Tier) -> Option<&Arc<dyn Backend>> {
        match tier {
            Tier::Static => None,
            Tier::LocalUnsafe | Tier::Local => self.local.as_ref(),
            Tier::DockerUnsafe | Tier::Docker => self.docker.as_ref(),
        }
    }

    pub(super) async fn open(
        &self,
        tier: Tier,
        policy: Policy,
    ) -> Result<Arc<dyn cantle_core::sandbox::Sandbox>, SandboxError> {
        let backend = self.backend(tier).ok_or_else(|| {
            SandboxError::unavailable(format!("there is no backend for the tier '{tier}'"))
        })?;
        let context = SandboxContext::new(RunId::new(), policy);
        backend.open(context).await
    }

    /// Returns the compatibility matrix: for each tier, which [`CAPABILITIES`] it has. It opens a sandbox of each backend
    /// and reads its report; a tier whose sandbox does not open has none but the check of imports.
    pub async fn compatibility_matrix(&self) -> BTreeMap<Tier, BTreeMap<&'static str, bool>> {
        let mut matrix = BTreeMap::new();
        for tier in Tier::ALL {
            let mut policy = match tier.default_policy() {
                Some(policy) => policy.for_sandbox(None),
                None => Policy::unconfined(),
            };
            policy.limits.wall_time = Some(tier.default_timeout());
            let mut row: BTreeMap<_, _> = CAPABILITIES.map(|name| (name, false)).into();
            row.insert("import_allowlist", true);
            if let Ok(sandbox) = self.open(tier, policy).await {
                let info = sandbox.info();
                let has_time_limit = info.enforces(PolicyField::WallTime);
                let has_policy =
                    tier.default_policy().is_some() && info.enforces(PolicyField::Network);
                row.insert("execute_code", true);
                row.insert("timeout_enforcement", has_time_limit);
                row.insert("policy_applied", has_policy);
                row.insert("copy_in", tier.is_docker());
                row.insert("copy_out", tier.is_docker());
                row.insert("package_installation", self.packages.is_some());
                row.insert("docker_isolation", info.isolation == Isolation::Container);
                // A sandbox that can't be closed is reported by the backend.
                let _ = sandbox.close().await;
            }
            matrix.insert(tier, row);
        }
        matrix
    }
}
