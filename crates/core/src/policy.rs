//! Policies for code in a sandbox.
//!
//! Every field is optional. A field that is set must be enforced, or [`Backend::open`] fails; with
//! [`Strictness::BestEffort`], unenforced fields are listed in the sandbox's report instead. Read and
//! write roots protect the host: a container image, in which nothing of the host is visible, counts
//! as their enforcement.
//!
//! Start from a [`Preset`], by its constructor ([`Policy::workspace`] etc.) or by its name, and change
//! fields as needed. In JSON, unset fields are omitted, and unknown fields are errors, so that a
//! misspelled restriction is not ignored.
//!
//! [`Backend::open`]: crate::sandbox::Backend::open

mod field;
mod host;
mod invalid;
mod limits;
mod preset;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

pub use self::field::PolicyField;
pub use self::host::{HostName, HostPattern};
pub use self::invalid::InvalidPolicy;
pub use self::limits::{Limits, parse_bytes, parse_duration};
pub use self::preset::Preset;
use crate::secret::SecretText;

/// The permissions and limits of code in a sandbox. `None` means unrestricted.
///
/// ```
/// use std::time::Duration;
/// use cantle_core::policy::Policy;
///
/// let mut policy = Policy::network(["example.com".parse()?, "*.example.org".parse()?]);
/// policy.limits.set("memory=2G")?;
/// policy.limits.wall_time = Some(Duration::from_secs(60));
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// Host paths that code may read, besides its working directory. One below a write root is read-only there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_roots: Option<ReadRoots>,
    /// Absolute host paths that code may write (and read), besides its working directory. The
    /// sandbox's own `/tmp` is not a host path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_roots: Option<Vec<PathBuf>>,
    /// Absolute host paths below the roots whose content is hidden: each appears as an empty file or directory, and can't
    /// be changed. One that is missing when the sandbox opens is ignored.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub hidden_paths: Vec<PathBuf>,
    /// Access to the working directory.
    #[serde(skip_serializing_if = "Access::is_read_write")]
    pub working_directory: Access,
    /// Network access.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Whether a command may start other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subprocesses: Option<bool>,
    /// Environment variables of commands, besides those that every shell needs. Never inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, SecretText>,
    /// Resource limits.
    #[serde(skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// Handling of fields that can't be enforced.
    pub strictness: Strictness,
}

impl Policy {
    /// Returns the policy for work on files: system directories are readable, the working directory
    /// is writable, and there is no network. The only limit is 1024 processes and threads, which stops
    /// a fork bomb.
    pub fn workspace() -> Self {
        Self {
            read_roots: Some(ReadRoots::system()),
            write_roots: Some(Vec::new()),
            network: Some(Network::Off),
            limits: Limits {
                processes: Some(1024),
                ..Limits::default()
            },
            ..Self::default()
        }
    }

    /// Returns [`workspace`](Self::workspace) with network access to these hosts.
    pub fn network(hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        Self {
            network: Some(Network::Hosts(hosts.into_iter().collect())),
            ..Self::workspace()
        }
    }

    /// Returns [`workspace`](Self::workspace) with a read-only working directory.
    pub fn read_only() -> Self {
        Self {
            working_directory: Access::ReadOnly,
            ..Self::workspace()
        }
    }

    /// Returns the policy without restrictions.
    pub fn unconfined() -> Self {
        Self::default()
    }

    /// Returns the fields that are set.
    pub fn fields(&self) -> Vec<PolicyField> {
        let own = [
            (self.read_roots.is_some(), PolicyField::ReadRoots),
            (self.write_roots.is_some(), PolicyField::WriteRoots),
            (!self.hidden_paths.is_empty(), PolicyField::HiddenPaths),
            (
                !self.working_directory.is_read_write(),
                PolicyField::WorkingDirectory,
            ),
            (self.network.is_some(), PolicyField::Network),
            (self.subprocesses.is_some(), PolicyField::Subprocesses),
            (!self.environment.is_empty(), PolicyField::Environment),
        ];
        own.into_iter()
            .filter_map(|(set, field)| set.then_some(field))
            .chain(self.limits.fields())
            .collect()
    }

    /// Returns the fields that differ from those of [`workspace`](Self::workspace), serialized; `null` for one that is not set.
    /// The identity of a run compares them, so that the run can be resumed after a default has changed.
    pub fn differing_fields(&self) -> Value {
        differing_fields(&json!(self), &json!(Self::workspace()))
    }
}

