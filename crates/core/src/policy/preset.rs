//! Policies by name, for command lines and settings files.

use std::fmt;
use std::str::FromStr;

use super::{InvalidPolicy, Policy};

/// A named policy.
///
/// ```
/// use cantle_core::policy::{Policy, Preset};
///
/// let preset: Preset = "read_only".parse()?;
/// assert_eq!(preset.policy(), Policy::read_only());
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Preset {
    /// [`Policy::workspace`].
    #[default]
    Workspace,
    /// [`Policy::network`], without any allowed host.
    Network,
    /// [`Policy::read_only`].
    ReadOnly,
    /// [`Policy::unconfined`].
    Unconfined,
}

impl Preset {
    /// All presets, most common first.
    pub const ALL: &'static [Self] = &[
        Self::Workspace,
        Self::Network,
        Self::ReadOnly,
        Self::Unconfined,
    ];

    /// Returns the policy.
    pub fn policy(self) -> Policy {
        match self {
            Self::Workspace => Policy::workspace(),
            Self::Network => Policy::network([]),
            Self::ReadOnly => Policy::read_only(),
            Self::Unconfined => Policy::unconfined(),
        }
    }

    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Network => "network",
            Self::ReadOnly => "read_only",
            Self::Unconfined => "unconfined",
        }
    }
}

impl fmt::Display for Preset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Preset {
    type Err = InvalidPolicy;

    fn from_str(text: &str) -> Result<Self, InvalidPolicy> {
        let named = Self::ALL.iter().find(|preset| preset.as_str() == text);
        named.copied().ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|preset| preset.as_str()).collect();
            let advice = format!("use one of {}", names.join(", "));
            InvalidPolicy::new(text, "the name of a policy", advice)
        })
    }
}
