//! `cantle doctor`: what this machine can do, and what follows from it for whoever runs tasks here.
//!
//! The kernel's walls are found by building sandboxes with them, everything else by looking. Nothing
//! is changed, and nothing here makes the whole fail: what can't be found out is said to be missing.

mod kernel;
mod machine;
mod report;

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use cantle::backends::local::{LocalBackend, Probe};
use tokio_util::sync::CancellationToken;

use self::report::Report;
use crate::args::DoctorArgs;
use crate::display::Paint;
use crate::exit::{Code, Failure, FailureExt as _};
use crate::work;

/// How long trying out one sandbox may take.
const LIMIT: Duration = Duration::from_secs(10);

/// Looks at everything, says it, and returns the exit code.
pub(crate) async fn perform(
    args: DoctorArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let report = tokio::select! {
        report = examine() => report,
        () = cancellation.cancelled() => return Err(work::cancelled_early()),
    };
    let text = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&report).internal()?)
    } else {
        let terminal = std::io::stdout().is_terminal();
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let columns = console::Term::stdout().size_checked();
        let columns = columns.map(|(_, columns)| usize::from(columns));
        let paint = Paint {
            on: terminal && !no_color,
        };
        report.text(paint, columns.filter(|_| terminal))
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            return Err(error).context("failed to write the report").internal();
        }
        _ => {}
    }
    let code = if report.works() {
        Code::Finished
    } else {
        Code::Internal
    };
    Ok(code as u8)
}

async fn examine() -> Report {
    let backend = LocalBackend::new();
    let probe = Probe::take(&backend, LIMIT).await;
    let mut checks = vec![machine::cantle(), machine::kernel()];
    checks.extend(kernel::checks(&probe));
    checks.push(machine::bash());
    checks.push(machine::python(&backend).await);
    checks.push(machine::docker().await);
    checks.push(machine::keys());
    checks.push(machine::disk());
    Report {
        version: 1,
        checks,
        policies: kernel::policies(&probe),
    }
}
