//! A process that cannot outlive this program, however this program ends.
//!
//! What is started here runs in a process group of its own, under a second copy of this program
//! (the *guard*) that holds the other end of a pipe. When the pipe closes - because the work is
//! done, because of an error, Ctrl-C, or SIGKILL - the guard ends the whole group: TERM, and after a
//! grace KILL. Groups are ended by number only while their leader is still there (at least as a
//! zombie), so the number cannot have passed to somebody else.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::shell;

/// How long a group has between TERM and KILL.
const GRACE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// A command running under a guard. Dropped = the group is ended, and waited for.
pub struct Guarded {
    guard: Child,
    lifeline: Option<ChildStdin>,
}

impl Guarded {
    /// Starts `command` with an empty standard input. Its output goes to `stdout` and `stderr`; what
    /// `command` says of them cannot be read back from it.
    pub fn spawn(command: &Command, stdout: Stdio, stderr: Stdio) -> Result<Guarded> {
        // Not by name: the file may be replaced while this program runs.
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

    /// Waits for the command's own end.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        loop {
            if let Some(status) = self.wait_at_most(Duration::MAX)? {
                return Ok(status);
            }
        }
    }

    /// Waits for the command's own end, but no longer than `limit`.
    pub fn wait_at_most(&mut self, limit: Duration) -> Result<Option<ExitStatus>> {
        // Not `Child::wait`, which closes the pipe first.
        let start = Instant::now();
        loop {
            let status = self.ended()?;
            if status.is_some() || start.elapsed() >= limit {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    /// How the command ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.guard
            .try_wait()
            .context("failed to wait for a process")
    }

    /// Tells the guard to end the group, without waiting for it.
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

/// The guard's own command line.
#[derive(clap::Args)]
pub struct Args {
    #[arg(last = true, required = true)]
    command: Vec<std::ffi::OsString>,
}

/// The guard: runs the command, ends with its exit code, or when standard input closes.
pub fn run(args: &Args) -> ExitCode {
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
        // Ends at the pipe's end, or if it can't be read any more; both mean nobody is left.
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
    // Whatever the leader left behind in its group.
    end(group, Signal::KILL);
    match child.wait() {
        Ok(status) => exit_code(status),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Whether the process has ended; it stays a zombie, so that its number stays taken.
fn is_zombie(pid: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(
        waitid(WaitId::Pid(pid), options),
        Ok(None) | Err(Errno::INTR)
    )
}

fn end(group: Pid, signal: Signal) {
    match kill_process_group(group, signal) {
        // PERM: only the zombie is left in it.
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
