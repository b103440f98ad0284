//! Fuzz targets: one function for each parser of bytes that a model, sandbox, image, client or directory supplies.
//!
//! A target panics if the parser does, or if a property of its result does not hold. `cargo xtask fuzz` runs them
//! guided by coverage (libFuzzer, on the stable toolchain); the test of this crate runs them over `corpora`. An input that failed is added to `corpora/TARGET`.

#![cfg_attr(not(cantle_fuzzing), forbid(unsafe_code))]
#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a panic is the result of a target"
)]

mod files;
mod models;
mod proxy;
mod server;
mod texts;
mod wire;

use std::cell::OnceCell;

use tokio::runtime::{Builder, Runtime};

/// One parser.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, and that of its directory in `corpora`.
    pub name: &'static str,
    /// Parses an input. Panics if a property does not hold.
    pub run: fn(&[u8]),
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target("answers", models::answers),
    target("archive", wire::archive),
    target("arguments", texts::arguments),
    target("build_context", files::build_context),
    target("events", models::events),
    target("html", texts::html),
    target("journal", files::journal),
    target("policy", texts::policy),
    target("proxy", proxy::request),
    target("relay", wire::relay),
    target("requests", server::requests),
    target("supervisor", wire::supervisor),
];

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// Returns a target by its name.
pub fn find(name: &str) -> Option<Target> {
    TARGETS.iter().copied().find(|target| target.name == name)
}

/// Runs a future on this thread's runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: OnceCell<Runtime> = const { OnceCell::new() };
    }
    let make = || Builder::new_current_thread().enable_all().build().unwrap();
    RUNTIME.with(|runtime| runtime.get_or_init(make).block_on(future))
}

/// Splits off the first byte, which selects a variant.
fn variant(data: &[u8]) -> Option<(usize, &[u8])> {
    let (first, rest) = data.split_first()?;
    Some((usize::from(*first), rest))
}
