//! Requests for packages: specifiers, and where packages may come from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use cantle_core::policy::{HostPattern, Strictness};
use serde::{Deserialize, Serialize};
use url::Url;

use super::error::PackageError;
use super::index::PackageIndex;

/// A package to install: a name with optional extras and version constraints, as in `pandas[excel]>=2,<3`, or a direct
/// reference, as in `tool @ https://files.example.org/tool-1.0-py3-none-any.whl`. Never an option of an installer.
///
/// ```
/// use cantle_python::PackageSpecifier;
///
/// assert!("numpy>=2,<3".parse::<PackageSpecifier>().is_ok());
/// assert!("--index-url=https://example.org".parse::<PackageSpecifier>().is_err());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PackageSpecifier {
    text: String,
    name: String,
    url: Option<Url>,
}

impl PackageSpecifier {
    /// Returns the name of the package as indexes spell it.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns the URL of a direct reference.
    pub(super) fn url(&self) -> Option<&Url> {
        self.url.as_ref()
    }
}

/// Returns a name as indexes spell it: lower case, with single hyphens (PEP 503).
fn normalized(name: &str) -> String {
    let words = name.split(['-', '_', '.']).filter(|word| !word.is_empty());
    let words: Vec<_> = words.map(str::to_ascii_lowercase).collect();
    words.join("-")
}

pub(super) fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let ends = |c: char| c.is_ascii_alphanumeric();
    text.starts_with(ends) && text.ends_with(ends) && text.chars().all(allowed)
}

/// Returns whether this is one comparison with a version, as in `>= 2.0`.
fn is_constraint(text: &str) -> bool {
    let text = text.trim();
    let version = text.trim_start_matches(['<', '>', '=', '!', '~']);
    let has_operator = version.len() < text.len();
    let version = version.trim_start();
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".*+-_!".contains(c);
    has_operator && version.starts_with(char::is_alphanumeric) && version.chars().all(allowed)
}

impl FromStr for PackageSpecifier {
    type Err = PackageError;

    fn from_str(text: &str) -> Result<Self, PackageError> {
        let refuse = |advice: &str| {
            let shown: String = text.escape_debug().take(80).collect();
            PackageError::invalid(format!("`{shown}` is no package: {advice}"))
        };
        let text = text.trim();
        if text.starts_with('-') {
            return Err(refuse("options of pip and uv are not accepted"));
        }
        let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || "-_.".contains(c)));
        let (name, rest) = text.split_at(end.unwrap_or(text.len()));
        if !is_name(name) || rest.starts_with(['/', ':']) {
            return Err(refuse("write its name, as in `pandas` or `pandas>=2`"));
        }
        let rest = rest.trim_start();
        let rest = match rest.strip_prefix('[').map(|rest| rest.split_once(']')) {
            None => rest,
            Some(Some((extras, rest))) if extras.split(',').all(|it| is_name(it.trim())) => {
                rest.trim_start()
            }
            Some(_) => return Err(refuse("extras are names, as in `pandas[excel]`")),
        };
        let url = match rest.strip_prefix('@') {
            None => None,
            Some(url) => {
                let url = url.trim();
                let https = Url::parse(url).ok();
                let https = https.filter(|it| it.scheme() == "https" && it.host_str().is_some());
                let has_secret = |it: &Url| !it.username().is_empty() || it.password().is_some();
                if url.contains(char::is_whitespace) || https.as_ref().is_some_and(has_secret) {
                    return Err(refuse("its URL has spaces or a password"));
                }
                let https = https.ok_or_else(|| refuse("only https:// can be referred to"))?;
                Some(https)
            }
        };
        if url.is_none() && !(rest.is_empty() || rest.split(',').all(is_constraint)) {
            return Err(refuse(
                "after the name come constraints of its version, as in `pandas>=2,<3`",
            ));
        }
        Ok(Self {
            text: text.to_owned(),
            name: normalized(name),
            url,
        })
    }
}

impl fmt::Display for PackageSpecifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for PackageSpecifier {
    type Error = PackageError;

    fn try_from(text: String) -> Result<Self, PackageError> {
        text.parse()
    }
}

impl From<PackageSpecifier> for String {
    fn from(specifier: PackageSpecifier) -> Self {
        specifier.text
    }
}

/// The Python that packages are for, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonTarget {
    /// Its program.
    pub(super) executable: PathBuf,
    pub(super) version: (u8, u8, u8),
    pub(super) tag: Option<String>,
    pub(super) platform: String,
    pub(super) libc: String,
}

