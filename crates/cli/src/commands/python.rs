//! `cantle python`: one Python program in a new sandbox, with its output and its exit code passed through.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use cantle::backends::local::LocalBackend;
use cantle::python::{Execution, Interpreter, MAX_SOURCE_BYTES, PythonSession};
use tokio_util::sync::CancellationToken;

use super::exec::{CANCELLED, FAILED, context, ended, forward, open, report};
use crate::args::PythonArgs;
use crate::config;
use crate::exit::{Code, Failure, FailureExt as _, sandbox_failure};
use crate::messages::warn;
use crate::packages;
use crate::settings::PackageSettings;
use crate::settings::layers::Layers;

/// Exit code of a program that is refused or only checked with an error, as Python's for a syntax error.
const REFUSED: u8 = 1;

/// Runs the program, and returns the exit code.
pub(crate) async fn perform(
    args: PythonArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let file = args.file.clone().unwrap_or_else(|| "-".into());
    // On another thread: an interrupt must not wait for the end of standard input.
    let read = tokio::task::spawn_blocking(move || read(&file));
    let Some(code) = cancellation.run_until_cancelled(read).await else {
        return Ok(CANCELLED);
    };
    let code = code.map_err(anyhow::Error::new).flatten().usage()?;
    if args.check {
        return Ok(refuse(&Interpreter::new(LocalBackend::new()).check(&code)));
    }
    let session = open_session(&args, args.timeout.unwrap_or(Duration::MAX)).await?;
    let sandbox = session.sandbox();
    let run = async {
        let mut request = match session.command(&code).await {
            Ok(Ok(request)) => request.with_cancellation(cancellation),
            Ok(Err(refused)) => return Ok(refuse(&refused).max(FAILED)),
            Err(error) => return Err(sandbox_failure(FAILED, &error)),
        };
        request.timeout = args.timeout;
        request.spill = None;
        let process = sandbox.spawn(request).await;
        let mut process = process.map_err(|error| sandbox_failure(FAILED, &error))?;
        let output = process.take_output();
        let exit = forward(&mut *process, output, None).await;
        let exit = exit.map_err(|error| sandbox_failure(FAILED, &error))?;
        Ok(u8::try_from(exit).unwrap_or(FAILED))
    };
    let code = run.await;
    ended(code, session.close().await)
}

/// Opens the sandbox of a program, with the packages that it needs.
pub(super) async fn open_session(
    args: &PythonArgs,
    timeout: Duration,
) -> Result<PythonSession, Failure> {
    let layers = Layers::with_files(&args.settings).usage()?;
    let (backend, mut policy) = config::sandbox_of(&layers)?;
    policy.environment = args.variables.resolve(&[]).usage()?;
    let opened = backend.open(LocalBackend::new()).usage()?;
    let mut python = Interpreter::new(Arc::clone(&opened)).timeout(timeout);
    if let Some(program) = &args.python {
        python = python.python(program);
    }
    let settings: PackageSettings = layers.typed().usage()?;
    let (named, on) = (args.python.as_deref(), (&backend, opened));
    let prepared = packages::prepare(&settings, &layers, on, &policy, named).await;
    let (packages, with_packages) = prepared.map_err(|failure| match failure.code {
        code if code == Code::Usage as u8 => failure,
        // The other codes are the program's.
        _ => Failure {
            code: FAILED,
            ..failure
        },
    })?;
    let sandbox = match packages {
        Some(packages) => {
            python = python.packages(packages);
            python.requirements().add_to(&mut policy);
            let opened = with_packages.open(context(&policy)).await;
            opened.map_err(|error| sandbox_failure(FAILED, &error))?
        }
        None => open(&backend, &policy).await?,
    };
    report(sandbox.info(), args.verbose).await;
    Ok(python.attach(sandbox))
}

fn read(file: &Path) -> anyhow::Result<String> {
    let limit = u64::try_from(MAX_SOURCE_BYTES)? + 1;
    let source: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(file).with_context(|| file.display().to_string())?),
    };
    let mut code = Vec::new();
    let read = source.take(limit).read_to_end(&mut code);
    read.with_context(|| format!("failed to read {}", file.display()))?;
    if code.len() > MAX_SOURCE_BYTES {
        bail!("{} has more than {MAX_SOURCE_BYTES} bytes", file.display());
    }
    String::from_utf8(code).map_err(|_| anyhow!("{} is not UTF-8", file.display()))
}

/// Writes the reasons that a program did not run, and returns the exit code.
fn refuse(execution: &Execution) -> u8 {
    for note in &execution.notes {
        warn(note);
    }
    if execution.notes.is_empty() {
        0
    } else {
        REFUSED
    }
}
