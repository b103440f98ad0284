//! Starting a command.
//!
//! `fork` copies the page tables of this process: with a few gigabytes in memory that takes a
//! tenth of a second. The standard library uses `posix_spawn`, whose time doesn't depend on that,
//! as long as nothing is to be done between fork and exec (`pre_exec`, `uid`), the program is
//! given with its path, and the C library can change the directory.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cantle_core::sandbox::{
    Channel, Command as Line, SandboxError, SandboxErrorKind, SpawnRequest, Stdin,
};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Command;
use super::drive::{Course, Driver};
use super::output::{LocalOutput, Outlet, PIECES_IN_FLIGHT};
use super::process::LocalProcess;
use super::spill::SpillPlace;
use super::stdin::{LocalStdin, feed};
use crate::environment;
use crate::processes::Leader;
use crate::sandbox::Shared;

/// The standard library looks this function up while the program runs, and forks where it isn't
/// found. In a statically linked program it is only there if somebody names it.
#[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
static CHANGES_DIRECTORY: unsafe extern "C" fn(
    *mut libc::posix_spawn_file_actions_t,
    *const libc::c_char,
) -> libc::c_int = libc::posix_spawn_file_actions_addchdir_np;

/// Starts a command and the task that looks after it.
pub(crate) fn start(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<LocalProcess, SandboxError> {
    #[cfg(all(target_env = "gnu", target_feature = "crt-static"))]
    std::hint::black_box(CHANGES_DIRECTORY);

    if request.pty.is_some() {
        return Err(SandboxError::unsupported(
            "the local backend has no terminals",
        ));
    }
    environment::check(&request.environment)?;
    let directory = shared.root.directory_path(&request.directory)?;
    let number = shared.next_number();
    let marker = format!("{}.{number}", shared.info.id);

    let program = Program::find(shared, &request, &directory)?;

    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let spill = |name| {
        let file = format!("output-{number}.{name}");
        request
            .spill
            .map(|limits| SpillPlace::new(limits, Arc::clone(shared), file))
    };
    let (stdout, stdout_end) = new_pipe().map_err(failed)?;
    let (stderr, stderr_end) = new_pipe().map_err(failed)?;
    let stdout = Outlet::new(Channel::Stdout, stdout, spill("stdout")).map_err(failed)?;
    let stderr = Outlet::new(Channel::Stderr, stderr, spill("stderr")).map_err(failed)?;
    let (stdin, stdin_end) = input(&request.stdin).map_err(failed)?;

    let own = &shared.environment;
    let mut command = program.command();
    command
        .current_dir(&directory)
        .process_group(0)
        .stdin(stdin_end)
        .stdout(stdout_end)
        .stderr(stderr_end)
        .env_clear()
        .env("PWD", &directory)
        .envs(own.variables().iter().map(|(name, value)| (name, value)))
        .envs(
            request
                .environment
                .iter()
                .map(|(name, value)| (name, value.expose())),
        )
        .env("CANTLE_SANDBOX", &shared.info.id)
        .env("CANTLE_COMMAND", &marker);
    let started = Instant::now();
    let child = command
        .spawn()
        .map_err(|error| program.refused(shared, error))?;
    // It holds the command's ends of the pipes.
    drop(command);

    let command = Arc::new(Command {
        shared: Arc::clone(shared),
        leader: Arc::new(Leader::new(child)),
        number,
        marker: format!("CANTLE_COMMAND={marker}"),
        settled: AtomicBool::new(false),
    });
    let exited = shared
        .admit(number, &command.leader)
        .and_then(|()| watch_end(command.leader.pid()).map_err(failed));
    let exited = match exited {
        Ok(exited) => exited,
        Err(error) => {
            command.abandon();
            return Err(error);
        }
    };

    let (reader, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    let (outcome_sender, outcome) = watch::channel(None);
    let ended = CancellationToken::new();
    let (feeding, stdin) = match (stdin, request.stdin) {
        (Some(pipe), Stdin::Bytes(data)) => (Some(Box::pin(feed(pipe, data)) as _), None),
        (Some(pipe), _) => {
            let ended = ended.clone();
            (None, Some(LocalStdin { pipe, ended }))
        }
        (None, _) => (None, None),
    };
    let limit = match (request.timeout, shared.wall_time) {
        (Some(asked), Some(allowed)) => Some(asked.min(allowed)),
        (asked, allowed) => asked.or(allowed),
    };
    let driver = Driver {
        course: Course {
            command: Arc::clone(&command),
            exited,
            started,
            // One that no clock can reach is none.
            limit: limit.filter(|limit| started.checked_add(*limit).is_some()),
            grace: request.grace,
            cancellation: request.cancellation,
            background: request.background,
        },
        stdout,
        stderr,
        reader,
        feed: feeding,
        ended,
        outcome: outcome_sender,
    };
    let driver = Arc::new(AbortOnDropHandle::new(tokio::spawn(driver.run())));
    Ok(LocalProcess {
        command,
        output: Some(LocalOutput {
            pieces,
            _driver: Arc::clone(&driver),
        }),
        stdin,
        outcome,
        _driver: driver,
    })
}

/// A pipe: our end and the command's.
fn new_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

/// Becomes readable when the process ends.
fn watch_end(pid: Pid) -> io::Result<AsyncFd<OwnedFd>> {
    let descriptor = pidfd_open(pid, PidfdFlags::empty())?;
    #[expect(
        deprecated,
        reason = "unsound only for types that change their descriptor, which `OwnedFd` doesn't; \
                  what replaces it is an unsafe function"
    )]
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}

