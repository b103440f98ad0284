//! Mellea's own tests, line by line: P and Q and R of its behaviour. A line that differs here has the reason.

mod docker;
mod execution;
mod packages;
mod policies;
mod requirements;

use std::path::PathBuf;
use std::time::Duration;

use cantle_backends_local::LocalBackend;
use cantle_python::compat::mellea::{
    CapabilityPolicy, ExecutionEnvironment, Mellea, MelleaTool, PythonToolOptions, Tier, Warning,
    WarningCategory,
};

/// Mellea's tiers on this machine. The Docker tiers have no backend.
pub(crate) fn mellea() -> Mellea {
    Mellea::new().local(LocalBackend::new())
}

pub(crate) async fn tool(options: PythonToolOptions) -> MelleaTool {
    mellea().python_tool(options).await.expect("a tool")
}

pub(crate) fn on(tier: Tier) -> PythonToolOptions {
    PythonToolOptions {
        tier: Some(tier),
        ..PythonToolOptions::default()
    }
}

pub(crate) async fn environment(
    tier: Tier,
    policy: Option<CapabilityPolicy>,
) -> ExecutionEnvironment {
    let mellea = mellea();
    let made = mellea.make_execution_environment(tier, policy, None, None);
    made.await.expect("an environment")
}

pub(crate) fn seconds(seconds: u64) -> CapabilityPolicy {
    CapabilityPolicy {
        timeout: Duration::from_secs(seconds),
        ..CapabilityPolicy::local()
    }
}

/// The messages of warnings of a category.
pub(crate) fn of(warnings: &[Warning], category: WarningCategory) -> Vec<&str> {
    let chosen = warnings.iter().filter(|it| it.category == category);
    chosen.map(|it| it.message.as_str()).collect()
}

/// A directory for artifacts, which other users may enter.
pub(crate) fn artifact_dir() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("artifacts");
    (directory, path)
}
