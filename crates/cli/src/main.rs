//! The `cantle` command: tasks for a model, commands in a sandbox, and a demonstration.
//!
//! What a person or a script meets is here and nowhere else: flags, settings and keys, exit codes,
//! what is shown, what is written beside the outputs. What does the work are the libraries.

mod agent;
mod args;
mod ask;
mod client;
mod demo;
mod display;
mod doctor;
mod exec;
mod exit;
mod interrupts;
mod kept;
mod leftovers;
mod money;
mod note;
mod offers;
mod place;
mod policy;
mod provider;
mod record;
mod run;
mod runs;
mod serve;
mod serving;
mod settings;
mod state;
mod tape;
mod terminal;
mod work;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio_util::sync::CancellationToken;

use crate::args::{Command, RunsCommand};
use crate::exit::{Code, Failure, FailureExt as _};
use crate::interrupts::Interrupts;

/// Hundreds of runs in one process allocate much and at once.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long what blocks (a file, a reader of ours) may hold up the end of the process.
const LAST_WAIT: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    let command = match args::parse() {
        Command::Runs(RunsCommand::Resume { run }) => args::resuming(&run),
        command => command,
    };
    let ended = match command {
        Command::Run(args) => run::prepare(&args)
            .and_then(|run| to_its_end(Code::Cancelled as u8, |token| run.perform(token))),
        Command::Demo(args) => demo::prepare(args)
            .and_then(|demo| to_its_end(Code::Cancelled as u8, |token| demo.perform(token))),
        Command::Doctor(args) => {
            to_its_end(Code::Cancelled as u8, |token| doctor::perform(args, token))
        }
        Command::Runs(command) => to_its_end(Code::Cancelled as u8, |_| runs::perform(command)),
        Command::Gc(args) => to_its_end(Code::Cancelled as u8, |_| runs::collect(args)),
        Command::Exec(args) => to_its_end(exec::CANCELLED, |token| exec::perform(args, token)),
        Command::Serve(args) => {
            to_its_end(Code::Cancelled as u8, |token| serve::perform(*args, token))
        }
    };
    ExitCode::from(ended.unwrap_or_else(|failure| {
        // Where nobody reads it, the exit code still tells.
        let _ = writeln!(
            std::io::stderr(),
            "cantle: {}",
            display::clean(&failure.to_string())
        );
        failure.code
    }))
}

/// Runs `work` to its end, or until it has been interrupted twice: then everything it holds is
/// dropped, and the code is `cut_short`.
fn to_its_end<F>(cut_short: u8, work: impl FnOnce(CancellationToken) -> F) -> Result<u8, Failure>
where
    F: Future<Output = Result<u8, Failure>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the runtime")
        .internal()?;
    let token = CancellationToken::new();
    let ended = runtime.block_on(async {
        let interrupts = Interrupts::take()?;
        tokio::select! {
            ended = work(token.clone()) => ended,
            () = interrupts.cancel(&token) => Ok(cut_short),
        }
    });
    runtime.shutdown_timeout(LAST_WAIT);
    ended
}
