//! A Docker engine, and images that come from no registry.
//!
//! An engine that already answers is used. Otherwise root starts one in its own namespaces, so that all
//! its processes and mounts end with it and the host's network is not touched.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Result, bail};
use tempfile::TempDir;

use super::python::source;
use super::server::{Server, answers};
use super::{Installer, Ready};
use crate::shell;

/// An image with some of this machine's programs; [`BUSYBOX`] holds nothing but BusyBox.
const SLICE: &str = "cantle-test:slice";
const BUSYBOX: &str = "cantle-test:busybox";

/// Runs an engine in a directory.
const ENGINE: &str = "docker_engine.sh";

pub fn bring_up(installer: &Installer) -> Result<Ready> {
    let images = images(installer)?;
    let (host, mut engine) = match running_engine() {
        Some(host) => (host, Ready::default()),
        None => start(installer)?,
    };
    for (name, file) in [(SLICE, "slice.tar"), (BUSYBOX, "busybox.tar")] {
        let mut import = Command::new("docker");
        import
            .args(["--host", &host, "import"])
            .args(["--change", "ENV PATH=/usr/local/bin:/usr/bin:/bin"])
            .args(["--change", "CMD [\"sh\"]"])
            .arg(images.join(file))
            .arg(name);
        installer.step("docker-import", &import)?;
    }
    let mut variables = vec![
        ("CANTLE_TEST_DOCKER_HOST", host),
        ("CANTLE_TEST_DOCKER_IMAGE", SLICE.to_owned()),
        ("CANTLE_TEST_DOCKER_BUSYBOX", BUSYBOX.to_owned()),
    ];
    if can_start() {
        // For tests that kill their engine.
        let script = source(ENGINE).display().to_string();
        variables.push(("CANTLE_TEST_DOCKER_ENGINE", script));
    }
    engine.variables = variables;
    Ok(engine)
}

/// The images as archives: a slice of this machine (BusyBox, bash, Python, git, apt), and BusyBox alone.
fn images(installer: &Installer) -> Result<PathBuf> {
    let busybox = super::busybox::program(installer)?;
    let script = source("docker_images.sh");
    let recipe = fs::read_to_string(&script)?;
    installer.cached("docker", &recipe, |directory| {
        let mut build = Command::new("bash");
        build.arg(&script).arg(&busybox).arg(directory);
        installer.step("docker-images", &build)
    })
}

/// Returns the engine that `DOCKER_HOST` names or the machine's own, if it answers.
fn running_engine() -> Option<String> {
    let named = std::env::var("DOCKER_HOST").ok();
    let host = named.unwrap_or_else(|| "unix:///var/run/docker.sock".to_owned());
    shell::probe("docker", &["--host", &host, "version"]).map(|_| host)
}

/// Reports whether an engine can be started here.
fn can_start() -> bool {
    let namespaces = ["--mount", "--pid", "--fork", "--mount-proc", "true"];
    rustix::process::geteuid().is_root()
        && shell::probe("dockerd", &["--version"]).is_some()
        && shell::probe("unshare", &namespaces).is_some()
}

fn start(installer: &Installer) -> Result<(String, Ready)> {
    if !can_start() {
        bail!("no Docker engine answers, and one needs root, namespaces and dockerd to be started");
    }
    // Not below the target directory: the name of a socket is short.
    let place = tempfile::Builder::new()
        .prefix("cantle-docker-")
        .tempdir()?;
    let socket = place.path().join("docker.sock");
    let host = format!("unix://{}", socket.display());
    let mut command = Command::new("sh");
    command.arg(source(ENGINE)).arg(place.path());
    let server = Server::start_when(installer, "docker", &command, || engine_answers(&socket))?;
    let ready = Ready::served(server, []).with_leftovers(EngineFiles(place));
    Ok((host, ready))
}

/// Reports whether the engine answers on its socket.
fn engine_answers(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok_and(|stream| {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
        answers(stream, "/_ping")
    })
}

/// The directory of an engine, and its control groups, which have the directory's name; removed on drop.
struct EngineFiles(TempDir);

impl Drop for EngineFiles {
    fn drop(&mut self) {
        let Some(name) = self.0.path().file_name() else {
            return;
        };
        let Ok(hierarchies) = fs::read_dir("/sys/fs/cgroup") else {
            return;
        };
        for hierarchy in hierarchies.flatten() {
            let mut remove = Command::new("find");
            remove
                .arg(hierarchy.path().join(name))
                .args(["-depth", "-type", "d", "-delete"]);
            // Silent: most hierarchies are other names of the same one.
            let _ = remove.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        let directory = self.0.path();
        if let Err(error) = fs::remove_dir_all(directory) {
            eprintln!("xtask: failed to remove {}: {error}", directory.display());
        }
    }
}
