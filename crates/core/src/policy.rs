//! Policy: what code in a sandbox may do.
//!
//! Every field is optional. What is set must be enforced, or [`Backend::open`] fails; in
//! [`Strictness::BestEffort`] it is listed in the sandbox's report instead. What is not set is not
//! promised. Roots protect the host: a disposable image, in which nothing of the host can be seen,
//! counts as their enforcement.
//!
//! Start from a [`Preset`], by its constructor ([`Policy::workspace`] and its siblings) or by its
//! name, and change what is different. In JSON a policy is written as far as it says something, and
//! a field that doesn't exist is refused: a misspelt restriction must not be none.
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

pub use self::field::PolicyField;
pub use self::host::{HostName, HostPattern};
pub use self::invalid::InvalidPolicy;
pub use self::limits::Limits;
pub use self::preset::Preset;
use crate::secret::SecretText;

/// What code in a sandbox may do. `None` means: not restricted, nothing promised.
///
/// ```
/// use std::time::Duration;
/// use cantle_core::policy::Policy;
///
/// let mut policy = Policy::network(["pypi.org".parse()?, "*.debian.org".parse()?]);
/// policy.limits.set("memory=2G")?;
/// policy.limits.wall_time = Some(Duration::from_secs(60));
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct Policy {
    /// What of the host code may read, besides its working directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_roots: Option<ReadRoots>,
    /// Paths of the host, absolute, that code may write (and read), besides its working directory.
    /// Scratch directories that the sandbox has for itself (its own `/tmp`) are not the host's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_roots: Option<Vec<PathBuf>>,
    /// What code may do in its working directory.
    #[serde(skip_serializing_if = "Access::is_read_write")]
    pub working_directory: Access,
    /// What it may reach over the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// Whether a command may start other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subprocesses: Option<bool>,
    /// Variables a command gets, besides the few every shell needs. Never inherited.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, SecretText>,
    /// How much it may use.
    #[serde(skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
    /// What happens where a field can't be enforced.
    pub strictness: Strictness,
}

impl Policy {
    /// Work on files: the system's directories to read, the working directory to write, no network.
    /// No limit but one: 1024 processes and threads at once, without which a mistake of one line
    /// (`:(){ :|:& };:`) takes the machine down.
    #[must_use]
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

    /// [`workspace`](Self::workspace), and these hosts.
    pub fn network(hosts: impl IntoIterator<Item = HostPattern>) -> Self {
        Self {
            network: Some(Network::Hosts(hosts.into_iter().collect())),
            ..Self::workspace()
        }
    }

    /// Look, but change nothing: [`workspace`](Self::workspace) with a working directory that can't
    /// be written either.
    #[must_use]
    pub fn read_only() -> Self {
        Self {
            working_directory: Access::ReadOnly,
            ..Self::workspace()
        }
    }

    /// No restriction and no promise.
    #[must_use]
    pub fn unconfined() -> Self {
        Self::default()
    }

    /// The fields that are set, which a backend must enforce or refuse.
    #[must_use]
    pub fn fields(&self) -> Vec<PolicyField> {
        let own = [
            (self.read_roots.is_some(), PolicyField::ReadRoots),
            (self.write_roots.is_some(), PolicyField::WriteRoots),
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
}

/// What of the host code may read, besides its working directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[non_exhaustive]
pub struct ReadRoots {
    /// What programs are made of: those of [`SYSTEM`](Self::SYSTEM) that this machine has.
    pub system: bool,
    /// Further paths, absolute; one that doesn't exist is an error when the sandbox opens.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub paths: Vec<PathBuf>,
}

impl ReadRoots {
    /// What [`system`](Self::system) stands for on Linux: programs, libraries and the configuration
    /// without which they don't work.
    ///
    /// Never a place where people, services or programs keep what is theirs: `/home`, `/root`,
    /// `/run`, `/var`, `/sys`, `/tmp`. Of `/etc` only what is the same for everybody: private keys
    /// lie below `/etc/ssl` and `/etc/pki` too. Users, groups, `hosts` and `resolv.conf` describe this
    /// machine, so that a backend writes its own; `/proc` and `/dev` it makes anew.
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

    /// The system's directories.
    #[must_use]
    pub fn system() -> Self {
        Self {
            system: true,
            paths: Vec::new(),
        }
    }

    /// The same and these paths.
    #[must_use]
    pub fn and(mut self, paths: impl IntoIterator<Item = PathBuf>) -> Self {
        self.paths.extend(paths);
        self
    }
}

/// These paths alone, without the system's directories.
impl From<Vec<PathBuf>> for ReadRoots {
    fn from(paths: Vec<PathBuf>) -> Self {
        Self {
            system: false,
            paths,
        }
    }
}

/// These paths alone, without the system's directories.
impl<const N: usize> From<[PathBuf; N]> for ReadRoots {
    fn from(paths: [PathBuf; N]) -> Self {
        Vec::from(paths).into()
    }
}

/// What code may do in its working directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Access {
    /// Read and write, which is no restriction.
    #[default]
    ReadWrite,
    /// Read: commands can't change anything there. What the owner of the sandbox writes itself, such
    /// as input files ([`Sandbox::write`](crate::sandbox::Sandbox::write)), still arrives.
    ReadOnly,
}

impl Access {
    fn is_read_write(&self) -> bool {
        *self == Self::ReadWrite
    }
}

/// What code may reach over the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Network {
    /// Nothing.
    Off,
    /// These hosts by name, and nothing else. Names that lead to this machine or a private network
    /// are refused all the same.
    Hosts(Vec<HostPattern>),
}

/// What happens where a policy field can't be enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Strictness {
    /// Opening the sandbox fails and says which field.
    #[default]
    Strict,
    /// The sandbox opens, and its report says which field is not enforced.
    BestEffort,
}

#[cfg(test)]
mod tests;
