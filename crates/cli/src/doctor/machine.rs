//! What else there is: the program itself, tools, keys, space.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::policy::{Policy, Strictness};
use cantle::core::sandbox::{
    Backend as _, SandboxContext, SandboxError, SandboxExt as _, SpawnRequest,
};

use super::report::{Check, State};
use crate::display::{one_line, size};
use crate::place;
use crate::provider::Provider;
use crate::settings::variable;

/// How long one look may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The kernels that have what the local backend can't do without, and Landlock.
const NEEDED: (u32, u32) = (5, 6);
const WITH_LANDLOCK: (u32, u32) = (5, 13);

/// Less free space than this is told.
const LITTLE_BYTES: u64 = 1_000_000_000;

/// Facts of the program itself.
pub(super) fn cantle() -> Check {
    let linked = if cfg!(target_feature = "crt-static") {
        "static"
    } else {
        "dynamic"
    };
    let (version, arch, os) = (
        env!("CARGO_PKG_VERSION"),
        std::env::consts::ARCH,
        std::env::consts::OS,
    );
    Check::new(
        "cantle",
        State::Ok,
        format!("{version}, {linked}, for {os} on {arch}"),
    )
}

pub(super) fn kernel() -> Check {
    const NAME: &str = "kernel";
    let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") else {
        let found = format!("{}, or no /proc", std::env::consts::OS);
        return Check::new(NAME, State::Missing, found)
            .so("commands are confined on Linux 5.6 or newer with /proc only; elsewhere `unconfined` works");
    };
    let release = release.trim();
    let found = format!("Linux {release}");
    match version(release) {
        Some(version) if version < NEEDED => {
            Check::new(NAME, State::Missing, found).so("the local sandbox needs Linux 5.6 or newer")
        }
        Some(version) if version < WITH_LANDLOCK => Check::new(NAME, State::Degraded, found)
            .so("older than Landlock, which came with Linux 5.13"),
        _ => Check::new(NAME, State::Ok, found),
    }
}

/// The first two numbers of a release such as `6.1.0-13-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

pub(super) fn bash() -> Check {
    const NAME: &str = "bash";
    match find("bash") {
        Some(path) => Check::new(NAME, State::Ok, path.display().to_string()),
        None => Check::new(NAME, State::Missing, "not in PATH")
            .so("models can't run commands; `cantle exec` still runs programs"),
    }
}

/// Python as a sandbox sees it: what lies in somebody's home is not there.
pub(super) async fn python(backend: &LocalBackend) -> Check {
    const NAME: &str = "Python";
    let inside = tokio::time::timeout(LIMIT, python_inside(backend)).await;
    match (inside, find("python3")) {
        (Ok(Ok(Some(version))), _) => {
            Check::new(NAME, State::Ok, format!("{version}, seen in a sandbox"))
        }
        (_, Some(path)) => {
            let found = format!("{}, but not in a sandbox", path.display());
            Check::new(NAME, State::Degraded, found).so(
                "commands have no python3: sandboxes show the system's directories, such as /usr and /opt, and \
                 no home",
            )
        }
        (_, None) => Check::new(NAME, State::Missing, "no python3 in PATH")
            .so("models like to work with it, and must do without"),
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

/// Whether a container engine answers, and which.
pub(super) async fn docker() -> Check {
    const NAME: &str = "Docker";
    let engine = place::containers();
    match tokio::time::timeout(LIMIT, engine.probe()).await {
        Ok(Ok(report)) => {
            let address = without_user(&report.address);
            let found = format!("{} at {address}, {}", report.version, report.platform);
            Check::new(NAME, State::Ok, found)
                .so("commands can run in containers: --backend docker:IMAGE")
        }
        Ok(Err(error)) => Check::new(NAME, State::Missing, one_line(&error.to_string()))
            .so("only --backend docker: needs it; commands run in local sandboxes"),
        Err(_) => Check::new(NAME, State::Missing, "no answer".to_owned())
            .so("only --backend docker: needs it; commands run in local sandboxes"),
    }
}

/// An address without the user and the password that may stand in it.
fn without_user(address: &str) -> String {
    match (address.split_once("://"), address.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://{host}"),
        _ => address.to_owned(),
    }
}

/// Which variables hold a key. Never what they hold.
pub(super) fn keys() -> Check {
    const NAME: &str = "keys";
    let is_set = |name: &&str| variable(name).is_some_and(|key| !key.trim().is_empty());
    let (set, unset): (Vec<&str>, Vec<&str>) = Provider::all_key_variables().partition(is_set);
    if set.is_empty() {
        return Check::new(NAME, State::Missing, format!("none of {}", unset.join(", "))).so(
            "cantle run works with a server that wants no key (--provider local, --base-url); cantle demo \
             needs none",
        );
    }
    Check::new(NAME, State::Ok, format!("{} set", set.join(", ")))
}

/// The space where sandboxes keep their files.
pub(super) fn disk() -> Check {
    const NAME: &str = "disk";
    let directory = std::env::temp_dir();
    let shown = directory.display();
    let space = match rustix::fs::statvfs(&directory) {
        Ok(space) => space,
        Err(error) => {
            let found = format!("{shown}: {}", std::io::Error::from(error));
            return Check::new(NAME, State::Missing, found)
                .so("sandboxes have no place: set TMPDIR to a directory that can be written");
        }
    };
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    let found = format!("{} free in {shown}", size(free));
    if rustix::fs::access(&directory, rustix::fs::Access::WRITE_OK).is_err() {
        return Check::new(NAME, State::Missing, format!("{shown} can't be written"))
            .so("sandboxes have no place: set TMPDIR to a directory that can be written");
    }
    if free < LITTLE_BYTES {
        return Check::new(NAME, State::Degraded, found).so(
            "commands that need more fail: set TMPDIR to a larger place, or --limit disk=SIZE",
        );
    }
    Check::new(NAME, State::Ok, found)
}

/// The first executable of this name in `PATH`.
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
    fn kernels_have_numbers() {
        let releases = ["6.1.0-13-amd64", "5.15.153.1-microsoft", "5.6", "rolling"];
        let expected = [Some((6, 1)), Some((5, 15)), Some((5, 6)), None];
        assert_eq!(releases.map(version), expected);
    }

    #[test]
    fn passwords_in_an_address_are_not_shown() {
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
    fn only_programs_are_found() {
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
