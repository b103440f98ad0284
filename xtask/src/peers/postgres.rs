//! PostgreSQL of the system, with a database that ends with the tests.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::server::Server;
use super::{Installer, Ready};

/// Where Debian has the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user that Debian's package creates: the server refuses to run as root.
const USER: &str = "postgres";

/// Reports whether the server is installed.
pub fn is_installed() -> bool {
    programs().is_some()
}

/// Creates a database and starts its server, which listens on a socket only.
pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let programs = programs().context("there is no PostgreSQL below /usr/lib/postgresql")?;
    let place = tempfile::Builder::new()
        .prefix("cantle-postgres-")
        .tempdir()?;
    if rustix::process::geteuid().is_root() {
        let mut chown = Command::new("chown");
        installer.step("postgres", chown.arg(USER).arg(place.path()))?;
    }
    let data = place.path().join("data");
    let mut create = run_as_user(&programs.join("initdb"), place.path());
    create
        .args(["--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"])
        .args(["--username", USER, "--pgdata"]);
    installer.step("postgres", create.arg(&data))?;
    let mut start = run_as_user(&programs.join("postgres"), place.path());
    start.arg("-D").arg(&data).arg("-k").arg(place.path());
    for setting in [
        "listen_addresses=",
        "fsync=off",
        "synchronous_commit=off",
        "full_page_writes=off",
    ] {
        start.args(["-c", setting]);
    }
    let log = installer.log("postgres");
    let server = Server::start_when(installer, "postgres", &start, || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        text.contains("ready to accept connections")
    })?;
    let address = format!("host={} user={USER} dbname={USER}", place.path().display());
    Ok(Ready::served(server, [("CANTLE_TEST_POSTGRES", address)]).with_leftovers(place))
}

fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir(VERSIONS).ok()?.flatten();
    let programs = versions.map(|version| version.path().join("bin"));
    programs.filter(|it| it.join("initdb").exists()).max()
}

/// A command that does not run as root.
fn run_as_user(program: &Path, directory: &Path) -> Command {
    let mut command = if rustix::process::geteuid().is_root() {
        let mut command = Command::new("setpriv");
        command
            .arg(format!("--reuid={USER}"))
            .arg(format!("--regid={USER}"))
            .args(["--clear-groups", "--"])
            .arg(program);
        command
    } else {
        Command::new(program)
    };
    command.current_dir(directory);
    command
}
