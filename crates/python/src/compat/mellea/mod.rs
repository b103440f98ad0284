//! The code interpreter of Mellea: its tiers, results, messages, warnings, policies and requirements.
//!
//! [`Mellea`] has the backends of the tiers and makes [environments](ExecutionEnvironment) and [tools](MelleaTool).
//! Names and messages are Mellea's. The differences are listed in `docs/python.md`; the most important one is that every
//! field of a [`CapabilityPolicy`] is enforced on the tier `local`.

mod construction;
mod environment;
mod extraction;
mod legacy;
mod policy;
mod requirements;
mod result;
mod tier;
mod tool;

use cantle_core::sandbox::SandboxError;

pub use self::environment::ExecutionEnvironment;
pub use self::extraction::{CodeCall, extract_code, extract_from_call};
pub use self::legacy::LegacyExecutionOptions;
pub use self::policy::{CapabilityPolicy, validate_package_names};
pub use self::requirements::{
    GenerationRequirements, ModelOutput, PythonExecutionReq, Requirement, Validation,
    python_code_generation_requirements,
};
pub use self::result::{ExecutionResult, MelleaArtifact, scan_artifacts, truncate};
pub use self::tier::{CAPABILITIES, Mellea, Tier};
pub use self::tool::{MelleaTool, PythonToolOptions, normalize_export_dir};

/// A warning of Python's `warnings` module, which Mellea issues; here it is part of what was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Warning {
    /// Its category.
    pub category: WarningCategory,
    /// Its message.
    pub message: String,
}

/// The category of a [`Warning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WarningCategory {
    /// `UserWarning`.
    User,
    /// `RuntimeWarning`.
    Runtime,
    /// `DeprecationWarning`.
    Deprecation,
}

impl Warning {
    fn new(category: WarningCategory, message: impl Into<String>) -> Self {
        Self {
            category,
            message: message.into(),
        }
    }
}

/// An exception that Mellea raises.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MelleaError {
    /// `ValueError`: an invalid argument.
    #[error("{0}")]
    Value(String),
    /// `NotImplementedError`: the tier lacks the operation.
    #[error("{0}")]
    NotImplemented(String),
    /// `RuntimeError`: the environment can't do it now.
    #[error("{0}")]
    Runtime(String),
}

impl From<SandboxError> for MelleaError {
    fn from(error: SandboxError) -> Self {
        Self::Runtime(error.to_string())
    }
}
