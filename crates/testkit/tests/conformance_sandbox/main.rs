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

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{self, Report, SandboxOptions};
use tokio::sync::RwLock;

use crate::reference::{Fault, Reference};

/// Whole suites measure this process, so each runs while nothing else does.
static ALONE: RwLock<()> = RwLock::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_conforms_passes() {
    let _alone = ALONE.write().await;
    let started = Instant::now();
    let backend = Reference::new(None);
    let kill = async |sandbox: Arc<dyn Sandbox>| {
        backend.kill(&*sandbox);
        Ok(())
    };
    let options = SandboxOptions::new().quick().killed_by(kill);
    let report = conformance::sandbox_with(&backend, options).await;
    let took = started.elapsed();

    println!("{report}");
    report.assert();
    let expected: BTreeSet<&str> = [TERMINALS, &HEAVY].concat().into_iter().collect();
    assert_eq!(skipped(&report), expected, "the rest can be seen here");
    let finds_nothing = |name: &&str| !faults::FINDERS.contains(name) && !LARGER.contains(name);
    let names = report.cases.iter().map(|case| &*case.name);
    let idle: Vec<&str> = names.filter(finds_nothing).collect();
    assert_eq!(idle, [""; 0], "no fault is known that these cases find");
    assert!(took < Duration::from_secs(600), "the suite took {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backend_that_says_what_it_lacks_passes() {
    let _alone = ALONE.write().await;
    let options = SandboxOptions::new().quick();
    let report = conformance::sandbox_with(&Reference::modest(), options).await;
    report.assert();
    let expected: BTreeSet<&str> = [TERMINALS, &HEAVY, &OPTIONAL, &KILLED]
        .concat()
        .into_iter()
        .collect();
    assert_eq!(skipped(&report), expected, "{report}");
}

fn skipped(report: &Report) -> BTreeSet<&str> {
    report.skipped().map(|(name, _)| name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_go_between_two_backends() {
    let _alone = ALONE.write().await;
    let [one, other] = [Reference::new(None), Reference::new(None)];
    conformance::transfers(&one, &other).await.assert();

    let forgetful = Reference::new(Some(Fault::LosesModes));
    for (one, other) in [(&one, &forgetful), (&forgetful, &one)] {
        let report = conformance::transfers(one, other).await;
        let failed: Vec<_> = report.failures().map(|case| &*case.name).collect();
        assert_eq!(failed, ["a_file_is_copied_to_another_sandbox"], "{report}");
    }
}

const HEAVY: [&str; 5] = [
    "a_line_of_100_megabytes_is_kept",
    "output_of_100_megabytes_is_spilled_whole",
    "a_listing_has_100000_entries",
    "a_file_of_1_gigabyte_goes_in_and_out",
    "a_copy_of_200_megabytes_takes_little_memory",
];

/// The same checks as smaller ones, whose faults they would find.
const LARGER: [&str; 2] = [
    "a_line_of_100_megabytes_is_kept",
    "a_listing_has_100000_entries",
];

const TERMINALS: &[&str] = &[
    "a_terminal_has_the_size_asked_for",
    "timeout_ends_a_command_in_a_terminal",
];

/// What needs something that a backend may answer with `Unsupported`.
const OPTIONAL: [&str; 19] = [
    "a_process_id_is_the_commands_own",
    "a_signal_reaches_the_command",
    "output_that_nobody_reads_holds_up_no_signal",
    "large_output_is_spilled_to_a_file",
    "small_output_is_not_spilled",
    "each_channel_is_spilled_by_itself",
    "a_spilled_file_ends_at_its_cap",
    "timeout_kills_what_would_have_been_kept",
    "a_kept_child_delays_no_answer",
    "a_kept_child_runs_on_and_is_listed",
    "a_kept_daemon_is_listed",
    "a_kept_process_ends_with_the_sandbox",
    "a_sandbox_that_is_dropped_ends_its_commands",
    "a_kept_sandbox_is_found_again",
    "a_kept_sandbox_can_be_kept_again",
    "processes_of_a_kept_sandbox_survive_as_it_says",
    "a_kept_sandbox_that_is_closed_is_gone",
    "a_handle_is_text_without_secrets",
    "a_handle_of_nothing_is_gone",
];

/// What needs a way to kill a sandbox.
const KILLED: [&str; 4] = [
    "a_killed_sandbox_is_gone",
    "a_command_in_a_killed_sandbox_ends",
    "a_transfer_in_a_killed_sandbox_ends",
    "a_killed_sandbox_can_be_closed_and_leaves_nothing",
];
