//! Starting a command: what it is, and the task that looks after it. Its process is made in
//! `supervised`, or in `grouped`.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use cantle_core::sandbox::{
    Channel, Command as Line, CommandLifecycle, Program, SandboxError, SandboxPath, SpawnRequest,
    Stdin,
};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::channels::Ends;
use super::drive::{Course, Driver, now};
use super::output::{Allowance, LocalOutput, Outlet, PIECES_IN_FLIGHT};
use super::process::LocalProcess;
use super::running::{self, Reports};
use super::spill::SpillPlace;
use super::stdin::{LocalStdin, feed};
use super::{Command, Starting};
use crate::environment;
use crate::sandbox::Shared;

/// Starts a command and the task that looks after it.
pub(crate) async fn start(
    shared: &Arc<Shared>,
    request: SpawnRequest,
) -> Result<LocalProcess, SandboxError> {
    environment::check(&request.environment)?;
    let directory = shared.root.directory_path(&request.directory)?;
    let id = shared.next_number();
    let launch = Launch {
        id,
        program: program(shared, &request)?,
        directory,
        variables: Vec::new(),
    }
    .with_variables(shared, &request);

    let spill = |name| {
        let file = shared.root.spill_name(id, name);
        request
            .spill
            .map(|limits| SpillPlace::new(limits, Arc::clone(shared), file))
    };
    let too_much_output = CancellationToken::new();
    let allowance = || Allowance {
        bytes: shared.limits.output_bytes.unwrap_or(u64::MAX),
        exceeded: too_much_output.clone(),
    };
    let outlet = |channel, source, name| Outlet::new(channel, source, spill(name), allowance());

    let mark = shared.engine.mark();
    let lifecycle = CommandLifecycle::new(&request, shared.limits.wall_time, now());
    let Launched {
        starting,
        command,
        reports,
        pid,
        ends,
    } = running::launch(shared, &launch, &request).await?;
    let Ends {
        stdin,
        stdout,
        stderr,
        terminal,
    } = ends;
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
    let driver = Driver {
        course: Course {
            command: Arc::clone(&command),
            reports,
            lifecycle,
            cancellation: request.cancellation,
            mark,
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

/// What is started.
pub(super) struct Launch {
    /// Names the command among those of the sandbox.
    pub(super) id: u32,
    pub(super) program: Program,
    /// Absolute, as commands see it.
    pub(super) directory: SandboxPath,
    pub(super) variables: Vec<(OsString, OsString)>,
}

/// What has been started.
pub(super) struct Launched {
    /// Kills it until somebody looks after it.
    pub(super) starting: Starting,
    pub(super) command: Arc<Command>,
    pub(super) reports: Reports,
    /// Its first process, as seen inside the sandbox.
    pub(super) pid: i32,
    pub(super) ends: Ends,
}

/// What of a command's start failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(confined),
    expect(dead_code, reason = "without a supervisor nobody tells them apart")
)]
pub(super) enum Step {
    /// Making a process, its input and output, its limits.
    Prepare,
    /// Going to its directory.
    Directory,
    /// Executing its program.
    Execute,
}

impl Launch {
    /// The directory as a path.
    pub(super) fn directory_path(&self) -> OsString {
        OsString::from_vec([b"/", self.directory.relative_bytes()].concat())
    }

    fn with_variables(mut self, shared: &Shared, request: &SpawnRequest) -> Self {
        // What comes later replaces what came before.
        let mut variables: BTreeMap<OsString, OsString> = BTreeMap::new();
        variables.insert("PWD".into(), self.directory_path());
        variables.extend(shared.environment.variables().iter().cloned());
        if request.pty.is_some() {
            variables.insert("TERM".into(), "xterm-256color".into());
        }
        for (name, value) in &request.environment {
            variables.insert(name.into(), value.expose().into());
        }
        self.variables = variables.into_iter().collect();
        self
    }

    /// What a failed start says.
    pub(super) fn refused(&self, shared: &Shared, step: Step, error: io::Error) -> SandboxError {
        // The directory may be what wasn't found.
        if let Err(gone) = shared.root.check() {
            return gone;
        }
        let name = self.program.name.to_string_lossy();
        match step {
            Step::Execute => {}
            Step::Directory => {
                let directory = &self.directory;
                return SandboxError::io(format!("failed to start in `{directory}`"), error);
            }
            Step::Prepare => {
                return SandboxError::io(format!("failed to make a process for `{name}`"), error);
            }
        }
        self.program.not_executed(error)
    }
}

/// What is executed.
fn program(shared: &Shared, request: &SpawnRequest) -> Result<Program, SandboxError> {
    match &request.command {
        Line::Shell(line) => Ok(Program::shell(&shared.shell, line)),
        Line::Argv(argv) => {
            let search_path = match request.environment.get("PATH") {
                Some(path) => OsStr::new(path.expose()),
                None => shared.environment.search_path(),
            };
            Program::argv(argv, search_path)
        }
    }
}
