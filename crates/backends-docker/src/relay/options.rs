//! What a relay is told when it is set up, and what its commands are given.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::sync::Arc;

use cantle_core::policy::Limits;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind, SandboxPath};
use cantle_supervisor::Writer;
use cantle_supervisor::wire::Step;

use super::staging::Staging;

/// Where to look for programs where the environment doesn't say.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Where a shell may be; bash where there is one.
const SHELLS: [&str; 7] = [
    "/bin/bash",
    "/usr/bin/bash",
    "/usr/local/bin/bash",
    "/bin/sh",
    "/usr/bin/sh",
    "/busybox/sh",
    "/bin/ash",
];

/// How a relay's sandbox is to be used.
#[derive(Clone)]
#[non_exhaustive]
pub struct RelayOptions {
    /// The user and the group that run commands and touch files, without any privilege. None where
    /// that is whom the relay runs as, with what that one may do. Another one needs a relay that may
    /// change its user and kill those of another one (`CAP_SETUID`, `CAP_SETGID`, `CAP_KILL`).
    pub identity: Option<(u32, u32)>,
    /// Where commands start and relative paths begin; absolute. It must be there, unless
    /// the relay [makes](Self::makes_directories) it.
    pub working_directory: SandboxPath,
    /// The directory that no path and no link leads out of; `/` where all that can be seen belongs to
    /// the sandbox. In any other one links must be relative.
    pub root: SandboxPath,
    /// Where large output is kept; absolute.
    pub temporary_directory: SandboxPath,
    /// Where a shell may be; the first that can be executed is taken.
    pub shells: Vec<OsString>,
    /// The variables of every command, besides `HOME` (the working directory), `LANG`, `PATH`, `PWD`,
    /// `SHELL`, `TERM` and `TMPDIR`, which these replace where they have the same names.
    pub environment: BTreeMap<OsString, OsString>,
    /// Whether the relay makes the working directory and the temporary one where they are missing, gives
    /// the first to `identity` and opens the second to everyone. For a sandbox in which nothing has run
    /// yet, and a relay that may change owners (`CAP_CHOWN`).
    pub makes_directories: bool,
    /// Another way for large files. For a relay that runs as root, at `/`.
    pub(crate) staging: Option<Arc<dyn Staging>>,
    /// What each command may use. Here the time of a command, its output, and what the kernel
    /// keeps for each process (processor time, size of files, open files) are kept; what holds
    /// for a container as a whole is for its engine.
    pub limits: Limits,
}

impl fmt::Debug for RelayOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values may be secrets.
        let names: Vec<_> = self.environment.keys().collect();
        f.debug_struct("RelayOptions")
            .field("identity", &self.identity)
            .field("working_directory", &self.working_directory)
            .field("root", &self.root)
            .field("temporary_directory", &self.temporary_directory)
            .field("shells", &self.shells)
            .field("environment", &names)
            .field("makes_directories", &self.makes_directories)
            .field("staging", &self.staging)
            .field("limits", &self.limits)
            .finish()
    }
}

impl RelayOptions {
    /// Commands start in `working_directory`, as the relay's own user; everything that can be seen
    /// belongs to the sandbox.
    #[must_use]
    pub fn new(working_directory: SandboxPath) -> Self {
        let directory = |path| {
            let path = SandboxPath::new(path);
            path.unwrap_or_else(|_| working_directory.clone())
        };
        Self {
            identity: None,
            root: directory("/"),
            temporary_directory: directory("/tmp"),
            working_directory,
            shells: SHELLS.map(OsString::from).into(),
            environment: BTreeMap::new(),
            makes_directories: false,
            staging: None,
            limits: Limits::default(),
        }
    }

    /// A path as the relay sees it.
    pub(super) fn absolute(&self, path: &SandboxPath) -> SandboxPath {
        if path.is_absolute() {
            return path.clone();
        }
        // A relative path can always be joined.
        let joined = self.working_directory.join(path.relative_bytes());
        joined.unwrap_or_else(|_| self.working_directory.clone())
    }

    /// The variables of every command: the few that every shell needs, and over them those that were
    /// given.
    pub(super) fn variables(&self, shell: Option<&OsStr>) -> BTreeMap<OsString, OsString> {
        let mut variables: BTreeMap<OsString, OsString> = [
            ("HOME", os_path(&self.working_directory)),
            ("LANG", "C.UTF-8".into()),
            ("PATH", DEFAULT_PATH.into()),
            ("TERM", "dumb".into()),
            ("TMPDIR", os_path(&self.temporary_directory)),
        ]
        .map(|(name, value)| (name.into(), value))
        .into();
        if let Some(shell) = shell {
            // Where it isn't set, bash asks the user database for it, which takes a while.
            variables.insert("SHELL".into(), shell.to_owned());
        }
        variables.extend(self.environment.clone());
        variables
    }

    /// The body of the setup.
    pub(super) fn setup(&self) -> Result<Vec<u8>, SandboxError> {
        const CPU: u32 = 0;
        const FILE_SIZE: u32 = 1;
        const CORE: u32 = 4;
        const OPEN_FILES: u32 = 7;
        let mut writer = Writer::new();
        let cpu = self.limits.cpu_time.map(|time| {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            // At the first it is told (SIGXCPU), at the second it is killed.
            (seconds, seconds.saturating_add(1))
        });
        let both = |limit: Option<u64>| limit.map(|limit| (limit, limit));
        let limits = [
            // A core would go to whom the host's kernel says.
            (CORE, Some((0, 0))),
            (CPU, cpu),
            (FILE_SIZE, both(self.limits.file_size_bytes)),
            (OPEN_FILES, both(self.limits.open_files)),
        ];
        for (resource, limit) in limits {
            if let Some((soft, hard)) = limit {
                writer.step(&Step::Limit {
                    resource,
                    soft,
                    hard,
                });
            }
        }
        if self.makes_directories {
            // Without a place for temporary files there can be commands all the same.
            writer.optional(
                0,
                &Step::Give {
                    path: &c_path(&self.temporary_directory)?,
                    identity: None,
                    mode: 0o1777,
                },
            );
            writer.step(&Step::Give {
                path: &c_path(&self.working_directory)?,
                identity: self.identity,
                mode: 0o755,
            });
        }
        if self.staging.is_some() {
            writer.step(&Step::Staging);
        }
        writer.step(&Step::Commands {
            identity: self.identity,
            root: &c_path(&self.root)?,
        });
        Ok(writer.into_bytes())
    }
}

/// An absolute path as the kernel takes it.
pub(super) fn c_path(path: &SandboxPath) -> Result<CString, SandboxError> {
    c_string(&os_path(path))
}

/// An absolute path.
pub(super) fn os_path(path: &SandboxPath) -> OsString {
    OsString::from_vec([b"/", path.relative_bytes()].concat())
}

pub(super) fn c_string(text: &OsStr) -> Result<CString, SandboxError> {
    CString::new(text.as_bytes()).map_err(|_| {
        let message = "a command, its directory and its variables must be without NUL";
        SandboxError::new(SandboxErrorKind::InvalidInput, message)
    })
}
