//! Requirements on the code in a model's answer.
//!
//! [`GenerationRequirements::feedback`] is what a hook before a tool call refuses the call with.

use std::time::Duration;

use cantle_core::message::ToolCall;

use super::environment::forbidden_modules;
use super::extraction::{CodeCall, extract_code};
use super::legacy::LegacyExecutionOptions;
use super::policy::CapabilityPolicy;
use super::tier::{Mellea, Tier};
use super::{MelleaError, Warning};
use crate::source::SourceFacts;

/// The answer of a model that is validated.
#[derive(Clone, Debug, Default, PartialEq)]
#[expect(clippy::exhaustive_structs, reason = "an answer is text and calls")]
pub struct ModelOutput {
    /// Its text.
    pub text: String,
    /// Its tool calls.
    pub calls: Vec<CodeCall>,
}

impl From<&str> for ModelOutput {
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            calls: Vec::new(),
        }
    }
}

/// The result of a validation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Validation {
    /// Whether the requirement is met.
    pub is_met: bool,
    /// Why; feedback for the model if it is not met.
    pub reason: String,
}

impl Validation {
    fn met(reason: impl Into<String>) -> Self {
        Self {
            is_met: true,
            reason: reason.into(),
        }
    }

    fn unmet(reason: impl Into<String>) -> Self {
        Self {
            is_met: false,
            reason: reason.into(),
        }
    }
}

/// A requirement on the Python code in an answer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Requirement {
    /// There is code.
    PythonCodeExtraction,
    /// The code parses.
    PythonSyntaxValid,
    /// The code may be executed and succeeds.
    PythonExecution(Box<PythonExecutionReq>),
    /// The output of the code is short enough.
    OutputSizeLimit {
        /// Maximum number of characters.
        limit_chars: usize,
        /// Where the code is executed; `static` accepts everything.
        tier: Tier,
    },
    /// Only these modules are imported: `None` allows all, an empty list none. It guides a model and is no boundary.
    ImportRestrictions(Option<Vec<String>>),
    /// Any module may be imported.
    NoImportRestrictions,
}

impl Requirement {
    /// Creates [`Requirement::OutputSizeLimit`]; Mellea's default limit is 10,000.
    ///
    /// # Errors
    /// If the limit is not positive.
    pub fn output_size_limit(limit_chars: i64, tier: Tier) -> Result<Self, MelleaError> {
        Ok(Self::OutputSizeLimit {
            limit_chars: positive("limit_chars", limit_chars)?,
            tier,
        })
    }

    /// Describes the requirement.
    pub fn description(&self) -> String {
        match self {
            Self::PythonCodeExtraction => "The answer must contain Python code.".to_owned(),
            Self::PythonSyntaxValid => "The Python code must have valid syntax.".to_owned(),
            Self::PythonExecution(requirement) => requirement.description(),
            Self::OutputSizeLimit { limit_chars, .. } => {
                format!("The output of the Python code must not exceed {limit_chars} characters.")
            }
            Self::ImportRestrictions(Some(allowed)) => format!(
                "The Python code may only import: {}. (This guides generation; it is not a security boundary.)",
                allowed.join(", ")
            ),
            Self::ImportRestrictions(None) | Self::NoImportRestrictions => {
                "The Python code may import any module.".to_owned()
            }
        }
    }

    /// Validates an answer.
    pub async fn validate(&self, mellea: &Mellea, output: &ModelOutput) -> Validation {
        let Some(code) = extract_code(&output.text, &output.calls) else {
            return Validation::unmet(match self {
                Self::PythonExecution(_) => {
                    "Could not extract Python code for execution: No Python code blocks found"
                }
                _ => "No Python code blocks found",
            });
        };
        let facts = SourceFacts::of(code.as_bytes());
        match self {
            Self::PythonCodeExtraction => Validation::met(code),
            Self::NoImportRestrictions => Validation::met("No import restrictions"),
            Self::PythonSyntaxValid => match &facts.syntax_error {
                None => Validation::met("Python code syntax is valid"),
                Some(error) => Validation::unmet(format!(
                    "Syntax error at line {}: {}",
                    error.line, error.message
                )),
            },
            Self::PythonExecution(requirement) => requirement.validate_code(mellea, &code).await,
            Self::OutputSizeLimit {
                tier: Tier::Static, ..
            } => Validation::met("The static tier skips execution; the output is not checked"),
            Self::OutputSizeLimit { limit_chars, tier } => {
                let requirement = PythonExecutionReq {
                    tier: *tier,
                    max_output_chars: Some(*limit_chars),
                    ..PythonExecutionReq::default()
                };
                requirement.validate_code(mellea, &code).await
            }
            Self::ImportRestrictions(allowed) => restrict_imports(&facts, allowed.as_deref()),
        }
    }
}

