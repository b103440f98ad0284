//! Making environments, and what their making warns of or refuses.

use std::path::PathBuf;

use cantle_core::sandbox::SandboxErrorKind;
use tokio::sync::{Mutex, OnceCell};

use super::environment::ExecutionEnvironment;
use super::policy::CapabilityPolicy;
use super::tier::{Mellea, Tier};
use super::{MelleaError, Warning, WarningCategory};

impl Mellea {
    /// Makes an environment. No engine is needed for that, unless `policy` forbids programs on a Docker tier, which is
    /// tried.
    ///
    /// # Errors
    /// If the tier can't enforce the policy; the message names the tier that can.
    pub async fn make_execution_environment(
        &self,
        tier: Tier,
        policy: Option<CapabilityPolicy>,
        allowed_imports: Option<Vec<String>>,
        working_directory: Option<PathBuf>,
    ) -> Result<ExecutionEnvironment, MelleaError> {
        let mut warnings = Vec::new();
        if tier.is_unsafe() {
            let denied = policy
                .as_ref()
                .map(CapabilityPolicy::denied)
                .unwrap_or_default();
            warnings.push(unsafe_warning(tier, &denied));
        }
        let policy = policy.or_else(|| tier.default_policy());
        if tier == Tier::Docker
            && let Some(policy) = policy.as_ref().filter(|it| !it.subprocess_execution)
        {
            self.check_docker(policy).await?;
        }
        Ok(ExecutionEnvironment {
            mellea: self.clone(),
            tier,
            policy,
            allowed_imports,
            working_directory,
            export_dir: None,
            agg: true,
            collects: false,
            session: Mutex::default(),
            packages: OnceCell::new(),
            warnings,
        })
    }

    /// Fails if the Docker backend can't enforce a policy.
    async fn check_docker(&self, policy: &CapabilityPolicy) -> Result<(), MelleaError> {
        let policy = policy.for_sandbox(None);
        let opened = self.open(Tier::Docker, policy).await;
        let sandbox = opened.map_err(|error| match error.kind() {
            SandboxErrorKind::Unenforceable => MelleaError::Value(format!(
                "{error}. The tier 'local' enforces subprocess_execution=False."
            )),
            _ => MelleaError::Runtime(format!("Sandbox execution error: {error}")),
        })?;
        let closed = sandbox.close().await;
        closed.map_err(|error| MelleaError::Runtime(format!("Sandbox execution error: {error}")))
    }
}

/// The warning about a tier that enforces nothing.
fn unsafe_warning(tier: Tier, denied: &[String]) -> Warning {
    let mut message = match tier {
        Tier::LocalUnsafe => {
            "tier 'local_unsafe': the code can read and change all your files and use the network."
                .to_owned()
        }
        _ => format!("tier '{tier}': nothing restricts the code but its container."),
    };
    if !denied.is_empty() {
        message += &format!(
            " These fields of the policy are unenforced and will not restrict it: {}. The tier '{}' enforces them.",
            denied.join(", "),
            if tier.is_docker() { "docker" } else { "local" },
        );
    }
    Warning::new(WarningCategory::User, message)
}
