//! `cantle doctor`: what this machine can enforce and provide, and the consequences.
//!
//! Kernel mechanisms are probed by opening sandboxes with them. Nothing is changed, and a check that
//! fails is reported as missing.

mod kernel;
mod machine;
mod report;

use std::io::IsTerminal as _;
use std::time::Duration;

use cantle::backends::local::{LocalBackend, Probe};
use tokio_util::sync::CancellationToken;

use self::report::{Check, Report};
use super::print;
use crate::args::DoctorArgs;
use crate::display::Paint;
use crate::environment::variable;
use crate::exit::{Code, Failure, FailureExt as _, cancelled_early};

/// Maximum duration of one probe.
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);

/// Prints the report, and returns the exit code.
pub(crate) async fn perform(
    args: DoctorArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let report = cancellation.run_until_cancelled(examine()).await;
    let report = report.ok_or_else(cancelled_early)?;
    let text = if args.json {
        format!("{}\n", serde_json::to_string_pretty(&report).internal()?)
    } else {
        let terminal = std::io::stdout().is_terminal();
        let columns = console::Term::stdout().size_checked();
        let columns = columns.map(|(_, columns)| usize::from(columns));
        let paint = Paint {
            on: terminal && variable("NO_COLOR").is_none(),
        };
        report.text(paint, columns.filter(|_| terminal))
    };
    print(&text)?;
    let code = if report.has_working_policy() {
        Code::Finished
    } else {
        Code::Internal
    };
    Ok(code as u8)
}

async fn examine() -> Report {
    let backend = LocalBackend::new();
    let probe = Probe::run(&backend, PROBE_TIMEOUT).await;
    let check = |name, finding| Check { name, finding };
    let mut checks = vec![
        check("cantle", machine::cantle()),
        check("kernel", machine::kernel()),
    ];
    checks.extend(kernel::checks(&probe));
    checks.extend([
        check("bash", machine::bash()),
        check("Python", machine::python(&backend).await),
        check("Docker", machine::docker().await),
        check("keys", machine::keys()),
        check("web tools", machine::web()),
        check("disk", machine::disk()),
    ]);
    Report {
        version: 1,
        checks,
        policies: kernel::policies(&probe),
    }
}
