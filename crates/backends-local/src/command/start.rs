//! Starting a command: its pipes are made here, the process by the supervisor.

use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use cantle_core::sandbox::{
    Channel, Command as Line, SandboxError, SandboxErrorKind, SandboxPath, SpawnRequest, Stdin,
};
use cantle_supervisor::Writer;
use cantle_supervisor::wire::{Order, Spawn, Stage};
use rustix::net::SocketFlags;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::channels::{Channels, Ends};
use super::drive::{Course, Driver};
use super::output::{Allowance, LocalOutput, Outlet, PIECES_IN_FLIGHT};
use super::process::LocalProcess;
use super::reports::{Reports, Started};
use super::spill::SpillPlace;
use super::stdin::{LocalStdin, feed};
use super::{Command, Starting};
use crate::environment;
use crate::proxy::Denials;
use crate::sandbox::Shared;
use crate::supervisor::{message_sockets, sealed};

/// How long the supervisor may be too busy to take an order.
const BUSY_DEADLINE: Duration = Duration::from_secs(5);

/// Starts a command and the task that looks after it.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<LocalProcess, SandboxError> {
    environment::check(&request.environment)?;
    let directory = shared.root.directory_path(&request.directory)?;
    let id = shared.next_number();
    let program = Program::find(shared, &request)?;
    let failed = |error| SandboxError::io("failed to prepare the command", error);
    let channels = match request.pty {
        None => Channels::pipes(&request.stdin),
        Some(size) if shared.has_terminals => Ok(Channels::own_terminal(size)),
        Some(size) => Channels::our_terminal(size),
    };
    let channels = channels.map_err(failed)?;
    let body = program.body(shared, &request, &directory, &channels)?;

    let spill = |name| {
        let file = format!("output-{id}.{name}");
        request
            .spill
            .map(|limits| SpillPlace::new(limits, Arc::clone(shared), file))
    };
    let body = sealed(&body).map_err(failed)?;
    let too_much_output = CancellationToken::new();
    let allowance = || Allowance {
        bytes: shared.limits.output_bytes.unwrap_or(u64::MAX),
        exceeded: too_much_output.clone(),
    };
    let outlet = |channel, source, name| Outlet::new(channel, source, spill(name), allowance());
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (reports, reports_end) = message_sockets(flags).map_err(|error| failed(error.into()))?;
    let mut reports = Reports::new(reports).map_err(failed)?;

    let denials_before = shared.denials().map_or(0, Denials::mark);
    let started = Instant::now();
    let fds: Vec<BorrowedFd<'_>> = [&body, &reports_end]
        .into_iter()
        .chain(&channels.theirs)
        .map(|end| end.as_fd())
        .collect();
    loop {
        match shared.order(Order::Spawn { id }, &fds) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if started.elapsed() > BUSY_DEADLINE {
                    return Err(SandboxError::io(
                        "the sandbox takes no more commands",
                        error,
                    ));
                }
                sleep(Duration::from_millis(1)).await;
            }
            Err(_) => return Err(shared.gone()),
            Ok(()) => break,
        }
    }
    let command = Arc::new(Command {
        shared: Arc::clone(shared),
        id,
        settled: AtomicBool::new(false),
    });
    let starting = Starting(Some(Arc::clone(&command)));
    // The supervisor has its own copies now.
    drop((body, reports_end));
    let (ours, theirs) = channels.split();
    drop(theirs);
    let (pid, master) = match reports.started().await {
        Started::Running(pid, master) => (pid, master),
        Started::Failed(stage, error) => {
            command.settle();
            return Err(program.refused(shared, stage, &directory, error));
        }
        Started::Gone => {
            command.settle();
            return Err(shared.gone());
        }
    };
    let Ends {
        stdin,
        stdout,
        stderr,
        terminal,
    } = ours.open(master).map_err(failed)?;
    let stdout = outlet(Channel::Stdout, stdout, "stdout");
    let stderr = outlet(Channel::Stderr, stderr, "stderr");
    // From here on its task and its handle look after it.
    starting.finish();

    let (reader, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    let (outcome_sender, outcome) = watch::channel(None);
    let ended = CancellationToken::new();
    let (feeding, stdin) = match (stdin, request.stdin) {
        (Some(sink), Stdin::Bytes(data)) => (Some(Box::pin(feed(sink, data)) as _), None),
        (Some(sink), _) => {
            let ended = ended.clone();
            (None, Some(LocalStdin { sink, ended }))
        }
        (None, _) => (None, None),
    };
    let limit = match (request.timeout, shared.limits.wall_time) {
        (Some(asked), Some(allowed)) => Some(asked.min(allowed)),
        (asked, allowed) => asked.or(allowed),
    };
    let driver = Driver {
        course: Course {
            command: Arc::clone(&command),
            reports,
            started,
            // One that no clock can reach is none.
            limit: limit.filter(|limit| started.checked_add(*limit).is_some()),
            grace: request.grace,
            cancellation: request.cancellation,
            background: request.background,
            denials_before,
            too_much_output,
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
        pid,
        output: Some(LocalOutput {
            pieces,
            _driver: Arc::clone(&driver),
        }),
        stdin,
        terminal,
        outcome,
        _driver: driver,
    })
}

