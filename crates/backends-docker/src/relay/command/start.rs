//! Starting a command: what it is, and the task that looks after it.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use cantle_core::ids::fresh_id;
use cantle_core::sandbox::{
    Channel, Command as Line, CommandLifecycle, Program, SandboxError, SandboxErrorKind,
    SandboxPath, SpawnRequest, Stdin,
};
use cantle_supervisor::Writer;
use cantle_supervisor::frames::Channels;
use cantle_supervisor::wire::{Spawn, Stage};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::super::Inner;
use super::super::inbox::{InputWriter, LaneReader, Spawned};
use super::super::options::{c_path, c_string, os_path};
use super::Command;
use super::drive::{Course, Driver, Feed};
use super::output::{Allowance, Counted, Outlet, PIECES_IN_FLIGHT, RelayOutput};
use super::process::{RelayProcess, RelayStdin};
use super::reports::{Reports, Started};
use super::spill::Spiller;
use crate::clock::now;

/// Starts a command and the task that looks after it.
pub(in super::super) async fn start(
    sandbox: &Arc<Inner>,
    request: SpawnRequest,
) -> Result<RelayProcess, SandboxError> {
    check_names(&request)?;
    let launch = Launch::new(sandbox, &request)?;
    let channels = match (&request.pty, &request.stdin) {
        (Some(_), _) => Channels::Terminal,
        (None, Stdin::Null) => Channels::Output,
        (None, _) => Channels::All,
    };
    let wall_time = sandbox.options.limits.wall_time;
    let lifecycle = CommandLifecycle::new(&request, wall_time, now());
    let Spawned {
        reports,
        output,
        errors,
        input,
        command,
        // Only what is done with files offers something.
        staged: _,
    } = sandbox
        .link
        .stream
        .spawn(channels, launch.body(&request)?)?;
    let command = Arc::new(Command::new(command));
    let mut reports = Reports::new(reports);
    let pid = match reports.started().await {
        Started::Running(pid) => pid,
        Started::Failed(stage, errno) => {
            command.settle();
            return Err(launch.refused(stage, io::Error::from_raw_os_error(errno)));
        }
        Started::Gone => {
            command.settle();
            return Err(match sandbox.link.stream.check() {
                Err(gone) => gone,
                // Its keeper was killed, most likely for memory.
                Ok(()) => launch.refused(Stage::Fork, io::ErrorKind::OutOfMemory.into()),
            });
        }
    };

    let too_much_output = CancellationToken::new();
    let limits = &sandbox.options.limits;
    let output_limit = limits.output_bytes.unwrap_or(u64::MAX);
    let spill_name = fresh_id();
    let outlet = |channel, lane: LaneReader, name| {
        let path = sandbox
            .options
            .temporary_directory
            .join(format!("output-{spill_name}.{name}"));
        let spiller = request.spill.zip(path.ok());
        Outlet {
            channel,
            counted: Arc::new(Counted::new(&lane)),
            lane,
            spiller: spiller
                .map(|(limits, path)| Spiller::new(limits, Arc::downgrade(sandbox), path)),
            allowance: Allowance {
                bytes: output_limit,
                exceeded: too_much_output.clone(),
            },
        }
    };
    let stdout = outlet(Channel::Stdout, output, "stdout");
    let stderr = outlet(Channel::Stderr, errors, "stderr");

    let (reader, pieces) = mpsc::channel(PIECES_IN_FLIGHT);
    let (outcome_sender, outcome) = watch::channel(None);
    let ended = CancellationToken::new();
    let (feeding, stdin) = match (input, request.stdin) {
        (Some(input), Stdin::Bytes(data)) => (Some(Box::pin(feed(input, data)) as Feed), None),
        (Some(input), _) => {
            let ended = ended.clone();
            (None, Some(RelayStdin { input, ended }))
        }
        (None, _) => (None, None),
    };
    let driver = Driver {
        course: Course {
            command: Arc::clone(&command),
            reports,
            lifecycle,
            cancellation: request.cancellation,
            too_much_output,
            output_limit,
        },
        stdout,
        stderr,
        reader,
        feed: feeding,
        ended,
        outcome: outcome_sender,
    };
    let driver = Arc::new(AbortOnDropHandle::new(tokio::spawn(driver.run())));
    Ok(RelayProcess {
        command,
        pid,
        output: Some(RelayOutput {
            pieces,
            _driver: Arc::clone(&driver),
        }),
        stdin,
        has_terminal: request.pty.is_some(),
        outcome,
        _driver: driver,
    })
}

