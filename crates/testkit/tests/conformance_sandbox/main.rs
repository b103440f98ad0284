//! The sandbox suite proves itself: a backend that conforms passes it, and backends with one fault
//! each fail exactly the cases that ask for what they lack.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod faults;
mod reference;

use std::time::{Duration, Instant};

use cantle_testkit::conformance::{self, Outcome};
use tokio::sync::RwLock;

use crate::reference::Reference;

/// The whole suite measures this process, so it runs while nothing else does.
static ALONE: RwLock<()> = RwLock::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_conforms_passes() {
    let _alone = ALONE.write().await;
    let started = Instant::now();
    let report = conformance::sandbox(&Reference::new(None)).await;
    let took = started.elapsed();

    println!("{report}");
    report.assert();
    let skipped: Vec<&str> = report
        .cases
        .iter()
        .filter(|case| matches!(case.outcome, Outcome::Skipped(_)))
        .map(|case| &*case.name)
        .collect();
    assert_eq!(
        skipped,
        [
            "a_terminal_has_the_size_asked_for",
            "a_kept_sandbox_is_found_again",
            "a_handle_of_nothing_is_gone",
        ],
        "everything else can be seen here"
    );
    let finds_nothing = |name: &&str| !faults::FINDERS.contains(name);
    let names = report.cases.iter().map(|case| &*case.name);
    let idle: Vec<&str> = names.filter(finds_nothing).collect();
    assert_eq!(idle, [""; 0], "no fault is known that these cases find");
    assert!(took < Duration::from_secs(30), "the suite took {took:?}");
}
