//! The `cantle` command: tasks for a model, commands in a sandbox, and a demo.
//!
//! This crate owns everything that users and scripts see: flags, settings, keys, exit codes, the
//! display and result files. The libraries do the work.

mod agent;
mod agents_md;
mod approvals;
mod args;
mod ask;
mod backend;
mod client;
mod commands;
mod comparison;
mod config;
mod delivery;
mod display;
mod earlier_run;
mod endpoint;
mod environment;
mod exit;
mod export;
mod extra_tools;
mod files;
mod images;
mod in_place;
mod interrupts;
mod json_file;
mod kept_sandbox;
mod line_editor;
mod mcp;
mod messages;
mod output_dir;
mod packages;
mod policy;
mod provider;
mod publish;
mod replay;
mod result_file;
mod run_servers;
mod saved_settings;
mod settings;
mod state_dir;
mod sub_agents;
mod task;
mod task_text;
mod telemetry;
mod terminal;
mod text;
mod transcript;
mod trust;
mod typed_ahead;
mod undelivered;
mod unfinished;
mod variables;
mod web;
mod working_copy;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::args::{Command, RunsCommand};
use crate::commands::chat::Chat;
use crate::commands::{deliver, demo, doctor, exec, gc, python, repl, run, runs, serve};
use crate::exit::{Code, Failure, FailureExt as _};
use crate::interrupts::Interrupts;
use crate::messages::warn;

// Hundreds of runs in one process allocate much and at once.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Soft limit of open files: enough for a server with thousands of sandboxes and connections, and twice a sandbox's default.
const OPEN_FILES: u64 = 1 << 17;

/// Maximum delay of the exit by blocking operations, such as writing to a slow reader.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let command = match args::parse() {
        Command::Runs(RunsCommand::Resume { run }) => args::resume_command(&run),
        command => command,
    };
    raise_open_files();
    let cancelled = Code::Cancelled as u8;
    let result = match command {
        Command::Run(args) => block_on(cancelled, |token| async move {
            if let Some(name) = &args.resume
                && let Some(code) = deliver::perform(&args, name, &token).await?
            {
                return Ok(code);
            }
            let prepared = tokio::select! {
                prepared = run::prepare(&args) => prepared?,
                () = token.cancelled() => return Ok(cancelled),
            };
            prepared.perform(token).await
        }),
        // It has interrupts of its own: the first one cancels a message.
        Command::Chat(args) => Chat::prepare(*args)
            .and_then(|chat| on_runtime(Builder::new_current_thread(), chat.perform())),
        Command::Demo(args) => {
            demo::prepare(args).and_then(|demo| block_on(cancelled, |token| demo.perform(token)))
        }
        Command::Doctor(args) => block_on(cancelled, |token| doctor::perform(args, token)),
        Command::Runs(command) => block_on(cancelled, |_| runs::perform(command)),
        Command::Files(args) => block_on(cancelled, |token| commands::files::perform(args, token)),
        Command::Gc(args) => block_on(cancelled, |_| gc::perform(args)),
        Command::Exec(args) => block_on(exec::CANCELLED, |token| exec::perform(args, token)),
        // As a conversation, each line has its own interrupt.
        Command::Python(args) if repl::is_wanted(&args) => {
            on_runtime(Builder::new_current_thread(), repl::perform(args))
        }
        Command::Python(args) => block_on(exec::CANCELLED, |token| python::perform(args, token)),
        Command::Mcp(args) => block_on(cancelled, |token| commands::mcp::perform(*args, token)),
        Command::Completions { shell } => commands::print(args::completions(shell)).map(|()| 0),
        Command::Man { directory } => args::write_manual(&directory)
            .with_context(|| format!("failed to write to {}", directory.display()))
            .usage()
            .map(|()| 0),
        Command::Config(args) => commands::config::perform(&args),
        Command::Trust(args) => commands::trust::perform(&args),
        Command::Serve(args) => {
            // Clients must not wait for each other's computations.
            let runtime = Builder::new_multi_thread();
            block_on_runtime(runtime, cancelled, |token| serve::perform(*args, token))
        }
    };
    ExitCode::from(result.unwrap_or_else(|failure| {
        warn(&failure.to_string());
        failure.code
    }))
}

/// Raises the soft limit of open files.
///
/// Orders to a sandbox carry descriptors. The kernel counts those in messages that were not received for each user, and refuses
/// to send more if they exceed the soft limit of the sender: a sandbox of the same user must not reach ours. Commands without
/// confinement inherit the limit, and some programs close every number below it, so it is not raised further.
fn raise_open_files() {
    let mut limit = getrlimit(Resource::Nofile);
    let raised = limit
        .maximum
        .map_or(OPEN_FILES, |hard| hard.min(OPEN_FILES));
    if limit.current.is_some_and(|soft| soft < raised) {
        limit.current = Some(raised);
        // Otherwise there are fewer sandboxes, which a server reports.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}

/// Runs a command on a new runtime with one thread and returns its exit code.
fn block_on<F>(interrupted: u8, command: impl FnOnce(CancellationToken) -> F) -> Result<u8, Failure>
where
    F: Future<Output = Result<u8, Failure>>,
{
    block_on_runtime(Builder::new_current_thread(), interrupted, command)
}

/// Runs a command on a new runtime and returns its exit code.
///
/// The first interrupt cancels the token. The second one drops the command and everything it owns;
/// the exit code is then `interrupted`.
fn block_on_runtime<F>(
    runtime: Builder,
    interrupted: u8,
    command: impl FnOnce(CancellationToken) -> F,
) -> Result<u8, Failure>
where
    F: Future<Output = Result<u8, Failure>>,
{
    let token = CancellationToken::new();
    let code = on_runtime(runtime, async {
        let mut interrupts = Interrupts::listen()?;
        tokio::select! {
            result = command(token.clone()) => result.map(Some),
            () = interrupts.cancel_then_wait(&token) => Ok(None),
        }
    })?;
    // Only now: the runtime has waited for the display's last write.
    Ok(code.unwrap_or_else(|| {
        let resumable = match interrupted == Code::Cancelled as u8 {
            true => "; `cantle runs list` shows the runs that can be resumed",
            false => "",
        };
        // The line break follows the status line and `^C`.
        let _ = writeln!(std::io::stderr(), "\ncantle: interrupted{resumable}");
        interrupted
    }))
}

fn on_runtime<T>(
    mut runtime: Builder,
    command: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let runtime = runtime.enable_all().build();
    let runtime = runtime.context("failed to start the runtime").internal()?;
    let result = runtime.block_on(command);
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    result
}
