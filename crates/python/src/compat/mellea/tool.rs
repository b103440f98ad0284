//! The tool `python`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::environment::ExecutionEnvironment;
use super::policy::{CapabilityPolicy, validate_package_names};
use super::result::ExecutionResult;
use super::tier::{Mellea, Tier};
use super::{MelleaError, Warning, WarningCategory};
use crate::source::SourceFacts;

/// The time limit of the deprecated tools.
const DEPRECATED_TIMEOUT: Duration = Duration::from_secs(60);

/// The arguments of Mellea's `python_tool`.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::exhaustive_structs,
    reason = "callers set fields over a default, as Mellea's do with keyword arguments"
)]
pub struct PythonToolOptions {
    /// The tier; `local` by default.
    pub tier: Option<Tier>,
    /// Specifiers of packages, in addition to the policy's.
    pub packages: Vec<String>,
    /// The host directory in which code runs, or to which a container's files are exported; created if necessary.
    pub artifact_dir: Option<PathBuf>,
    /// The policy.
    pub policy: Option<CapabilityPolicy>,
    /// The modules that may be imported; `None` for all.
    pub allowed_imports: Option<Vec<String>>,
    /// The tool's name; `python` by default.
    pub name: Option<String>,
    /// Whether matplotlib's backend is left alone. Otherwise the environment selects `Agg`.
    pub suppress_agg: bool,
}

/// A tool that executes Python on a tier.
#[derive(Debug)]
pub struct MelleaTool {
    name: String,
    environment: ExecutionEnvironment,
    /// The time limit of a call, in place of the environment's.
    timeout: Option<Duration>,
    warnings: Vec<Warning>,
}

impl Mellea {
    /// Makes the tool. With export paths on a Docker tier, it opens a container that all calls share.
    ///
    /// # Errors
    /// If a package is no specifier, the tier can't enforce the policy, or the container does not open.
    pub async fn python_tool(&self, options: PythonToolOptions) -> Result<MelleaTool, MelleaError> {
        let tier = options.tier.unwrap_or_default();
        validate_package_names(&options.packages)?;
        let mut policy = options.policy.or_else(|| tier.default_policy());
        if !options.packages.is_empty() {
            let merged = policy.get_or_insert_with(|| CapabilityPolicy {
                timeout: tier.default_timeout(),
                subprocess_execution: true,
                ..CapabilityPolicy::default()
            });
            merged.package_installation = true;
            for package in options.packages {
                if !merged.packages.contains(&package) {
                    merged.packages.push(package);
                }
            }
        }
        let exports = policy
            .as_ref()
            .is_some_and(|policy| !policy.artifact_export_paths.is_empty());
        let artifact_dir = normalize_export_dir(options.artifact_dir);
        let (working_directory, export_dir) = match tier.is_docker() {
            true => (None, artifact_dir),
            false => (artifact_dir, None),
        };
        let environment = self
            .make_execution_environment(tier, policy, options.allowed_imports, working_directory)
            .await?;
        let mut warnings = environment.warnings().to_vec();
        if export_dir.is_some() && !exports {
            let message = "artifact_dir has no effect on Docker tiers without artifact_export_paths in the \
                           policy: no files are copied out of the container.";
            warnings.push(Warning::new(WarningCategory::Runtime, message));
        }
        let mut environment = environment.export_dir(export_dir);
        environment.agg = !options.suppress_agg;
        environment.collects = true;
        if tier.is_docker() && exports {
            environment.enter().await?;
        }
        Ok(MelleaTool {
            name: options.name.unwrap_or_else(|| "python".to_owned()),
            environment,
            timeout: None,
            warnings,
        })
    }

    /// Makes the deprecated tool `code_interpreter`, on the tier `docker_unsafe`.
    ///
    /// # Errors
    /// As [`python_tool`](Self::python_tool).
    pub async fn code_interpreter(&self) -> Result<MelleaTool, MelleaError> {
        self.deprecated("code_interpreter", Tier::DockerUnsafe)
            .await
    }

    /// Makes the deprecated tool `local_code_interpreter`, on the tier `local_unsafe`.
    ///
    /// # Errors
    /// As [`python_tool`](Self::python_tool).
    pub async fn local_code_interpreter(&self) -> Result<MelleaTool, MelleaError> {
        self.deprecated("local_code_interpreter", Tier::LocalUnsafe)
            .await
    }

    async fn deprecated(&self, name: &str, tier: Tier) -> Result<MelleaTool, MelleaError> {
        let options = PythonToolOptions {
            tier: Some(tier),
            name: Some(name.to_owned()),
            ..PythonToolOptions::default()
        };
        let mut tool = self.python_tool(options).await?;
        tool.timeout = Some(DEPRECATED_TIMEOUT);
        let message = format!(
            "{name} is deprecated. Use python_tool with tier='{tier}', or an enforced tier."
        );
        tool.warnings
            .push(Warning::new(WarningCategory::Deprecation, message));
        Ok(tool)
    }
}

impl MelleaTool {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the environment.
    pub fn environment(&self) -> &ExecutionEnvironment {
        &self.environment
    }

    /// Returns the warnings of its construction.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Executes code.
    pub async fn run(&self, code: &str) -> ExecutionResult {
        self.environment.execute(code, self.timeout).await
    }

    /// Returns whether code imports matplotlib, for which Mellea selects `Agg` in the source.
    pub fn needs_matplotlib_preamble(code: &str) -> bool {
        let facts = SourceFacts::of(code.as_bytes());
        let mut modules = facts.imports.iter().filter(|import| import.level == 0);
        modules.any(|import| import.module.split('.').next() == Some("matplotlib"))
    }
}

/// Returns an export directory; an empty path and `.` mean none.
pub fn normalize_export_dir(directory: Option<PathBuf>) -> Option<PathBuf> {
    directory.filter(|it| !it.as_os_str().is_empty() && it != Path::new("."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn deprecated_tools_have_a_time_limit_of_their_own() {
        let tool = Mellea::new().local_code_interpreter().await.unwrap();
        assert_eq!(tool.timeout, Some(Duration::from_secs(60)));
        let options = PythonToolOptions::default();
        let tool = Mellea::new().python_tool(options).await.unwrap();
        assert_eq!(tool.timeout, None);
    }
}