fn restrict_imports(facts: &SourceFacts, allowed: Option<&[String]>) -> Validation {
    if allowed.is_none() {
        return Validation::met("No import restrictions");
    }
    if let Some(error) = &facts.syntax_error {
        return Validation::unmet(format!(
            "Imports can't be checked: syntax error at line {}: {}",
            error.line, error.message
        ));
    }
    let mut forbidden = forbidden_modules(facts, allowed);
    // `from . import x` imports a module of that name as likely as not.
    let relative = facts.imports.iter().filter(|it| it.level > 0);
    let names = relative.flat_map(|import| import.names.iter());
    let is_allowed = |name: &&String| allowed.is_some_and(|it| it.contains(name));
    forbidden.extend(names.filter(|name| !is_allowed(name)).cloned());
    forbidden.sort();
    forbidden.dedup();
    match forbidden.is_empty() {
        true => Validation::met("All imports are allowed"),
        false => Validation::unmet(format!(
            "Forbidden imports detected: {}",
            forbidden.join(", ")
        )),
    }
}

/// The requirement that code may be executed and succeeds.
#[derive(Clone, Debug)]
pub struct PythonExecutionReq {
    tier: Tier,
    policy: Option<CapabilityPolicy>,
    allowed_imports: Option<Vec<String>>,
    max_output_chars: Option<usize>,
    warnings: Vec<Warning>,
}

impl Default for PythonExecutionReq {
    /// On the tier `static`, which executes nothing.
    fn default() -> Self {
        Self::new(Tier::Static)
    }
}

impl PythonExecutionReq {
    /// Creates the requirement for a tier.
    pub fn new(tier: Tier) -> Self {
        Self::with_legacy(tier, None, LegacyExecutionOptions::default())
    }

    /// Creates the requirement from a tier, a policy and the deprecated arguments.
    pub fn with_legacy(
        tier: Tier,
        policy: Option<CapabilityPolicy>,
        legacy: LegacyExecutionOptions,
    ) -> Self {
        let mut warnings = Vec::new();
        let (tier, policy) = legacy.apply(tier, policy, &mut warnings);
        Self {
            tier,
            policy,
            allowed_imports: None,
            max_output_chars: None,
            warnings,
        }
    }

    /// Sets the modules that may be imported.
    #[must_use]
    pub fn allowed_imports(mut self, modules: Option<Vec<String>>) -> Self {
        self.allowed_imports = modules;
        self
    }

    /// Sets the maximum number of characters that code may print; the static tier ignores it.
    ///
    /// # Errors
    /// If it is not positive.
    pub fn max_output_chars(mut self, limit: Option<i64>) -> Result<Self, MelleaError> {
        let limit = limit.map(|limit| positive("max_output_chars", limit));
        self.max_output_chars = limit.transpose()?;
        Ok(self)
    }

    /// Returns the tier.
    pub fn tier(&self) -> Tier {
        self.tier
    }

    /// Returns the policy.
    pub fn policy(&self) -> Option<&CapabilityPolicy> {
        self.policy.as_ref()
    }

    /// Returns the maximum number of characters that code may print.
    pub fn output_limit(&self) -> Option<usize> {
        self.max_output_chars
    }

    /// Returns the warnings of its construction.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Describes the requirement.
    pub fn description(&self) -> String {
        let timeout = self.policy.as_ref().map(|policy| policy.timeout);
        let timeout = timeout.unwrap_or_else(|| self.tier.default_timeout());
        let policy = match self.policy {
            Some(_) => " with policy",
            None => ", no policy",
        };
        let seconds = timeout.as_secs();
        let label = match self.tier {
            Tier::Static => "validation only".to_owned(),
            tier if tier.is_docker() => {
                format!("sandbox execution{policy} (timeout: {seconds}s)")
            }
            _ => format!("local execution{policy} (timeout: {seconds}s)"),
        };
        let limit = self.max_output_chars.filter(|_| self.tier != Tier::Static);
        let limit = limit.map(|limit| format!(" Output limit: {limit} chars."));
        format!(
            "The Python code should execute without errors ({label}).{}",
            limit.unwrap_or_default()
        )
    }

