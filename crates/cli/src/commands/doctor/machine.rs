//! Checks of the program, the kernel version, tools, keys and disk space.

use std::env::consts::{ARCH, OS};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::policy::{Policy, Strictness};
use cantle::core::sandbox::{
    Backend as _, SandboxContext, SandboxError, SandboxExt as _, SpawnRequest,
};

use super::report::Finding;
use crate::backend;
use crate::environment::variable;
use crate::provider::Provider;
use crate::text::{one_line, size};
use crate::web::service_variables;

/// Maximum duration of one check.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The first kernel versions that support the local backend, and Landlock.
const NEEDED: (u32, u32) = (5, 6);
const WITH_LANDLOCK: (u32, u32) = (5, 13);

/// Free space below this is reported.
const LOW_DISK_BYTES: u64 = 1_000_000_000;

pub(super) fn cantle() -> Finding {
    let linked = if cfg!(target_feature = "crt-static") {
        "static"
    } else {
        "dynamic"
    };
    let version = env!("CARGO_PKG_VERSION");
    Finding::ok(format!("{version}, {linked}, for {OS} on {ARCH}"))
}

pub(super) fn kernel() -> Finding {
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else {
        return Finding::missing(
            format!("{OS}, or no /proc"),
            "commands are isolated only on Linux 5.6 or newer with /proc; elsewhere use the policy `unconfined`",
        );
    };
    let release = release.trim();
    let found = format!("Linux {release}");
    match version(release) {
        Some(version) if version < NEEDED => {
            Finding::missing(found, "the local sandbox needs Linux 5.6 or newer")
        }
        Some(version) if version < WITH_LANDLOCK => {
            Finding::degraded(found, "Landlock needs Linux 5.13 or newer")
        }
        _ => Finding::ok(found),
    }
}

/// Parses the first two numbers of a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn bash() -> Finding {
    match find("bash") {
        Some(path) => Finding::ok(path.display().to_string()),
        None => Finding::missing(
            "not in PATH",
            "models can't run commands; `cantle exec` still runs programs",
        ),
    }
}

/// Checks Python inside of a sandbox, which has no home directories.
pub(super) async fn python(backend: &LocalBackend) -> Finding {
    let inside = tokio::time::timeout(TIMEOUT, python_inside(backend)).await;
    match (inside, find("python3")) {
        (Ok(Ok(Some(version))), _) => Finding::ok(format!("{version}, available in sandboxes")),
        (_, Some(path)) => Finding::degraded(
            format!("{}, but not available in sandboxes", path.display()),
            "commands can't use it: sandboxes contain the system's directories, such as /usr and /opt, but no \
             home directories",
        ),
        (_, None) => {
            let consequence = "models can't use Python in commands";
            Finding::missing("no python3 in PATH", consequence)
        }
    }
}

async fn python_inside(backend: &LocalBackend) -> Result<Option<String>, SandboxError> {
    let mut policy = Policy::workspace();
    policy.strictness = Strictness::BestEffort;
    let sandbox = backend
        .open(SandboxContext::new(RunId::new(), policy))
        .await?;
    let command = SpawnRequest::shell("python3 -c 'import sys; print(sys.version.split()[0])'");
    let output = sandbox.run(command).await;
    sandbox.close().await?;
    let output = output?;
    let version = output.stdout.text().trim().to_owned();
    Ok((output.exit.status.success() && !version.is_empty()).then_some(version))
}

/// Checks for a container engine.
pub(super) async fn docker() -> Finding {
    let engine = backend::containers();
    let missing = match tokio::time::timeout(TIMEOUT, engine.probe()).await {
        Ok(Ok(report)) => {
            let address = without_user(&report.address);
            let found = format!("{} at {address}, {}", report.version, report.platform);
            return Finding::ok(found)
                .with_consequence("commands can run in containers: --backend docker:IMAGE");
        }
        Ok(Err(error)) => one_line(&error.to_string()),
        Err(_) => "no answer".to_owned(),
    };
    let consequence = "only --backend docker: needs it; commands run in local sandboxes";
    Finding::missing(missing, consequence)
}

/// Removes user and password from an address.
fn without_user(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => address.to_owned(),
    }
}

/// Checks which variables hold a key, without revealing it.
pub(super) fn keys() -> Finding {
    let is_set = |name: &&str| variable(name).is_some_and(|key| !key.trim().is_empty());
    let (set, unset): (Vec<&str>, Vec<&str>) = Provider::all_key_variables().partition(is_set);
    if set.is_empty() {
        return Finding::missing(
            format!("none of {}", unset.join(", ")),
            "cantle run needs a server without keys (--provider local, --base-url); cantle demo needs no key",
        );
    }
    Finding::ok(format!("{} set", set.join(", ")))
}

/// Checks which search services have a key, and says where the web tools act.
pub(super) fn web() -> Finding {
    let (set, unset): (Vec<_>, Vec<_>) = service_variables().partition(|(_, is_set)| *is_set);
    let names = |list: Vec<(&str, bool)>| {
        let names: Vec<_> = list.into_iter().map(|(name, _)| name).collect();
        names.join(", ")
    };
    let found = match set.is_empty() {
        true => format!("fetch_web_page; web_search needs one of {}", names(unset)),
        false => format!("fetch_web_page, web_search ({} set)", names(set)),
    };
    Finding::ok(found).with_consequence(
        "off unless --tools web or --search; then data can leave through them: they act on this machine, outside of the \
         sandbox, on the hosts of --allow-host (all public ones without it) except those of --deny-host",
    )
}

/// Checks the disk space for sandboxes.
pub(super) fn disk() -> Finding {
    let directory = std::env::temp_dir();
    let shown = directory.display();
    let unusable = "sandboxes can't be created: set TMPDIR to a writable directory";
    let space = match rustix::fs::statvfs(&directory) {
        Ok(space) => space,
        Err(error) => {
            let found = format!("{shown}: {}", std::io::Error::from(error));
            return Finding::missing(found, unusable);
        }
    };
    if rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK).is_err() {
        return Finding::missing(format!("{shown} is not writable"), unusable);
    }
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{} free in {shown}", size(free));
    if free < LOW_DISK_BYTES {
        let consequence = "commands that need more fail: set TMPDIR to a directory with more space";
        return Finding::degraded(found, consequence);
    }
    Finding::ok(found)
}

/// Returns the first executable of this name in `PATH`.
fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    find_in(name, &path)
}

fn find_in(name: &str, path: &OsStr) -> Option<PathBuf> {
    let is_program = |path: &Path| {
        path.is_file() && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
    };
    std::env::split_paths(path)
        .filter(|directory| directory.is_absolute())
        .map(|directory| directory.join(name))
        .find(|candidate| is_program(candidate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_kernel_releases() {
        let releases = ["6.1.0-13-amd64", "5.15.153.1-microsoft", "5.6", "rolling"];
        let expected = [Some((6, 1)), Some((5, 15)), Some((5, 6)), None];
        assert_eq!(releases.map(version), expected);
    }

    #[test]
    fn removes_credentials_from_addresses() {
        assert_eq!(
            [
                "tcp://me:secret@host:2375",
                "ssh://me@host",
                "unix:///run/docker.sock"
            ]
            .map(without_user),
            ["tcp://host:2375", "ssh://host", "unix:///run/docker.sock"]
        );
    }

    #[test]
    fn finds_executables_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("tool");
        let find = || find_in("tool", directory.path().as_os_str());
        assert_eq!(find(), None);
        std::fs::write(&program, "").unwrap();
        assert_eq!(find(), None);
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(find(), Some(program));
    }
}
