//! The environment of commands.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cantle_command_driver::os_path;
use cantle_core::policy::{Policy, ReadRoots};

use crate::files::ViewPaths;

/// The search path if the host has no `PATH`.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The certificates of the authorities that the system trusts: of Debian and others, of Fedora and others.
const CERTIFICATES: [&str; 2] = [
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
];

/// Returns the environment variables of every command of a sandbox: the basic ones and the policy's, which take
/// precedence.
pub(crate) fn variables(
    search_path: OsString,
    shell: &Path,
    view: &ViewPaths,
    policy: &Policy,
    user: Option<&str>,
    proxy: &[(&'static str, String)],
) -> BTreeMap<OsString, OsString> {
    let own = || ["USER", "LOGNAME"].into_iter().find_map(std::env::var_os);
    let user = user.map(OsString::from).or_else(own);
    let user = user.unwrap_or_else(|| "user".into());
    let temporary = os_path(&view.temporary);
    let installing = policy
        .write_roots
        .is_some()
        .then(|| installing_into(&temporary, &search_path));
    let mut variables: BTreeMap<OsString, OsString> = BTreeMap::from([
        ("HOME".into(), os_path(&view.work)),
        ("LANG".into(), "C.UTF-8".into()),
        ("LOGNAME".into(), user.clone()),
        ("PATH".into(), search_path),
        // Without it bash reads the user database, which takes a while.
        ("SHELL".into(), shell.into()),
        ("TERM".into(), "dumb".into()),
        ("TMPDIR".into(), temporary),
        ("USER".into(), user),
    ]);
    variables.extend(installing.into_iter().flatten());
    if !proxy.is_empty() {
        for (name, value) in proxy {
            variables.insert(name.into(), value.into());
        }
        if let Some(certificates) = CERTIFICATES.iter().find(|path| Path::new(path).exists()) {
            // Node, requests and uv have lists of their own, without the authorities that this machine trusts.
            for name in ["NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"] {
                variables.insert(name.into(), certificates.into());
            }
        }
    }
    for (name, value) in &policy.environment {
        variables.insert(name.into(), value.expose().into());
    }
    variables
}

/// Lets `pip install`, `npm install --global` and caches use a directory that is neither the system's nor the working
/// directory, and that Python and `PATH` already search.
fn installing_into(temporary: &OsStr, search_path: &OsStr) -> [(OsString, OsString); 6] {
    let below = |name: &str| {
        let mut path = temporary.to_owned();
        path.push(name);
        path
    };
    let mut path = below("/.local/bin:");
    path.push(search_path);
    [
        ("PATH", path),
        // Debian's pip refuses to install beside the system's packages, even for a user alone.
        ("PIP_BREAK_SYSTEM_PACKAGES", "1".into()),
        ("PYTHONUSERBASE", below("/.local")),
        ("NPM_CONFIG_CACHE", below("/.cache/npm")),
        ("NPM_CONFIG_PREFIX", below("/.local")),
        ("XDG_CACHE_HOME", below("/.cache")),
    ]
    .map(|(name, value)| (name.into(), value))
}

/// Returns the absolute directories of a `PATH`; a relative one would depend on the command's directory.
pub(crate) fn absolute_directories(search_path: Option<OsString>) -> OsString {
    let search_path = search_path.unwrap_or_else(|| DEFAULT_PATH.into());
    let directories = std::env::split_paths(&search_path);
    std::env::join_paths(directories.filter(|directory| directory.is_absolute()))
        .unwrap_or_default()
}

/// Returns the directories of a `PATH` that exist in the sandbox.
pub(crate) fn visible_directories(search_path: &OsStr, policy: &Policy) -> OsString {
    let is_visible = |directory: &PathBuf| {
        let is_below = |roots: &[PathBuf]| roots.iter().any(|root| directory.starts_with(root));
        let is_readable = match &policy.read_roots {
            None => true,
            Some(roots) => {
                let mut system = ReadRoots::SYSTEM.iter().filter(|_| roots.system);
                system.any(|root| directory.starts_with(root)) || is_below(&roots.paths)
            }
        };
        let is_writable = policy.write_roots.as_deref().is_some_and(is_below);
        (is_readable || is_writable) && directory.is_dir()
    };
    let visible = std::env::split_paths(search_path).filter(is_visible);
    // An empty search path would be the current directory.
    std::env::join_paths(visible)
        .ok()
        .filter(|path| !path.is_empty())
        .unwrap_or_else(|| DEFAULT_PATH.into())
}

pub(crate) fn is_executable(path: &Path) -> bool {
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