/// Host paths that code may read, besides its working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ReadRoots {
    /// Whether the existing paths of [`SYSTEM`](Self::SYSTEM) are readable.
    pub system: bool,
    /// Further absolute paths. A missing one is an error when the sandbox opens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathBuf>,
}

impl ReadRoots {
    /// The paths that [`system`](Self::system) stands for on Linux: programs, libraries and the
    /// configuration that they need.
    ///
    /// It excludes paths with data of users and services (`/home`, `/root`, `/run`, `/var`, `/sys`,
    /// `/tmp`), and private keys below `/etc/ssl` and `/etc/pki`. Users, groups, `hosts` and
    /// `resolv.conf` describe the host, so backends write their own; they also mount their own `/proc`
    /// and `/dev`.
    pub const SYSTEM: &'static [&'static str] = &[
        "/usr",
        "/bin",
        "/sbin",
        "/lib",
        "/lib32",
        "/lib64",
        "/libx32",
        "/opt",
        "/etc/alternatives",
        "/etc/bash.bashrc",
        "/etc/ca-certificates",
        "/etc/ca-certificates.conf",
        "/etc/crypto-policies",
        "/etc/debian_version",
        "/etc/fonts",
        "/etc/gai.conf",
        "/etc/host.conf",
        "/etc/inputrc",
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/locale.alias",
        "/etc/localtime",
        "/etc/magic",
        "/etc/mime.types",
        "/etc/nsswitch.conf",
        "/etc/os-release",
        "/etc/pki/ca-trust",
        "/etc/pki/tls/cert.pem",
        "/etc/pki/tls/certs",
        "/etc/pki/tls/openssl.cnf",
        "/etc/profile",
        "/etc/protocols",
        "/etc/services",
        "/etc/shells",
        "/etc/ssl/cert.pem",
        "/etc/ssl/certs",
        "/etc/ssl/openssl.cnf",
        "/etc/terminfo",
        "/etc/timezone",
    ];

    /// Returns the system directories.
    pub fn system() -> Self {
        Self {
            system: true,
            paths: Vec::new(),
        }
    }

    /// Adds paths.
    pub fn with_paths(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.paths.extend(paths);
        self
    }
}

/// These paths only, without the system directories.
impl From<Vec<PathBuf>> for ReadRoots {
    fn from(paths: Vec<PathBuf>) -> Self {
        Self {
            system: false,
            paths,
        }
    }
}

/// These paths only, without the system directories.
impl<const N: usize> From<[PathBuf; N]> for ReadRoots {
    fn from(paths: [PathBuf; N]) -> Self {
        Vec::from(paths).into()
    }
}

/// Access to the working directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Access {
    /// Read and write, which is no restriction.
    #[default]
    ReadWrite,
    /// Read only, for commands. [`Sandbox::write`](crate::sandbox::Sandbox::write) still works.
    ReadOnly,
}

impl Access {
    fn is_read_write(&self) -> bool {
        *self == Self::ReadWrite
    }
}

/// Network access of code.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Network {
    /// No network access.
    Off,
    /// Only these hosts, by name, without those that patterns after `!` deny. Names that resolve to this machine
    /// are refused, and so are those that resolve to a private network, unless the pattern
    /// [allows that](HostPattern::with_private_addresses).
    Hosts(Vec<HostPattern>),
}

impl Network {
    /// Returns whether a host can be reached on a port, as far as its name tells.
    pub fn allows(&self, host: &HostName, port: u16) -> bool {
        match self {
            Self::Off => false,
            Self::Hosts(hosts) => {
                hosts.iter().any(|pattern| pattern.matches(host, port))
                    && !hosts.iter().any(|pattern| pattern.denies(host, port))
            }
        }
    }
}

/// Handling of policy fields that can't be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strictness {
    /// Opening the sandbox fails with the names of the fields.
    #[default]
    Strict,
    /// The sandbox opens, and its report lists the fields.
    BestEffort,
}

/// Returns the fields of a JSON object that differ from those of another one.
fn differing_fields(value: &Value, default: &Value) -> Value {
    let (Value::Object(fields), Value::Object(defaults)) = (value, default) else {
        return value.clone();
    };
    let missing = defaults.keys().filter(|key| !fields.contains_key(*key));
    let missing = missing.map(|key| (key.clone(), Value::Null));
    let differing = fields.iter().filter_map(|(key, value)| {
        let default = defaults.get(key).unwrap_or(&Value::Null);
        (value != default).then(|| (key.clone(), differing_fields(value, default)))
    });
    missing.chain(differing).collect()
}

#[cfg(test)]
mod tests;
