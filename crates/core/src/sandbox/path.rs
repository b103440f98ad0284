//! Paths inside a sandbox.
//!
//! A path is absolute or relative to the working directory chosen at open. It is normalised here,
//! once; what it *means* is decided by the kernel or inside the sandbox, never by comparing text:
//! a link may lead anywhere, and the backend refuses to follow it out.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A path inside a sandbox: normalised bytes, without NUL, that does not climb above its start.
///
/// ```
/// use cantle_core::sandbox::SandboxPath;
///
/// let path: SandboxPath = "data//./raw/../table.csv".parse()?;
/// assert_eq!(path.to_string(), "data/table.csv");
/// assert!("../secret".parse::<SandboxPath>().is_err());
/// # Ok::<(), cantle_core::sandbox::InvalidPath>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SandboxPath {
    absolute: bool,
    /// Components joined by `/`, without a leading or trailing one; empty for the start itself.
    bytes: Vec<u8>,
}

impl SandboxPath {
    /// The working directory.
    #[must_use]
    pub fn working_directory() -> Self {
        Self {
            absolute: false,
            bytes: Vec::new(),
        }
    }

    /// Takes a path apart and puts it together without `.`, `..` and doubled slashes.
    ///
    /// # Errors
    /// [`InvalidPath`] where it holds NUL or climbs above its start.
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, InvalidPath> {
        let path = path.as_ref();
        let invalid = |problem| InvalidPath {
            path: lossy(path),
            problem,
        };
        if path.contains(&0) {
            return Err(invalid(Problem::Nul));
        }
        let mut components: Vec<&[u8]> = Vec::new();
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    components.pop().ok_or_else(|| invalid(Problem::Escapes))?;
                }
                name => components.push(name),
            }
        }
        Ok(Self {
            absolute: path.first() == Some(&b'/'),
            bytes: components.join(&b'/'),
        })
    }

    /// A path from one of the host's own, e.g. a relative one found while walking a directory.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_os(path: impl AsRef<OsStr>) -> Result<Self, InvalidPath> {
        Self::new(path.as_ref().as_encoded_bytes())
    }

    /// Whether it starts at the root instead of the working directory.
    #[must_use]
    pub fn is_absolute(&self) -> bool {
        self.absolute
    }

    /// Whether it is the working directory or the root itself.
    #[must_use]
    pub fn is_start(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The components joined by `/`, without a leading one; empty for the start itself.
    #[must_use]
    pub fn relative_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The components, outermost first.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.bytes
            .split(|byte| *byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// The last component; `None` for the start itself.
    #[must_use]
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// The path without its last component; `None` for the start itself.
    #[must_use]
    pub fn parent(&self) -> Option<Self> {
        let name = self.file_name()?;
        let keep = self.bytes.len().saturating_sub(name.len() + 1);
        Some(Self {
            absolute: self.absolute,
            bytes: self.bytes.iter().take(keep).copied().collect(),
        })
    }

    /// This path with `name` below it. `name` may be several components.
    ///
    /// # Errors
    /// Where `name` is absolute, holds NUL or climbs.
    pub fn join(&self, name: impl AsRef<[u8]>) -> Result<Self, InvalidPath> {
        let below = Self::new(name.as_ref())?;
        if below.absolute {
            return Err(InvalidPath {
                path: lossy(name.as_ref()),
                problem: Problem::Absolute,
            });
        }
        let mut bytes = self.bytes.clone();
        if !bytes.is_empty() && !below.bytes.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(&below.bytes);
        Ok(Self {
            absolute: self.absolute,
            bytes,
        })
    }

    /// This path relative to `root`, where it is absolute and lies below it (or is it).
    #[must_use]
    pub fn strip_root(&self, root: &Self) -> Option<Self> {
        if self.absolute != root.absolute {
            return None;
        }
        let mut own = self.components();
        for component in root.components() {
            if own.next() != Some(component) {
                return None;
            }
        }
        let bytes = own.collect::<Vec<_>>().join(&b'/');
        Some(Self {
            absolute: false,
            bytes,
        })
    }

    /// The whole path as text; bytes that are not UTF-8 are replaced.
    #[must_use]
    pub fn to_lossy(&self) -> String {
        self.to_string()
    }
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl fmt::Display for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slash = if self.absolute { "/" } else { "" };
        let name = String::from_utf8_lossy(&self.bytes);
        let name = if self.bytes.is_empty() && !self.absolute {
            ".".into()
        } else {
            name
        };
        write!(f, "{slash}{name}")
    }
}

impl fmt::Debug for SandboxPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.to_string())
    }
}

impl FromStr for SandboxPath {
    type Err = InvalidPath;

    fn from_str(path: &str) -> Result<Self, InvalidPath> {
        Self::new(path)
    }
}

impl TryFrom<&str> for SandboxPath {
    type Error = InvalidPath;

    fn try_from(path: &str) -> Result<Self, InvalidPath> {
        Self::new(path)
    }
}

impl TryFrom<String> for SandboxPath {
    type Error = InvalidPath;

    fn try_from(path: String) -> Result<Self, InvalidPath> {
        Self::new(path)
    }
}

impl From<SandboxPath> for String {
    fn from(path: SandboxPath) -> Self {
        path.to_string()
    }
}

/// Text that can't be a path in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` is no path in the sandbox: {problem}")]
pub struct InvalidPath {
    path: String,
    problem: Problem,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
enum Problem {
    #[error("it contains a NUL byte")]
    Nul,
    #[error("it leads above the directory it starts from")]
    Escapes,
    #[error("it must be relative")]
    Absolute,
}

impl From<InvalidPath> for super::SandboxError {
    fn from(error: InvalidPath) -> Self {
        let kind = match error.problem {
            Problem::Nul | Problem::Absolute => super::SandboxErrorKind::InvalidInput,
            Problem::Escapes => super::SandboxErrorKind::OutsideSandbox,
        };
        Self::new(kind, error.to_string()).with_source(error)
    }
}

#[cfg(test)]
mod tests;
