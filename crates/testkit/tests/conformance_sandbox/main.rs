//! Tests of the sandbox suite: a conforming backend passes, and each backend with one fault fails
//! exactly the cases for that fault.
#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "shared test code has no `#[test]` attribute"
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

/// Whole suites measure this process, so each runs alone.
static ALONE: RwLock<()> = RwLock::const_new(());

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conforming_backend_passes() {
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
    let expected: BTreeSet<&str> = [TERMINALS, &HEAVY, &READ_ONLY]
        .concat()
        .into_iter()
        .collect();
    assert_eq!(
        skipped(&report),
        expected,
        "everything else is observable here"
    );
    let undetecting =
        |name: &&str| !faults::DETECTING_CASES.contains(name) && !LARGE_VARIANTS.contains(name);
    let names = report.cases.iter().map(|case| &*case.name);
    let idle: Vec<&str> = names.filter(undetecting).collect();
    assert_eq!(idle, [""; 0], "no known fault is detected by these cases");
    assert!(took < Duration::from_secs(600), "the suite took {took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_minimal_backend_passes() {
    let _alone = ALONE.write().await;
    let options = SandboxOptions::new().quick();
    let report = conformance::sandbox_with(&Reference::minimal(), options).await;
    report.assert();
    let expected: BTreeSet<&str> = [TERMINALS, &HEAVY, &READ_ONLY, &OPTIONAL, &KILLED]
        .concat()
        .into_iter()
        .collect();
    assert_eq!(skipped(&report), expected, "{report}");
}

fn skipped(report: &Report) -> BTreeSet<&str> {
    report.skipped().map(|(name, _)| name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_are_copied_between_two_backends() {
    let _alone = ALONE.write().await;
    let [one, other] = [Reference::new(None), Reference::new(None)];
    conformance::transfers(&one, &other).await.assert();

    let losing_modes = Reference::new(Some(Fault::LosesModes));
    for (one, other) in [(&one, &losing_modes), (&losing_modes, &one)] {
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

/// Larger variants of other cases, which detect the same faults.
const LARGE_VARIANTS: [&str; 2] = [
    "a_line_of_100_megabytes_is_kept",
    "a_listing_has_100000_entries",
];

const TERMINALS: &[&str] = &[
    "a_terminal_has_the_requested_size",
    "timeout_ends_a_command_in_a_terminal",
];

const READ_ONLY: [&str; 4] = [
    "a_read_only_command_changes_nothing_outside",
    "a_read_only_command_writes_below_its_directory",
    "children_of_a_read_only_command_are_read_only",
    "a_missing_directory_or_a_link_is_refused",
];

/// Cases about features that a backend may lack.
const OPTIONAL: [&str; 23] = [
    "a_process_id_matches_the_command",
    "a_signal_reaches_the_command",
    "unread_output_does_not_delay_signals",
    "large_output_is_spilled_to_a_file",
    "small_output_is_not_spilled",
    "each_channel_is_spilled_by_itself",
    "a_spilled_file_ends_at_its_cap",
    "timeout_kills_kept_background_processes",
    "a_kept_child_does_not_delay_the_exit",
    "a_kept_child_runs_on_and_is_listed",
    "a_kept_daemon_is_listed",
    "a_kept_process_ends_with_the_sandbox",
    "a_sandbox_that_is_dropped_ends_its_commands",
    "a_kept_sandbox_is_reattached",
    "a_kept_sandbox_can_be_kept_again",
    "processes_of_a_kept_sandbox_survive_as_reported",
    "a_kept_sandbox_that_is_closed_is_gone",
    "a_handle_is_text_without_secrets",
    "a_handle_of_an_unknown_sandbox_is_gone",
    "a_connection_reaches_a_server",
    "a_port_without_a_server_is_reported",
    "connections_are_bounded",
    "connections_end_with_the_sandbox",
];

/// Cases that need [`SandboxOptions::killed_by`].
const KILLED: [&str; 4] = [
    "a_killed_sandbox_is_gone",
    "a_command_in_a_killed_sandbox_ends",
    "a_transfer_in_a_killed_sandbox_ends",
    "a_killed_sandbox_can_be_closed_and_leaves_nothing",
];
