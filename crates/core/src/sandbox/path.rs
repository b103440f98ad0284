//! Paths inside a sandbox.
//!
//! A path is absolute or relative to the working directory. It is normalized here, once; links are
//! resolved by the kernel or inside the sandbox, never by comparing text.

use std::ffi::OsStr;
use std::fmt;
use std::str::FromStr;

use super::{SandboxError, SandboxErrorKind};

/// A normalized path inside a sandbox, without NUL, that doesn't lead above its base.
///
/// ```
/// use cantle_core::sandbox::SandboxPath;
///
/// let path: SandboxPath = "data//./raw/../table.csv".parse()?;
/// assert_eq!(path.to_string(), "data/table.csv");
/// assert!("../secret".parse::<SandboxPath>().is_err());
/// # Ok::<(), cantle_core::sandbox::InvalidPath>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SandboxPath {
    absolute: bool,
    /// Components joined by `/`, without a leading or trailing slash; empty for the base itself.
    bytes: Vec<u8>,
}

impl SandboxPath {
    /// Returns the working directory, as a relative path.
    pub fn working_directory() -> Self {
        Self {
            absolute: false,
            bytes: Vec::new(),
        }
    }

    /// Normalizes a path: removes `.`, `..` and repeated slashes.
    ///
    /// # Errors
    /// [`InvalidPath`] if it contains NUL or leads above its base.
    pub fn new(path: impl AsRef<[u8]>) -> Result<Self, InvalidPath> {
        let path = path.as_ref();
        if path.contains(&0) {
            let kind = SandboxErrorKind::InvalidInput;
            return Err(InvalidPath::new(kind, path, "it contains a NUL byte"));
        }
        let mut components: Vec<&[u8]> = Vec::new();
        for component in path.split(|byte| *byte == b'/') {
            match component {
                b"" | b"." => {}
                b".." => {
                    components.pop().ok_or_else(|| {
                        let problem = "it leads above the directory it starts from";
                        InvalidPath::new(SandboxErrorKind::OutsideSandbox, path, problem)
                    })?;
                }
                name => components.push(name),
            }
        }
        Ok(Self {
            absolute: path.first() == Some(&b'/'),
            bytes: components.join(&b'/'),
        })
    }

    /// Converts a path of the host, e.g. a relative one found while walking a directory.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn from_os(path: impl AsRef<OsStr>) -> Result<Self, InvalidPath> {
        Self::new(path.as_ref().as_encoded_bytes())
    }

    /// Returns whether the path starts at the root and not at the working directory.
    pub fn is_absolute(&self) -> bool {
        self.absolute
    }

    /// Returns whether the path is its base: the working directory, or the root.
    pub fn is_base(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the components joined by `/`, without a leading slash; empty for the base itself.
    pub fn relative_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Iterates over the components, outermost first.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.bytes
            .split(|byte| *byte == b'/')
            .filter(|component| !component.is_empty())
    }

    /// Returns the last component; `None` for the base itself.
    pub fn file_name(&self) -> Option<&[u8]> {
        self.components().next_back()
    }

    /// Returns the path without its last component; `None` for the base itself.
    pub fn parent(&self) -> Option<Self> {
        let name = self.file_name()?;
        let keep = self.bytes.len().saturating_sub(name.len() + 1);
        Some(Self {
            absolute: self.absolute,
            bytes: self.bytes.iter().take(keep).copied().collect(),
        })
    }

    /// Appends `name`, which may have several components.
    ///
    /// # Errors
    /// If `name` is absolute, contains NUL or leads above its base.
    pub fn join(&self, name: impl AsRef<[u8]>) -> Result<Self, InvalidPath> {
        let name = name.as_ref();
        let normalized;
        let below = if is_component(name) {
            name
        } else {
            normalized = Self::new(name)?;
            if normalized.absolute {
                let kind = SandboxErrorKind::InvalidInput;
                return Err(InvalidPath::new(kind, name, "it must be relative"));
            }
            &normalized.bytes
        };
        let mut bytes = Vec::with_capacity(self.bytes.len() + 1 + below.len());
        bytes.extend_from_slice(&self.bytes);
        if !bytes.is_empty() && !below.is_empty() {
            bytes.push(b'/');
        }
        bytes.extend_from_slice(below);
        Ok(Self {
            absolute: self.absolute,
            bytes,
        })
    }

    /// Returns this path relative to `prefix`; `None` if it is not `prefix` or below it.
    pub fn strip_prefix(&self, prefix: &Self) -> Option<Self> {
        if self.absolute != prefix.absolute {
            return None;
        }
        let mut own = self.components();
        for component in prefix.components() {
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
}

/// Whether a path is one component, which is normalized already.
fn is_component(path: &[u8]) -> bool {
    !matches!(path, b"" | b"." | b"..") && !path.iter().any(|byte| matches!(byte, b'/' | 0))
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

serialize_as_text!(SandboxPath);

/// Text that is not a valid path in a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{path}` is not a valid path in the sandbox: {problem}")]
pub struct InvalidPath {
    path: String,
    problem: &'static str,
    /// Kind of the sandbox's error for it.
    kind: SandboxErrorKind,
}

impl InvalidPath {
    fn new(kind: SandboxErrorKind, path: &[u8], problem: &'static str) -> Self {
        let path = String::from_utf8_lossy(path).into_owned();
        Self {
            path,
            problem,
            kind,
        }
    }
}

impl From<InvalidPath> for SandboxError {
    fn from(error: InvalidPath) -> Self {
        Self::new(error.kind, error.to_string())
    }
}

#[cfg(test)]
mod tests;
