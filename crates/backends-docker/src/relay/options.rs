//! Setup of a relay, and the environment of its commands.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::fmt;

use cantle_command_driver::{c_string, os_path};
use cantle_core::policy::Limits;
use cantle_core::sandbox::{SandboxError, SandboxPath};
use cantle_proxy::ProxySettings;
use cantle_supervisor::Writer;
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
use cantle_supervisor::filter;
use cantle_supervisor::wire::Step;

/// Bits of optional steps.
const TEMPORARY_DIRECTORY: u8 = 0;
pub(super) const FILTER: u8 = 1;

/// Search path for programs if the environment has none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Candidate paths of a shell; bash is preferred.
const SHELLS: [&str; 7] = [
    "/bin/bash",
    "/usr/bin/bash",
    "/usr/local/bin/bash",
    "/bin/sh",
    "/usr/bin/sh",
    "/busybox/sh",
    "/bin/ash",
];

/// Configuration of a relay's sandbox.
#[derive(Clone)]
#[non_exhaustive]
pub struct RelayOptions {
    /// The user and group of commands and file operations, which have no privileges.
    ///
    /// `None` for the relay's own user and privileges. Another user requires `CAP_SETUID`, `CAP_SETGID` and
    /// `CAP_KILL`.
    pub identity: Option<(u32, u32)>,
    /// The absolute working directory. It must exist unless the relay [creates](Self::makes_directories) it.
    pub working_directory: SandboxPath,
    /// The directory that confines paths and links: `/` if all visible files belong to the sandbox.
    ///
    /// In any other directory links must be relative.
    pub root: SandboxPath,
    /// The absolute directory for spilled output.
    pub temporary_directory: SandboxPath,
    /// Candidate paths of the shell; the first executable one is used.
    pub shells: Vec<OsString>,
    /// Variables of every command; they override the defaults of `HOME` (the working directory), `LANG`,
    /// `PATH`, `PWD`, `SHELL`, `TERM` and `TMPDIR`.
    pub environment: BTreeMap<OsString, OsString>,
    /// Whether the relay creates missing working and temporary directories.
    ///
    /// The working directory is given to `identity`, the temporary one opened to everyone. Only for a sandbox
    /// in which no command has run yet; requires `CAP_CHOWN`.
    pub makes_directories: bool,
    /// Whether commands get the system call filter of local sandboxes, besides the one that the container has.
    ///
    /// Both apply. Requires `no_new_privs` or `CAP_SYS_ADMIN`. [`Relay::has_filter`](super::Relay::has_filter)
    /// tells whether the kernel has installed it.
    pub filters_calls: bool,
    /// The proxy by which commands reach hosts from a sandbox without another network; it ends with the relay.
    pub proxy: Option<ProxySettings>,
    /// The port of 127.0.0.1 on which commands reach the proxy.
    pub proxy_port: u16,
    /// Limits of each command: wall time, output, processor time, file size and open files.
    ///
    /// Limits of the whole container are the engine's. With a memory limit, the exit of a command reports if the
    /// kernel killed processes at it.
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
            .field("filters_calls", &self.filters_calls)
            .field("proxy", &self.proxy)
            .field("proxy_port", &self.proxy_port)
            .field("limits", &self.limits)
            .finish()
    }
}

impl RelayOptions {
    /// Commands start in `working_directory` as the relay's own user; all visible files belong to the sandbox.
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
            filters_calls: false,
            proxy: None,
            proxy_port: cantle_proxy::PORT,
            limits: Limits::default(),
        }
    }

    /// Returns the absolute path.
    pub(super) fn absolute(&self, path: &SandboxPath) -> SandboxPath {
        if path.is_absolute() {
            return path.clone();
        }
        // A relative path can always be joined.
        let joined = self.working_directory.join(path.relative_bytes());
        joined.unwrap_or_else(|_| self.working_directory.clone())
    }

    /// Returns the variables of every command: defaults, overridden by the configured ones.
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
            // Without it, bash queries the user database, which is slow.
            variables.insert("SHELL".into(), shell.to_owned());
        }
        variables.extend(self.environment.clone());
        variables
    }

    /// Encodes the setup.
    pub(super) fn setup(&self) -> Result<Vec<u8>, SandboxError> {
        const CPU: u32 = 0;
        const FILE_SIZE: u32 = 1;
        const CORE: u32 = 4;
        const OPEN_FILES: u32 = 7;
        let mut writer = Writer::new();
        let cpu = self.limits.cpu_time.map(|time| {
            let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
            // The soft limit sends SIGXCPU, the hard limit kills.
            (seconds, seconds.saturating_add(1))
        });
        let both = |limit: Option<u64>| limit.map(|limit| (limit, limit));
        let limits = [
            // The only limit with which the host's kernel passes no core dump to a program of the host.
            (CORE, Some((1, 1))),
            (CPU, cpu),
            (FILE_SIZE, both(self.limits.file_size_bytes)),
            (OPEN_FILES, both(self.limits.open_files)),
        ];
        for (resource, limit) in limits {
            if let Some((soft, hard)) = limit {
                writer.step(&Step::CommandLimit {
                    resource,
                    soft,
                    hard,
                });
            }
        }
        if self.proxy.is_some() {
            // Before the first command, which could take the port.
            let port = self.proxy_port;
            writer.step(&Step::Listen { port });
        }
        if self.makes_directories {
            // Without a place for temporary files there can be commands all the same.
            writer.optional_step(
                TEMPORARY_DIRECTORY,
                &Step::OwnedDirectory {
                    path: &c_path(&self.temporary_directory)?,
                    identity: None,
                    mode: 0o1777,
                },
            );
            writer.step(&Step::OwnedDirectory {
                path: &c_path(&self.working_directory)?,
                identity: self.identity,
                mode: 0o755,
            });
        }
        if let Some(program) = filter().filter(|_| self.filters_calls) {
            let program = &program;
            writer.optional_step(FILTER, &Step::Filter { program });
        }
        writer.step(&Step::CommandIdentity {
            identity: self.identity,
            root: &c_path(&self.root)?,
        });
        Ok(writer.into_bytes())
    }
}

/// Returns the filter of commands in a container, which has namespaces of its own; `None` where no supervisor runs.
fn filter() -> Option<Vec<u8>> {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    return Some(filter::program(filter::FilterOptions {
        sockets: filter::AllowedSockets::Ordinary,
        shares_with_host: false,
        subprocesses: true,
        set_id_modes: true,
    }));
    #[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
    None
}

/// Returns an absolute path as a C string.
pub(super) fn c_path(path: &SandboxPath) -> Result<CString, SandboxError> {
    c_string(&os_path(path))
}
