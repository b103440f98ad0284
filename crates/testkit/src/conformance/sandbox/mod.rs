//! What a [`Backend`] and the sandboxes it opens must do.
//!
//! Each case gets a fresh sandbox, and closing it is part of the case. Commands need bash and the
//! usual small programs (coreutils, `setsid`), which is what a model expects of a sandbox too.
//!
//! Whether the sandbox's processes and files can be seen from this host is found out once, by
//! looking for one. Where they can, the suite also looks for what is left after `close`; where they
//! can't (another machine), those cases are skipped.

mod arguments;
mod background;
mod bench;
mod between;
mod commands;
mod ending;
mod files;
mod flow;
mod gone;
mod host;
mod kept;
mod large;
mod life;
mod limits;
mod links;
mod listing;
mod memory;
mod options;
mod output;
mod policy;
mod races;
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
/// Takes some half a minute, most of it waiting; see [`SandboxOptions::quick`] for a backend that takes
/// longer. Signals, terminals, spilled output, kept background processes and kept sandboxes are
/// optional: a backend may answer them with
/// [`Unsupported`](cantle_core::sandbox::SandboxErrorKind::Unsupported), and the report says so.
pub async fn sandbox(backend: &dyn Backend) -> Report {
    sandbox_cases(backend, &[]).await
}

/// Runs the cases of these names: while one of them is being mended.
pub async fn sandbox_cases(backend: &dyn Backend, names: &[&str]) -> Report {
    sandbox_with(backend, SandboxOptions::new().only(names)).await
}

/// Runs the cases that `options` say.
pub async fn sandbox_with<'o>(backend: &'o dyn Backend, options: SandboxOptions<'o>) -> Report {
    let harness = Harness::new(backend, options.killer).await;
    let mut cases = cases();
    if options.quick {
        cases = cases.into_iter().map(Case::in_a_hurry).collect();
    }
    suite::run(&harness, cases, &options.names).await
}

/// Copies files between sandboxes of two backends, both ways. A task and one below it may run in
/// sandboxes of different backends: what one has made, the other must get.
pub async fn transfers(one: &dyn Backend, other: &dyn Backend) -> Report {
    suite::run(&Harness::between(one, other), between::cases(), &[]).await
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
        transfer::cases(),
        between::cases(),
        policy::cases(),
        limits::cases(),
        life::cases(),
        kept::cases(),
        gone::cases(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A case named after its function, which gets a bench with a fresh sandbox.
macro_rules! case {
    ($name:ident) => {
        $crate::conformance::suite::Case::new(stringify!($name), |harness: &Harness<'_>| {
            Box::pin(async move {
                let bench = harness.bench().await?;
                let checked = $name(&bench).await;
                bench.finish(checked).await
            })
        })
    };
}
use case;