/// What is executed.
struct Program {
    /// Where it may be; the first that is there is taken.
    candidates: Vec<OsString>,
    /// As it was asked for.
    name: OsString,
    arguments: Vec<OsString>,
    /// Where it was looked for, unless it was given with its path.
    search_path: Option<OsString>,
}

impl Program {
    fn find(shared: &Shared, request: &SpawnRequest) -> Result<Self, SandboxError> {
        let argv = match &request.command {
            Line::Shell(line) => {
                let shell = &shared.shell;
                return Ok(Self {
                    candidates: vec![shell.into()],
                    // Some shells are told by it what to be.
                    name: shell.file_name().unwrap_or_default().into(),
                    // A line may begin with a hyphen.
                    arguments: vec!["-c".into(), "--".into(), line.clone()],
                    search_path: None,
                });
            }
            Line::Argv(argv) => argv,
        };
        let (name, arguments) = match argv.split_first() {
            Some((name, arguments)) if !name.is_empty() => (name, arguments),
            _ => {
                let message = "a command must begin with the name of a program";
                return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
            }
        };
        let (candidates, search_path) = if name.as_bytes().contains(&b'/') {
            (vec![name.clone()], None)
        } else {
            let search_path = match request.environment.get("PATH") {
                Some(path) => OsStr::new(path.expose()),
                None => shared.environment.search_path(),
            };
            let candidates = std::env::split_paths(search_path)
                // An empty entry is the directory that the command starts in.
                .map(|entry| std::path::Path::new(".").join(entry).join(name).into())
                .collect();
            (candidates, Some(search_path.to_owned()))
        };
        Ok(Self {
            candidates,
            name: name.clone(),
            arguments: arguments.to_vec(),
            search_path,
        })
    }

    /// What the supervisor is told.
    fn body(
        &self,
        shared: &Shared,
        request: &SpawnRequest,
        directory: &SandboxPath,
        channels: &Channels,
    ) -> Result<Vec<u8>, SandboxError> {
        // Absolute, as commands see it.
        let directory = [b"/", directory.relative_bytes()].concat();
        let directory = OsStr::from_bytes(&directory);
        // What comes later replaces what came before.
        let mut variables: BTreeMap<&OsStr, &OsStr> = BTreeMap::new();
        variables.insert(OsStr::new("PWD"), directory);
        for (name, value) in shared.environment.variables() {
            variables.insert(name, value);
        }
        if request.pty.is_some() {
            variables.insert(OsStr::new("TERM"), OsStr::new("xterm-256color"));
        }
        for (name, value) in &request.environment {
            variables.insert(OsStr::new(name), OsStr::new(value.expose()));
        }
        let mut writer = Writer::new();
        writer.spawn(&Spawn {
            directory: &c_string(directory)?,
            takes_terminal: channels.is_terminal(),
            terminal: channels.wanted(),
            programs: count(self.candidates.len()),
            arguments: count(self.arguments.len() + 1),
            variables: count(variables.len()),
        });
        let arguments = std::iter::once(&self.name).chain(&self.arguments);
        for text in self.candidates.iter().chain(arguments) {
            writer.string(&c_string(text)?);
        }
        for (name, value) in variables {
            let mut variable = name.to_owned();
            variable.push("=");
            variable.push(value);
            writer.string(&c_string(&variable)?);
        }
        Ok(writer.into_bytes())
    }

    /// What a failed start says.
    fn refused(
        &self,
        shared: &Shared,
        stage: Stage,
        directory: &SandboxPath,
        error: io::Error,
    ) -> SandboxError {
        // The directory may be what wasn't found.
        if let Err(gone) = shared.root.check() {
            return gone;
        }
        let kind = error.kind();
        let name = self.name.to_string_lossy();
        match stage {
            Stage::Execute => {}
            Stage::Directory => {
                return SandboxError::io(format!("failed to start in `{directory}`"), error);
            }
            Stage::Fork | Stage::Terminal | Stage::Prepare => {
                return SandboxError::io(format!("failed to make a process for `{name}`"), error);
            }
        }
        if let (io::ErrorKind::NotFound, Some(search_path)) = (kind, &self.search_path) {
            let places = search_path.to_string_lossy();
            let message = format!("there is no program `{name}` in {places}");
            return SandboxError::new(SandboxErrorKind::NotFound, message)
                .with_advice("Give the program's path, or install it first.");
        }
        let error = SandboxError::io(format!("failed to start `{name}`"), error);
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

fn count(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

fn c_string(text: &OsStr) -> Result<CString, SandboxError> {
    CString::new(text.as_bytes()).map_err(|_| {
        let message = "a command, its directory and its variables must be without NUL";
        SandboxError::new(SandboxErrorKind::InvalidInput, message)
    })
}
