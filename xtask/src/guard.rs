//! Child processes that cannot outlive this program, however it ends.
//!
//! A command runs in its own process group under a second copy of this program (the *guard*), which
//! holds the read end of a pipe. When the pipe closes (the work is done, an error, Ctrl-C or SIGKILL) the
//! guard ends the whole group: TERM, then KILL after a grace period. A group is signalled only while its
//! leader exists, at least as a zombie, so that its id cannot have been reused.

use std::fs::File;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::shell;

/// Time between TERM and KILL.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A command under a guard. Dropping it ends the group and waits for its end.
pub struct Guarded {
    guard: Child,
    lifeline: Option<ChildStdin>,
}

impl Guarded {
    /// Starts `command` with an empty standard input. `stdout` and `stderr` replace those of `command`,
    /// which cannot be read back from it.
    pub fn spawn(command: &Command, stdout: Stdio, stderr: Stdio) -> Result<Guarded> {
        // The file at the program's path may be replaced while it runs.
        let mut guard = Command::new("/proc/self/exe");
        guard
            .args(["guard", "--"])
            .arg(command.get_program())
            .args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => guard.env(name, value),
                None => guard.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            guard.current_dir(directory);
        }
        let mut guard = guard
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(stdout)
            .stderr(stderr)
            .spawn()
            .with_context(|| format!("failed to start `{}`", shell::line(command)))?;
        let lifeline = guard.stdin.take();
        Ok(Guarded { guard, lifeline })
    }

    /// Starts `command` with all of its output in one file.
    pub fn spawn_into(command: &Command, output: &Path) -> Result<Guarded> {
        let file = File::create(output)?;
        Guarded::spawn(command, Stdio::from(file.try_clone()?), Stdio::from(file))
    }

    /// Waits for the command's end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let status = self.wait_at_most(Duration::MAX)?;
        status.context("a process did not end")
    }

    /// Waits for the command's end for at most `limit`.
    pub fn wait_at_most(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        // `Child::wait` would close the pipe first.
        let start = Instant::now();
        loop {
            let status = self.status()?;
            if status.is_some() || start.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    /// Returns the command's status if it has ended.
    pub fn status(&mut self) -> Result<Option<ExitStatus>> {
        self.guard
            .try_wait()
            .context("failed to wait for a process")
    }

    /// Makes the guard end the group, without waiting for it.
    pub fn release(&mut self) {
        self.lifeline = None;
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.release();
        if let Err(error) = self.guard.wait() {
            eprintln!("xtask: failed to wait for a guard: {error}");
        }
    }
}

/// The command line of the guard.
#[derive(clap::Args)]
pub struct GuardArgs {
    #[arg(last = true, required = true)]
    command: Vec<std::ffi::OsString>,
}

/// Runs the command until it ends or standard input closes; returns its exit code.
pub fn run(args: &GuardArgs) -> ExitCode {
    let Some((program, rest)) = args.command.split_first() else {
        return ExitCode::FAILURE;
    };
    let child = Command::new(program)
        .args(rest)
        .stdin(Stdio::null())
        .process_group(0)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            eprintln!("failed to start `{}`: {error}", program.to_string_lossy());
            return ExitCode::from(127);
        }
    };
    let group = Pid::from_child(&child);

    static ORPHANED: AtomicBool = AtomicBool::new(false);
    thread::spawn(|| {
        // The pipe ends when its owner does.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        ORPHANED.store(true, Ordering::Relaxed);
    });

    let mut kill_at = None;
    while !is_zombie(group) {
        let now = Instant::now();
        match kill_at {
            None if ORPHANED.load(Ordering::Relaxed) => {
                end(group, Signal::TERM);
                kill_at = Some(now + GRACE);
            }
            Some(at) if now >= at => end(group, Signal::KILL),
            _ => {}
        }
        thread::sleep(POLL);
    }
    // Processes that the leader left in its group.
    end(group, Signal::KILL);
    match child.wait() {
        Ok(status) => exit_code(status),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Reports whether the process has ended, without reaping it: its id stays in use.
fn is_zombie(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(
        waitid(WaitId::Pid(pid), options),
        Ok(None) | Err(Errno::INTR)
    )
}

fn end(group: Pid, signal: Signal) {
    match kill_process_group(group, signal) {
        // PERM: only the zombie is left.
        Ok(()) | Err(Errno::SRCH | Errno::PERM) => {}
        Err(error) => eprintln!("xtask: failed to end process group {group:?}: {error}"),
    }
}

fn exit_code(status: ExitStatus) -> ExitCode {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .map_or(ExitCode::FAILURE, ExitCode::from)
}
