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

/// Maximum time until the server is idle; idle threads live for ten seconds.
const QUIET_DEADLINE: Duration = Duration::from_secs(60);

/// `cantle serve` with its own directory, killed on drop.
pub(super) struct Served {
    child: Child,
    directory: TempDir,
    pub(super) address: SocketAddr,
    /// Number of threads when it began to listen.
    threads: usize,
}

/// Processes, descriptors and files of the server.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Traces {
    /// Descendants, including orphans.
    pub(super) processes: usize,
    pub(super) descriptors: usize,
    pub(super) mounts: usize,
    /// Files and directories created by the server.
    pub(super) files: usize,
    /// Control groups named like the server's.
    pub(super) groups: usize,
}

impl Served {
    pub(super) fn start(cantle: &Path) -> Result<Self> {
        // Orphans are reparented to this process and counted.
        set_child_subreaper(Some(rustix::process::getpid()))?;
        let directory = tempfile::tempdir()?;
        // As root, commands run as another user, who must be able to traverse the directory.
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o711))?;
        let mut child = Command::new(cantle)
            .args(["serve", "--listen", "127.0.0.1:0"])
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

    /// Stops the server gracefully.
    pub(super) fn stop(mut self) -> Result<()> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }

    /// Waits until the server is idle.
    pub(super) async fn wait_until_idle(&self) -> Result<()> {
        let deadline = Instant::now() + QUIET_DEADLINE;
        while self.count("task")? > self.threads {
            ensure!(Instant::now() < deadline, "it is never quiet");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(())
    }

    /// Returns the resident memory, in MB (10^6 bytes).
    pub(super) fn memory_mb(&self) -> Result<f64> {
        self.status_mb("VmRSS:")
    }

    /// Returns the peak resident memory, in MB.
    pub(super) fn peak_memory_mb(&self) -> Result<f64> {
        self.status_mb("VmHWM:")
    }

    fn status_mb(&self, name: &str) -> Result<f64> {
        let status = fs::read_to_string(self.proc_path("status"))?;
        let line = status.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        let kilobytes: f64 = number.context("the kernel does not say it")?.parse()?;
        Ok(kilobytes * 1024.0 / 1e6)
    }

    pub(super) fn traces(&self) -> Result<Traces> {
        Ok(Traces {
            processes: self.other_descendants()?,
            descriptors: self.count("fd")?,
            mounts: fs::read_to_string(self.proc_path("mountinfo"))?
                .lines()
                .count(),
            files: entries(self.directory.path(), &|_| true),
            groups: entries(Path::new("/sys/fs/cgroup"), &|name| {
                name.starts_with("cantle-")
            }),
        })
    }

    fn proc_path(&self, what: &str) -> String {
        format!("/proc/{}/{what}", self.child.id())
    }

    fn count(&self, what: &str) -> Result<usize> {
        Ok(fs::read_dir(self.proc_path(what))?.count())
    }

    /// Counts descendants of this process except the server itself.
    fn other_descendants(&self) -> Result<usize> {
        let mut parents = Vec::new();
        for entry in fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
                continue;
            };
            // The process may have ended.
            let Ok(stat) = fs::read_to_string(format!("/proc/{pid}/stat")) else {
                continue;
            };
            // `PID (NAME) STATE PARENT …`; the name may contain any character.
            let mut rest = stat.rsplit_once(") ").unwrap_or_default().1.split(' ');
            let (state, parent) = (rest.next(), rest.next());
            let parent: u32 = parent.and_then(|parent| parent.parse().ok()).unwrap_or(0);
            // Ignores reparented zombies.
            if !(state == Some("Z") && parent == std::process::id()) {
                parents.push((pid, parent));
            }
        }
        let mut descendants = vec![std::process::id()];
        let mut at = 0;
        while let Some(ancestor) = descendants.get(at).copied() {
            let children = parents.iter().filter(|(_, parent)| *parent == ancestor);
            descendants.extend(children.map(|(pid, _)| *pid));
            at += 1;
        }
        let others = descendants
            .iter()
            .skip(1)
            .filter(|pid| **pid != self.child.id());
        Ok(others.count())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Fails if the server has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
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
