//! What a [`Backend`] and the sandboxes it opens must do.
//!
//! Each case gets a fresh sandbox, and closing it is part of the case. Commands need bash and the
//! usual small programs (coreutils, `setsid`), which is what a model expects of a sandbox too.
//!
//! Whether the sandbox's processes and files can be seen from this host is found out once, by
//! looking for one. Where they can, the suite also looks for what is left after `close`; where they
//! can't (another machine), those cases are skipped.

mod background;
mod bench;
mod commands;
mod ending;
mod files;
mod host;
mod life;
mod links;
mod listing;
mod memory;
mod output;
mod policy;
mod spill;
mod stdin;
mod transfer;
mod writing;

use cantle_core::sandbox::Backend;

use self::bench::Harness;
use super::report::Report;
use super::suite::{self, Case};

/// Runs every case against sandboxes of `backend`.
///
/// Takes some ten seconds. Signals, terminals, spilled output, kept background processes and kept
/// sandboxes are optional: a backend may answer them with
/// [`Unsupported`](cantle_core::sandbox::SandboxErrorKind::Unsupported).
pub async fn sandbox(backend: &dyn Backend) -> Report {
    sandbox_cases(backend, &[]).await
}

/// Runs the cases of these names: while one of them is being mended.
pub async fn sandbox_cases(backend: &dyn Backend, names: &[&str]) -> Report {
    suite::run(&Harness::new(backend).await, cases(), names).await
}

fn cases<'b>() -> Vec<Case<Harness<'b>>> {
    [
        commands::cases(),
        stdin::cases(),
        output::cases(),
        memory::cases(),
        spill::cases(),
        ending::cases(),
        background::cases(),
        files::cases(),
        writing::cases(),
        listing::cases(),
        links::cases(),
        transfer::cases(),
        policy::cases(),
        life::cases(),
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