/// The command's input, and our end of it where there is one.
fn input(stdin: &Stdin) -> io::Result<(Option<pipe::Sender>, Stdio)> {
    match stdin {
        Stdin::Null => Ok((None, Stdio::null())),
        // Nothing to write: the end is all there is.
        Stdin::Bytes(data) if data.is_empty() => Ok((None, Stdio::null())),
        _ => {
            let (theirs, ours) = new_pipe()?;
            Ok((Some(pipe::Sender::from_owned_fd(ours)?), theirs.into()))
        }
    }
}

/// What is executed.
struct Program {
    /// Absolute.
    path: PathBuf,
    /// As it was asked for.
    name: OsString,
    arguments: Vec<OsString>,
}

impl Program {
    fn find(
        shared: &Shared,
        request: &SpawnRequest,
        directory: &Path,
    ) -> Result<Self, SandboxError> {
        let argv = match &request.command {
            Line::Shell(line) => {
                return Ok(Self {
                    path: shared.shell.clone(),
                    // Some shells are told by it what to be.
                    name: shared.shell.file_name().unwrap_or_default().into(),
                    // A line may begin with a hyphen.
                    arguments: vec!["-c".into(), "--".into(), line.clone()],
                });
            }
            Line::Argv(argv) => argv,
        };
        let named = |name: &OsStr| !name.is_empty() && !name.as_bytes().contains(&0);
        let (name, arguments) = match argv.split_first() {
            Some((name, arguments)) if named(name) => (name, arguments),
            _ => {
                let message = "a command must begin with the name of a program, without NUL";
                return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
            }
        };
        let path = if name.as_bytes().contains(&b'/') {
            directory.join(name)
        } else {
            let search_path = match request.environment.get("PATH") {
                Some(path) => OsStr::new(path.expose()),
                None => shared.environment.search_path(),
            };
            environment::find_program(name, search_path, directory).ok_or_else(|| {
                let name = name.to_string_lossy();
                let places = search_path.to_string_lossy();
                let message = format!("there is no program `{name}` in {places}");
                SandboxError::new(SandboxErrorKind::NotFound, message)
                    .with_advice("Give the program's path, or install it first.")
            })?
        };
        Ok(Self {
            path,
            name: name.clone(),
            arguments: arguments.to_vec(),
        })
    }

    fn command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.path);
        command.arg0(&self.name).args(&self.arguments);
        command
    }

    /// What a failed start says.
    fn refused(&self, shared: &Shared, error: io::Error) -> SandboxError {
        // The directory may be what wasn't found.
        if let Err(gone) = shared.root.check() {
            return gone;
        }
        let kind = error.kind();
        let error = SandboxError::io(format!("failed to start `{}`", self.path.display()), error);
        match kind {
            io::ErrorKind::ArgumentListTooLong => error.with_advice(
                "Write long content to a file first and give the command the file's path.",
            ),
            io::ErrorKind::NotFound => error.with_advice(
                "Check the path. A script's first line (`#!`) must name a program that exists.",
            ),
            io::ErrorKind::PermissionDenied => {
                error.with_advice("Make it executable first (`chmod +x`).")
            }
            _ => error,
        }
    }
}
