//! The environment of commands, and the lookup of programs.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle_core::policy::Policy;

use crate::files::ViewPaths;

/// The search path if the host has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The environment variables of every command of a sandbox.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    variables: Vec<(OsString, OsString)>,
}

impl Environment {
    /// Combines the basic variables with the policy's, which take precedence.
    pub(crate) fn new(
        search_path: OsString,
        shell: &Path,
        view: &ViewPaths,
        policy: &Policy,
        user: Option<&str>,
        proxy_port: Option<u16>,
    ) -> Self {
        let own = || ["USER", "LOGNAME"].into_iter().find_map(std::env::var_os);
        let user = user.map(OsString::from).or_else(own);
        let user = user.unwrap_or_else(|| "user".into());
        let mut environment = Self {
            variables: vec![
                ("HOME".into(), view.work.to_string().into()),
                ("LANG".into(), "C.UTF-8".into()),
                ("LOGNAME".into(), user.clone()),
                ("PATH".into(), search_path),
                // Without it bash reads the user database, which takes a while.
                ("SHELL".into(), shell.into()),
                ("TERM".into(), "dumb".into()),
                ("TMPDIR".into(), view.temporary.to_string().into()),
                ("USER".into(), user),
            ],
        };
        if let Some(port) = proxy_port {
            let proxy = format!("http://127.0.0.1:{port}");
            for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
                environment
                    .variables
                    .push((name.into(), proxy.clone().into()));
            }
            for name in ["NO_PROXY", "no_proxy"] {
                // Servers inside the sandbox.
                let own = "localhost,127.0.0.1,::1";
                environment.variables.push((name.into(), own.into()));
            }
        }
        for (name, value) in &policy.environment {
            environment
                .variables
                .push((name.into(), value.expose().into()));
        }
        environment
    }

    pub(crate) fn variables(&self) -> &[(OsString, OsString)] {
        &self.variables
    }
}

/// Returns the absolute directories of a `PATH`; a relative one would depend on the command's directory.
pub(crate) fn absolute_directories(search_path: Option<OsString>) -> OsString {
    let search_path = search_path.unwrap_or_else(|| DEFAULT_PATH.into());
    let absolute = search_path
        .as_bytes()
        .split(|byte| *byte == b':')
        .filter(|directory| directory.starts_with(b"/"))
        .collect::<Vec<_>>()
        .join(&b':');
    OsStr::from_bytes(&absolute).to_owned()
}

/// Returns the first executable file called `name` in a `PATH`; relative entries start at `directory`.
pub(crate) fn find_program(name: &OsStr, search_path: &OsStr, directory: &Path) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .map(|entry| directory.join(entry).join(name))
        .find(|candidate| is_executable(candidate))
}

pub(crate) fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
