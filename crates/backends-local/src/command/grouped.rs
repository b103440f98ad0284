//! Commands that are ordinary children of ours, each with a process group.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command as Child, Stdio};
use std::sync::Arc;

use cantle_core::sandbox::{ExitStatus, SandboxError, SandboxErrorKind, SpawnRequest};
use rustix::process::Signal;
use tokio::sync::oneshot;

use super::channels::Channels;
use super::start::{Launch, Launched, Step};
use super::{Command, Starting};
use crate::engine::Group;
use crate::sandbox::Shared;

/// A command and its group.
#[derive(Debug)]
pub(super) struct Running {
    group: Arc<Group>,
}

impl Running {
    pub(super) fn kill(&self, _: &Shared) {
        self.group.signal(Signal::KILL);
        self.group.release();
    }

    pub(super) fn terminate(&self, _: &Shared) {
        self.group.signal(Signal::TERM);
        // What is stopped would hear of it only when it is continued.
        self.group.signal(Signal::CONT);
    }

    pub(super) fn signal(&self, _: &Shared, _: i32, signal: i32) {
        if let (Some(signal), false) = (Signal::from_named_raw(signal), self.group.is_reaped()) {
            self.group.signal(signal);
        }
    }

    /// Who is in the group is not told, but that somebody is.
    pub(super) async fn list(&self, _: &Shared) -> Option<Vec<u8>> {
        self.group.let_go().await;
        let id = self.group.id().as_raw_nonzero();
        let left = format!("{id} (processes of this group)\0");
        (!self.group.is_over()).then(|| left.into())
    }
}

/// The end of a command's first process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// Whether it has left nothing running, which isn't known.
    pub(super) alone: bool,
}

/// What a group tells of its first process.
#[derive(Debug)]
pub(super) struct Reports {
    group: Arc<Group>,
    end: oneshot::Receiver<ExitStatus>,
    ended: Option<Ended>,
}

impl Reports {
    /// Waits for the end of the first process; `None` where it will not be told. Cancel-safe.
    pub(super) async fn ended(&mut self) -> Option<Ended> {
        if self.ended.is_none()
            && let Ok(status) = (&mut self.end).await
        {
            self.ended = Some(Ended {
                status,
                alone: false,
            });
        }
        self.ended
    }

    /// Waits until the first process is let go. Cancel-safe.
    pub(super) async fn gone(&mut self) {
        self.ended().await;
        self.group.let_go().await;
    }

    /// What was said of the end so far.
    pub(super) fn end(&self) -> Option<Ended> {
        self.ended
    }
}

/// Starts a command.
pub(super) async fn launch(
    shared: &Arc<Shared>,
    launch: &Launch,
    request: &SpawnRequest,
) -> Result<Launched, SandboxError> {
    if request.pty.is_some() {
        let message = "there are no terminals without a confined sandbox";
        return Err(SandboxError::unsupported(message));
    }
    check(launch)?;
    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let channels = Channels::pipes(&request.stdin).map_err(failed)?;
    let (ours, theirs) = channels.split();
    let directory = launch.directory_path();
    let mut answer = io::Error::from(io::ErrorKind::NotFound);
    let mut started = None;
    for candidate in &launch.program.candidates {
        let mut child = Child::new(Path::new(&directory).join(candidate));
        child
            .arg0(&launch.program.name)
            .args(&launch.program.arguments)
            .env_clear()
            .envs(launch.variables.iter().map(|(name, value)| (name, value)))
            .current_dir(&directory);
        let [stdin, stdout, stderr] = theirs.as_slice() else {
            break;
        };
        let copy = |end: &std::os::fd::OwnedFd| end.try_clone().map(Stdio::from);
        child.stdin(copy(stdin).map_err(failed)?);
        child.stdout(copy(stdout).map_err(failed)?);
        child.stderr(copy(stderr).map_err(failed)?);
        match shared.engine.start(launch.id, &mut child) {
            Ok(group) => {
                started = Some(group);
                break;
            }
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {}
                // There may be another one further on.
                io::ErrorKind::PermissionDenied => answer = error,
                _ => {
                    answer = error;
                    break;
                }
            },
        }
    }
    drop(theirs);
    let Some((group, end)) = started else {
        return Err(launch.refused(shared, Step::Execute, answer));
    };
    let running = Running {
        group: Arc::clone(&group),
    };
    let command = Arc::new(Command::new(Arc::clone(shared), running));
    Ok(Launched {
        starting: Starting(Some(Arc::clone(&command))),
        command,
        pid: group.id().as_raw_nonzero().get(),
        reports: Reports {
            group,
            end,
            ended: None,
        },
        ends: ours.open(None).map_err(failed)?,
    })
}

/// Refuses what can't be said to a program.
fn check(launch: &Launch) -> Result<(), SandboxError> {
    let program = &launch.program;
    let words = [&program.name].into_iter().chain(&program.arguments);
    let variables = launch.variables.iter().map(|(_, value)| value);
    let has_nul = |text: &OsStr| text.as_bytes().contains(&0);
    if words.chain(variables).any(|text| has_nul(text)) {
        let message = "a command, its directory and its variables must be without NUL";
        return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
    }
    Ok(())
}