impl PythonTarget {
    /// Checks what a sandbox said, which becomes options of an installer.
    pub(super) fn is_valid(&self) -> bool {
        let is_word = |text: &str| {
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-_. ".contains(c);
            !text.is_empty() && text.len() < 64 && text.chars().all(allowed)
        };
        let executable = self.executable.to_str().unwrap_or_default();
        executable.starts_with('/')
            && !executable.contains(char::is_control)
            && self.tag.as_deref().is_none_or(is_word)
            && is_word(&self.platform)
            && is_word(&self.libc)
    }
}

/// A request for packages.
#[must_use]
#[derive(Clone, Debug)]
pub struct PackageRequest {
    pub(super) specifiers: Vec<PackageSpecifier>,
    pub(super) python: Option<String>,
    pub(super) target: Option<PythonTarget>,
    pub(super) read_roots: Vec<PathBuf>,
    pub(super) hosts: Vec<HostPattern>,
    pub(super) index: PackageIndex,
    pub(super) refresh: bool,
    pub(super) strictness: Strictness,
}

impl PackageRequest {
    /// Requests packages for the `python3` of this machine's sandboxes, from the index that pip and uv are configured
    /// with here.
    pub fn new(specifiers: impl IntoIterator<Item = PackageSpecifier>) -> Self {
        let request = Self {
            specifiers: Vec::new(),
            python: None,
            target: None,
            read_roots: Vec::new(),
            hosts: Vec::new(),
            index: PackageIndex::of_this_machine(),
            refresh: false,
            strictness: Strictness::Strict,
        };
        request.specifiers(specifiers)
    }

    /// Sets the packages.
    pub fn specifiers(mut self, specifiers: impl IntoIterator<Item = PackageSpecifier>) -> Self {
        self.specifiers = specifiers.into_iter().collect();
        self.specifiers.sort();
        self.specifiers.dedup();
        self
    }

    /// Sets the Python that the packages are for: a name on the sandbox's `PATH`, or a path in the sandbox.
    pub fn python(mut self, python: impl Into<String>) -> Self {
        self.python = Some(python.into());
        self
    }

    /// Sets another Python than this machine's. Only wheels can be installed for it.
    pub fn target(mut self, target: PythonTarget) -> Self {
        self.target = Some(target);
        self
    }

    /// Adds host paths that this machine's Python needs, besides the system's.
    pub fn read_roots(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.read_roots.extend(paths);
        self
    }

    /// Allows hosts, besides the index and the hosts of its files: for direct references, and for indexes with
    /// private addresses.
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        self.hosts = hosts.into_iter().collect();
        self
    }

    /// Sets the index.
    pub fn index(mut self, index: PackageIndex) -> Self {
        self.index = index;
        self
    }

    /// Resolves the specifiers again, even if that was done before.
    pub fn refresh(mut self, refresh: bool) -> Self {
        self.refresh = refresh;
        self
    }

    /// Sets whether the packages are installed also if this machine can't restrict the hosts that installers reach.
    pub fn strictness(mut self, strictness: Strictness) -> Self {
        self.strictness = strictness;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_specifier_is_a_name_and_constraints_or_a_reference_and_never_an_option() {
        for valid in [
            "numpy",
            " pandas[excel, xml] >= 2, < 3.*",
            "a==1.0.post1+local-2",
            "a~=1!2.0,!=1!2.0.1",
            "tool @ https://files.example.org/tool-1.0-py3-none-any.whl",
        ] {
            assert!(valid.parse::<PackageSpecifier>().is_ok(), "{valid}");
        }
        for invalid in [
            "",
            "-r requirements.txt",
            "--index-url=https://example.org",
            "numpy --pre",
            "numpy>=1 --pre",
            "numpy>=1, --pre",
            "numpy>=1 --global-option=x",
            "numpy>=",
            "numpy\n--pre",
            "numpy; python_version < '3'",
            "./local",
            "https://example.org/a.whl",
            "git+https://example.org/a",
            "a @ file:///etc/passwd",
            "a @ http://example.org/a.whl",
            "a @ https://user:secret@example.org/a.whl",
            "a @ https://example.org/a.whl --pre",
            "a[--pre]",
        ] {
            assert!(invalid.parse::<PackageSpecifier>().is_err(), "{invalid}");
        }
        let specifier: PackageSpecifier = "Foo__Bar.baz".parse().unwrap();
        assert_eq!(specifier.name(), "foo-bar-baz");
    }
}