    /// Executes code on the tier and validates the result.
    pub async fn validate_code(&self, mellea: &Mellea, code: &str) -> Validation {
        let (policy, imports) = (self.policy.clone(), self.allowed_imports.clone());
        let environment = mellea.make_execution_environment(self.tier, policy, imports, None);
        let environment = match environment.await {
            Ok(environment) => environment,
            Err(error) => return Validation::unmet(error.to_string()),
        };
        let result = environment.execute(code, None).await;
        let reason = result.to_validationresult_reason();
        if !result.success {
            let syntax = result.analysis_result.and_then(|facts| facts.syntax_error);
            return Validation::unmet(match syntax {
                Some(error) => format!("{reason} {error}"),
                None => reason,
            });
        }
        let printed = result.stdout_chars;
        match self.max_output_chars {
            Some(limit) if self.tier != Tier::Static && printed > limit => {
                Validation::unmet(format!(
                    "Output size ({printed} chars) exceeds limit ({limit}). Code execution succeeded, but output \
                     validation failed."
                ))
            }
            _ => Validation::met(reason),
        }
    }
}

fn positive(name: &str, value: i64) -> Result<usize, MelleaError> {
    let positive = usize::try_from(value).ok().filter(|value| *value > 0);
    positive.ok_or_else(|| MelleaError::Value(format!("{name} must be positive, got {value}")))
}

/// The requirements of [`python_code_generation_requirements`], in order.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct GenerationRequirements {
    /// Extraction, syntax, execution, imports.
    pub requirements: Vec<Requirement>,
}

/// Returns the four requirements on generated code. Without a sandbox, execution is on the tier `static`, so that
/// nothing is executed and the time and output limits have no effect.
///
/// # Errors
/// If a limit is not positive.
pub fn python_code_generation_requirements(
    allowed_imports: Option<Vec<String>>,
    output_limit_chars: i64,
    timeout_seconds: i64,
    use_sandbox: bool,
) -> Result<GenerationRequirements, MelleaError> {
    let limit = positive("output_limit_chars", output_limit_chars)?;
    let seconds = positive("timeout_seconds", timeout_seconds)?;
    let execution = match use_sandbox {
        false => PythonExecutionReq::default(),
        true => {
            let policy = CapabilityPolicy {
                timeout: Duration::from_secs(seconds as u64),
                ..CapabilityPolicy::docker()
            };
            let none = LegacyExecutionOptions::default();
            PythonExecutionReq::with_legacy(Tier::Docker, Some(policy), none)
        }
    };
    let execution = PythonExecutionReq {
        max_output_chars: Some(limit),
        allowed_imports: allowed_imports.clone(),
        ..execution
    };
    let imports = match allowed_imports {
        Some(modules) => Requirement::ImportRestrictions(Some(modules)),
        None => Requirement::NoImportRestrictions,
    };
    Ok(GenerationRequirements {
        requirements: vec![
            Requirement::PythonCodeExtraction,
            Requirement::PythonSyntaxValid,
            Requirement::PythonExecution(Box::new(execution)),
            imports,
        ],
    })
}

impl GenerationRequirements {
    /// Validates an answer; returns the requirements that are not met, with their reasons.
    pub async fn unmet<'r>(
        &'r self,
        mellea: &Mellea,
        output: &ModelOutput,
    ) -> Vec<(&'r Requirement, Validation)> {
        let mut unmet = Vec::new();
        for requirement in &self.requirements {
            let validation = requirement.validate(mellea, output).await;
            if !validation.is_met {
                unmet.push((requirement, validation));
            }
        }
        unmet
    }

    /// Returns the feedback with which a hook refuses a tool call whose code does not meet the requirements. A call
    /// without code is none of theirs.
    pub async fn feedback(&self, mellea: &Mellea, call: &ToolCall) -> Option<String> {
        let call = CodeCall {
            name: call.name.clone(),
            arguments: serde_json::from_str(&call.arguments).ok()?,
            schema: None,
        };
        let output = ModelOutput {
            text: String::new(),
            calls: vec![call],
        };
        extract_code(&output.text, &output.calls)?;
        let unmet = self.unmet(mellea, &output).await;
        let reasons: Vec<_> = unmet.into_iter().map(|(_, it)| it.reason).collect();
        (!reasons.is_empty()).then(|| reasons.join("\n"))
    }
}
