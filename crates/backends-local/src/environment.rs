//! What commands find in their environment, and how programs are found.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle_core::policy::Policy;
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;

use crate::files::Seen;
use crate::open::Built;

/// Where to look where the host has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The variables that every command of a sandbox has.
#[derive(Clone, Debug)]
pub(crate) struct Environment {
    variables: Vec<(OsString, OsString)>,
    search_path: OsString,
}

impl Environment {
    /// The few every shell needs, and the policy's over them.
    pub(crate) fn new(
        search_path: OsString,
        shell: &Path,
        seen: &Seen,
        built: &Built,
        policy: &Policy,
    ) -> Self {
        let own = || ["USER", "LOGNAME"].into_iter().find_map(std::env::var_os);
        let user = built.user.map(OsString::from).or_else(own);
        let user = user.unwrap_or_else(|| "user".into());
        let mut environment = Self {
            variables: vec![
                ("HOME".into(), seen.work.to_string().into()),
                ("LANG".into(), "C.UTF-8".into()),
                ("LOGNAME".into(), user.clone()),
                ("PATH".into(), search_path.clone()),
                // Where it isn't set, bash asks the user database for it, which takes a while.
                ("SHELL".into(), shell.into()),
                ("TERM".into(), "dumb".into()),
                ("TMPDIR".into(), seen.temporary.to_string().into()),
                ("USER".into(), user),
            ],
            search_path,
        };
        if let Some(port) = built.proxy_port {
            let proxy = format!("http://127.0.0.1:{port}");
            for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
                environment
                    .variables
                    .push((name.into(), proxy.clone().into()));
            }
            for name in ["NO_PROXY", "no_proxy"] {
                // The sandbox's own servers.
                let own = "localhost,127.0.0.1,::1";
                environment.variables.push((name.into(), own.into()));
            }
        }
        for (name, value) in &policy.environment {
            if name == "PATH" {
                environment.search_path = value.expose().into();
            }
            environment
                .variables
                .push((name.into(), value.expose().into()));
        }
        environment
    }

    pub(crate) fn variables(&self) -> &[(OsString, OsString)] {
        &self.variables
    }

    pub(crate) fn search_path(&self) -> &OsStr {
        &self.search_path
    }
}

/// Refuses names that no variable can have.
///
/// Values with NUL are refused when the command is started.
pub(crate) fn check(variables: &BTreeMap<String, SecretText>) -> Result<(), SandboxError> {
    for name in variables.keys() {
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = format!("`{}` can't be the name of a variable", name.escape_debug());
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
    }
    Ok(())
}

/// The absolute directories of a `PATH`; a relative one would mean another place for each command.
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

/// The first executable file called `name` in a `PATH`; relative entries start at `directory`.
pub(crate) fn find_program(name: &OsStr, search_path: &OsStr, directory: &Path) -> Option<PathBuf> {
    std::env::split_paths(search_path)
        .map(|entry| directory.join(entry).join(name))
        .find(|candidate| is_executable(candidate))
}

pub(crate) fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
