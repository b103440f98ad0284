//! Policies by name, for command lines and settings files.

use std::str::FromStr;

use super::{InvalidPolicy, Policy};

/// A named policy, the most common one first.
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
    /// Returns the policy.
    pub fn policy(self) -> Policy {
        match self {
            Self::Workspace => Policy::workspace(),
            Self::Network => Policy::network([]),
            Self::ReadOnly => Policy::read_only(),
            Self::Unconfined => Policy::unconfined(),
        }
    }
}

names!(Preset {
    Workspace: "workspace",
    Network: "network",
    ReadOnly: "read_only",
    Unconfined: "unconfined",
});

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
