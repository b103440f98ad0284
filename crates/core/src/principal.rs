//! Principals: on whose behalf something runs, and their permission level.

use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Maximum length of an id in bytes.
const MAX_ID_BYTES: usize = 255;

/// The person or program on whose behalf something runs. The program that opens a session or a sandbox says
/// who it is; a model can't.
///
/// ```
/// use cantle_core::principal::{Level, Principal};
///
/// let alice = Principal::new("alice", Level::User)?;
/// assert!(alice.level() >= Level::Guest);
/// # Ok::<(), cantle_core::principal::InvalidPrincipal>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Principal {
    id: PrincipalId,
    level: Level,
}

impl Principal {
    /// Creates a principal.
    ///
    /// # Errors
    /// The id has no or more than 255 bytes, or control characters.
    pub fn new(id: &str, level: Level) -> Result<Self, InvalidPrincipal> {
        if id.is_empty() || id.len() > MAX_ID_BYTES || id.contains(char::is_control) {
            return Err(InvalidPrincipal(format!(
                "the id of a principal has 1 to {MAX_ID_BYTES} bytes and no control characters"
            )));
        }
        Ok(Self {
            id: PrincipalId(id.into()),
            level,
        })
    }

    /// Returns the id.
    pub fn id(&self) -> &PrincipalId {
        &self.id
    }

    /// Returns the level.
    pub fn level(&self) -> Level {
        self.level
    }
}

/// The id of a principal, to which everything is accounted that the principal uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PrincipalId(Arc<str>);

impl PrincipalId {
    /// Returns the id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for PrincipalId {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

display_as_str!(PrincipalId);

/// Rights of a principal, and the requirement of a tool.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Level {
    /// A user who is not known.
    #[default]
    Guest,
    /// A known user.
    User,
    /// An administrator.
    Admin,
    /// The owner of the installation.
    Owner,
}

impl Level {
    /// Returns the refusal of a call if this level, of a tool, is above that of the principal. A tool for
    /// guests needs no principal.
    pub fn refusal(self, tool: &str, principal: Option<&Principal>) -> Option<String> {
        let has = principal.map(Principal::level);
        if self == Self::Guest || has.is_some_and(|has| has >= self) {
            return None;
        }
        let has = has.map_or("none", Self::as_str);
        let requires = self.as_str();
        Some(format!(
            "Permission denied: {tool} requires '{requires}' but user has '{has}'"
        ))
    }
}

names!(Level {
    Guest: "guest",
    User: "user",
    Admin: "admin",
    Owner: "owner",
});

impl FromStr for Level {
    type Err = InvalidPrincipal;

    fn from_str(text: &str) -> Result<Self, InvalidPrincipal> {
        let found = Self::ALL.iter().find(|level| level.as_str() == text);
        found.copied().ok_or_else(|| {
            InvalidPrincipal(format!(
                "`{text}` is no level: use guest, user, admin or owner"
            ))
        })
    }
}

/// An id or a level that is invalid.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidPrincipal(String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_ordered_and_refused_below() {
        let admin = Principal::new("a", Level::Admin).unwrap();
        assert_eq!(Level::Guest.refusal("t", None), None);
        assert_eq!(Level::Admin.refusal("t", Some(&admin)), None);
        assert_eq!(
            Level::Owner.refusal("t", Some(&admin)).unwrap(),
            "Permission denied: t requires 'owner' but user has 'admin'"
        );
        assert_eq!(
            Level::User.refusal("t", None).unwrap(),
            "Permission denied: t requires 'user' but user has 'none'"
        );
    }

    #[test]
    fn ids_and_levels_are_checked() {
        for id in ["", "a\nb", &"x".repeat(256)] {
            assert!(Principal::new(id, Level::Guest).is_err(), "{id:?}");
        }
        assert_eq!("owner".parse::<Level>().unwrap(), Level::Owner);
        let error = "root".parse::<Level>().unwrap_err().to_string();
        assert_eq!(error, "`root` is no level: use guest, user, admin or owner");
    }
}
