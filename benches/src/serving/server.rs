//! Server process, with its resource usage and leftovers.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use rustix::process::{Pid, Signal, kill_process, set_child_subreaper};
use serde::Serialize;
use tempfile::TempDir;

use crate::process::{descendants, status_mb};

/// Maximum time until the server is idle; idle threads live for ten seconds.
const QUIET_DEADLINE: Duration = Duration::from_secs(60);

/// `cantle serve` with its own directory, killed on drop.
pub(crate) struct Served {
    child: Child,
    directory: TempDir,
    pub(crate) address: SocketAddr,
    /// Number of threads when it began to listen.
    threads: usize,
}

/// Processes, descriptors and files of the server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Traces {
    /// Descendants, including orphans.
    pub(crate) processes: usize,
    pub(crate) descriptors: usize,
    pub(crate) mounts: usize,
    /// Files and directories created by the server.
    pub(crate) files: usize,
    /// Control groups named like the server's.
    pub(crate) groups: usize,
    /// Loop devices of disk images on this machine.
    pub(crate) loop_devices: usize,
}

impl Traces {
    /// Names what there is more of than before.
    pub(crate) fn exceed(&self, before: &Self) -> Vec<String> {
        let all = [
            ("processes", self.processes, before.processes),
            ("descriptors", self.descriptors, before.descriptors),
            ("mounts", self.mounts, before.mounts),
            ("files", self.files, before.files),
            ("control groups", self.groups, before.groups),
            ("loop devices", self.loop_devices, before.loop_devices),
        ];
        let more = all.iter().filter(|(_, now, before)| now > before);
        more.map(|(name, now, before)| format!("{name}: {now} instead of {before}"))
            .collect()
    }
}

impl Served {
    pub(crate) fn start(cantle: &Path) -> Result<Self> {
        Self::start_with(cantle, [])
    }

    /// Starts it with further arguments.
    pub(crate) fn start_with<'a>(
        cantle: &Path,
        arguments: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self> {
        // Orphans are reparented to this process and counted.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let directory = tempfile::tempdir()?;
        // As root, commands run as another user, who must be able to traverse the directory.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        let mut child = Command::new(cantle)
            .args(["serve", "--listen", "127.0.0.1:0"])
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", directory.path())
            .env("TMPDIR", directory.path())
            .env("CANTLE_STATE_DIR", directory.path().join("state"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("no output")?).read_line(&mut line)?;
        // `listening on ADDRESS: …`
        let address = line
            .strip_prefix("listening on ")
            .and_then(|rest| rest.split_once(": "))
            .with_context(|| format!("it says where it listens, not {line:?}"))?
            .0
            .parse()?;
        let mut served = Self {
            child,
            directory,
            address,
            threads: 0,
        };
        served.threads = served.count("task")?;
        Ok(served)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Stops the server gracefully.
    pub(crate) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    /// Waits until the server is idle.
    pub(crate) async fn wait_until_idle(&self) -> Result<()> {
        let deadline = Instant::now() + QUIET_DEADLINE;
        while self.count("task")? > self.threads {
            ensure!(Instant::now() < deadline, "it is never quiet");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Returns the resident memory, in MB (10^6 bytes).
    pub(crate) fn memory_mb(&self) -> Result<f64> {
        status_mb(self.id(), "VmRSS:")
    }

    /// Returns the peak resident memory, in MB.
    pub(crate) fn peak_memory_mb(&self) -> Result<f64> {
        status_mb(self.id(), "VmHWM:")
    }

    pub(crate) fn traces(&self) -> Result<Traces> {
        Ok(Traces {
            processes: descendants(std::process::id(), None)?
                .iter()
                .filter(|pid| **pid != self.id())
                .count(),
            descriptors: self.count("fd")?,
            mounts: fs::read_to_string(self.proc_path("mountinfo"))?
                .lines()
                .count(),
            files: entries(self.directory.path(), &|_| true),
            groups: entries(Path::new("/sys/fs/cgroup"), &|name| {
                name.starts_with("cantle-")
            }),
            loop_devices: loop_devices(),
        })
    }

    fn proc_path(&self, what: &str) -> String {
        format!("/proc/{}/{what}", self.child.id())
    }

    fn count(&self, what: &str) -> Result<usize> {
        Ok(fs::read_dir(self.proc_path(what))?.count())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Fails if the server has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Counts the loop devices of disk images on this machine. Their mounts are in the namespaces of the sandboxes only.
pub(crate) fn loop_devices() -> usize {
    let Ok(devices) = fs::read_dir("/sys/block") else {
        return 0;
    };
    let backing = devices
        .flatten()
        .filter_map(|device| fs::read_to_string(device.path().join("loop/backing_file")).ok());
    // The kernel appends a mark to the path of a removed file.
    backing.filter(|file| file.contains("/disk.ext4")).count()
}

/// Counts the entries below a directory with a matching name, ignoring concurrent removals.
fn entries(directory: &Path, counts: &impl Fn(&str) -> bool) -> usize {
    let Ok(read) = fs::read_dir(directory) else {
        return 0;
    };
    let mut found = 0;
    for entry in read.flatten() {
        found += usize::from(counts(&entry.file_name().to_string_lossy()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found += entries(&entry.path(), counts);
        }
    }
    found
}
