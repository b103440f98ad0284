//! Suite for a [`Backend`] and the sandboxes it opens.
//!
//! Each case gets a fresh sandbox, and closing it is part of the case. Commands need bash and
//! coreutils and `setsid`, which models expect in a sandbox too.
//!
//! The suite probes once whether the sandbox's processes are visible on this host. If they are, it
//! also checks for leftovers after `close`; if not (another machine), those cases are skipped.

mod arguments;
mod background;
mod bench;
mod commands;
mod copies;
mod ending;
mod files;
mod flow;
mod gone;
mod host;
mod kept;
mod large;
mod lifecycle;
mod limits;
mod links;
mod listing;
mod memory;
mod options;
mod output;
mod policy;
mod ports;
mod prelude;
mod races;
mod read_only;
mod spill;
mod stdin;
mod transfer;
mod writing;

use cantle_core::sandbox::Backend;

use self::bench::Harness;
pub use self::options::SandboxOptions;
use super::report::Report;
use super::suite::{self, Case};

/// Runs every case against sandboxes of `backend`.
///
/// Takes about half a minute, most of it waiting; see [`SandboxOptions::quick`] for a backend that takes
/// longer. Some features are optional, such as terminals, connections and kept sandboxes: a backend may
/// answer them with [`Unsupported`](cantle_core::sandbox::SandboxErrorKind::Unsupported), and the report
/// lists their cases as skipped.
pub async fn sandbox(backend: &dyn Backend) -> Report {
    sandbox_with(backend, SandboxOptions::new()).await
}

/// Runs the cases selected by `options`.
pub async fn sandbox_with<'o>(backend: &'o dyn Backend, options: SandboxOptions<'o>) -> Report {
    let harness = Harness::new(backend, options.killer).await;
    let mut cases = cases();
    if options.quick {
        cases = cases.into_iter().map(Case::skip_if_heavy).collect();
    }
    suite::run(&harness, cases, &options.names).await
}

/// Runs the cases about copies between sandboxes of two backends, in both directions. A run and its
/// sub-agents may use different backends and exchange files.
pub async fn transfers(one: &dyn Backend, other: &dyn Backend) -> Report {
    suite::run(&Harness::between(one, other), copies::cases(), &[]).await
}

fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    [
        commands::cases(),
        arguments::cases(),
        stdin::cases(),
        output::cases(),
        flow::cases(),
        memory::cases(),
        spill::cases(),
        ending::cases(),
        background::cases(),
        files::cases(),
        writing::cases(),
        listing::cases(),
        large::cases(),
        links::cases(),
        races::cases(),
        read_only::cases(),
        transfer::cases(),
        copies::cases(),
        policy::cases(),
        ports::cases(),
        limits::cases(),
        lifecycle::cases(),
        kept::cases(),
        gone::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}
