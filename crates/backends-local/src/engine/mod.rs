//! The engine of a sandbox, which runs its commands: `confined` by the kernel, or `portable` on systems
//! without a supervisor.

#[cfg(confined)]
mod confined;
#[cfg(not(confined))]
mod portable;

use cantle_core::policy::{Limits, Policy};
use cantle_core::sandbox::{Enforcement, Isolation, SandboxError};

#[cfg(confined)]
pub(crate) use self::confined::{Engine, StartMark, build};
#[cfg(not(confined))]
pub(crate) use self::portable::{Engine, ProcessGroup, StartMark, build};
use crate::files::Root;

/// The engine of a sandbox, and its description.
#[derive(Debug)]
pub(crate) struct BuiltEngine {
    pub(crate) engine: Engine,
    pub(crate) isolation: Isolation,
    /// The mechanisms in force, for display.
    pub(crate) mechanisms: Vec<String>,
    /// The enforcement of each field that the policy sets.
    pub(crate) enforcement: Vec<Enforcement>,
    /// The limits in force, all but a default of memory.
    pub(crate) limits: Limits,
    /// The user's name, if the sandbox has a user database of its own.
    pub(crate) user: Option<&'static str>,
    /// The variables by which programs find the proxy, if there is one.
    pub(crate) proxy_variables: Vec<(&'static str, String)>,
}

/// Fails if a field of a strict policy isn't enforced; `reasons` explain why.
fn check_enforced(
    policy: &Policy,
    report: Vec<Enforcement>,
    reasons: &[String],
) -> Result<Vec<Enforcement>, SandboxError> {
    Enforcement::check_strict(policy, report, |missing| {
        let mut advice =
            "Take these fields out of the policy, accept that they aren't enforced (best \
                      effort), or use a backend that isolates."
                .to_owned();
        for reason in reasons {
            advice = format!("{advice} This machine: {reason}.");
        }
        SandboxError::unenforceable("local", missing).with_advice(advice)
    })
}

/// Fails if the directory's owner is not `uid`, the user that commands run as.
fn check_owner(root: &Root, uid: u32) -> Result<(), SandboxError> {
    let owner = root.owner_id()?;
    if owner == uid {
        return Ok(());
    }
    let message = format!(
        "the directory `{}` can't be used again: its files are user {owner}'s, and under this policy \
         commands run as user {uid}",
        root.host_paths().base().display()
    );
    Err(SandboxError::unavailable(message).with_advice("Use the policy that it was created under."))
}
