//! The deprecated arguments of Mellea's execution requirement.

use std::time::Duration;

use super::policy::CapabilityPolicy;
use super::tier::Tier;
use super::{Warning, WarningCategory};

/// The deprecated arguments: what they mean is a tier and a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "Mellea has these")]
pub struct LegacyExecutionOptions {
    /// `timeout`, now a field of the policy.
    pub timeout: Option<Duration>,
    /// `allow_unsafe_execution`, now the tier `local_unsafe`.
    pub allow_unsafe_execution: bool,
    /// `use_sandbox`, now the tier `docker`.
    pub use_sandbox: bool,
}

impl LegacyExecutionOptions {
    /// Translates the arguments to a tier and a policy, with a warning for each.
    pub(super) fn apply(
        self,
        mut tier: Tier,
        mut policy: Option<CapabilityPolicy>,
        warnings: &mut Vec<Warning>,
    ) -> (Tier, Option<CapabilityPolicy>) {
        let mut warn = |message: &str| {
            warnings.push(Warning::new(WarningCategory::Deprecation, message));
        };
        let is_static = tier == Tier::Static;
        if self.allow_unsafe_execution {
            match tier {
                Tier::Static => {
                    warn(
                        "allow_unsafe_execution is deprecated; use execution_tier='local_unsafe'.",
                    );
                    // With a timeout, a tier whose policy has one.
                    tier = match self.timeout {
                        Some(_) => Tier::Local,
                        None => Tier::LocalUnsafe,
                    };
                }
                Tier::DockerUnsafe | Tier::Docker => warn(&format!(
                    "allow_unsafe_execution is deprecated and has no effect on the '{tier}' tier."
                )),
                Tier::Local | Tier::LocalUnsafe => {}
            }
        }
        if self.use_sandbox {
            match tier {
                Tier::Docker => {}
                Tier::DockerUnsafe => {
                    warn(
                        "use_sandbox is deprecated and has no effect on the 'docker_unsafe' tier.",
                    );
                }
                _ => {
                    warn("use_sandbox is deprecated; use execution_tier='docker'.");
                    tier = Tier::Docker;
                }
            }
        }
        if let Some(timeout) = self.timeout {
            match tier {
                Tier::Static => {
                    warn("timeout is deprecated and has no effect on the static tier.");
                }
                Tier::Local | Tier::Docker => {
                    warn("timeout is deprecated; use policy=CapabilityPolicy(timeout=...).");
                    let base = policy.take().or_else(|| tier.default_policy());
                    policy = base.map(|base| CapabilityPolicy { timeout, ..base });
                }
                _ => warn(&format!(
                    "timeout is deprecated and ignored for the '{tier}' tier."
                )),
            }
        }
        // A policy on the static tier is kept, as the caller gave it.
        let policy = match is_static && tier == Tier::Static {
            true => policy,
            false => policy.or_else(|| tier.default_policy()),
        };
        (tier, policy)
    }
}