/// Writes all of an input that is in memory, as far as the command reads it, and closes it.
async fn feed(mut input: InputWriter, data: Bytes) {
    // A command need not read what it is given.
    let _ = input.write(data).await;
}

/// Refuses names that no variable can have.
fn check_names(request: &SpawnRequest) -> Result<(), SandboxError> {
    for name in request.environment.keys() {
        if name.is_empty() || name.contains(['=', '\0']) {
            let message = format!("`{}` can't be the name of a variable", name.escape_debug());
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
    }
    Ok(())
}

/// What is started.
struct Launch {
    program: Program,
    /// Absolute.
    directory: SandboxPath,
    is_working_directory: bool,
    variables: BTreeMap<OsString, OsString>,
}

impl Launch {
    fn new(sandbox: &Inner, request: &SpawnRequest) -> Result<Self, SandboxError> {
        let options = &sandbox.options;
        let directory = options.absolute(&request.directory);
        // What comes later replaces what came before.
        let mut variables = BTreeMap::from([("PWD".into(), os_path(&directory))]);
        variables.extend(sandbox.environment.clone());
        if request.pty.is_some() {
            variables.insert("TERM".into(), "xterm-256color".into());
        }
        for (name, value) in &request.environment {
            variables.insert(name.into(), value.expose().into());
        }
        Ok(Self {
            program: program(sandbox, request)?,
            is_working_directory: directory == options.working_directory,
            directory,
            variables,
        })
    }

    /// What the relay is told.
    fn body(&self, request: &SpawnRequest) -> Result<Vec<u8>, SandboxError> {
        let program = &self.program;
        let count = |length| u32::try_from(length).unwrap_or(u32::MAX);
        let mut writer = Writer::new();
        writer.spawn(&Spawn {
            directory: &c_path(&self.directory)?,
            takes_terminal: false,
            terminal: request.pty.map(|size| (size.rows, size.columns)),
            programs: count(program.candidates.len()),
            arguments: count(program.arguments.len() + 1),
            variables: count(self.variables.len()),
        });
        let arguments = std::iter::once(&program.name).chain(&program.arguments);
        for text in program.candidates.iter().chain(arguments) {
            writer.string(&c_string(text)?);
        }
        for (name, value) in &self.variables {
            let mut variable = name.clone();
            variable.push("=");
            variable.push(value);
            writer.string(&c_string(&variable)?);
        }
        Ok(writer.into_bytes())
    }

    /// What a failed start says.
    fn refused(&self, stage: Stage, error: io::Error) -> SandboxError {
        let kind = error.kind();
        let name = self.program.name.to_string_lossy();
        let directory = &self.directory;
        match stage {
            Stage::Execute => {}
            Stage::Directory => {
                let doing = format!("failed to start in `{directory}`");
                return match kind {
                    io::ErrorKind::NotFound if self.is_working_directory => {
                        let message = format!("the working directory `{directory}` is gone");
                        SandboxError::gone(message)
                    }
                    io::ErrorKind::CrossesDevices => {
                        let message = format!("{doing}: it leads out of the sandbox");
                        SandboxError::new(SandboxErrorKind::OutsideSandbox, message)
                    }
                    _ => SandboxError::io(doing, error),
                };
            }
            Stage::Terminal => {
                return SandboxError::io(format!("failed to make a terminal for `{name}`"), error);
            }
            Stage::Fork | Stage::Prepare => {
                return SandboxError::io(format!("failed to make a process for `{name}`"), error);
            }
        }
        self.program.not_executed(error)
    }
}

/// What is executed.
fn program(sandbox: &Inner, request: &SpawnRequest) -> Result<Program, SandboxError> {
    match &request.command {
        Line::Shell(line) => {
            let shell = sandbox.shell.as_ref().ok_or_else(|| no_shell(sandbox))?;
            Ok(Program::shell(Path::new(shell), line))
        }
        Line::Argv(argv) => {
            let search_path = match request.environment.get("PATH") {
                Some(path) => OsStr::new(path.expose()),
                None => sandbox.search_path(),
            };
            Program::argv(argv, search_path)
        }
    }
}

fn no_shell(sandbox: &Inner) -> SandboxError {
    let shells = sandbox
        .options
        .shells
        .iter()
        .map(|shell| shell.to_string_lossy());
    let looked = shells.collect::<Vec<_>>().join(", ");
    let message = format!("the sandbox has no shell: there is none of {looked}");
    SandboxError::new(SandboxErrorKind::NotFound, message)
        .with_advice("Give a program and its arguments instead of a command line.")
}
