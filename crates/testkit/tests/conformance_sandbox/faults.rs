//! Faults and the cases that detect them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{self, CaseResult, Report, SandboxOptions};
use futures_util::future::join_all;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use crate::ALONE;
use crate::reference::{Fault, Reference};

/// Unrelated cases, which must pass despite a fault.
const CONTROL_CASES: &[&str] = &[
    "exit_codes_are_kept",
    "mkdir_creates_parents_and_is_idempotent",
    "sandbox_info_is_complete",
    "closing_twice_is_a_no_op",
    "unset_fields_are_not_reported",
];

/// Maximum number of concurrently tested faults across all tests. Most of them wait for timeouts.
static FAULT_SLOTS: Semaphore = Semaphore::const_new(8);

/// Maximum number of runs until a case detects the fault. Some faults are races, which a busy machine
/// may hide many times.
const MAX_TRIES: usize = 20;

/// Fault and the cases that must detect it.
type FaultCases = (Fault, &'static [&'static str]);

/// Tests faults concurrently.
async fn concurrently(faults: &'static [FaultCases]) {
    let _others = ALONE.read().await;
    let tried = faults.iter().map(async |entry| {
        let _slot = FAULT_SLOTS.acquire().await;
        on_blocking_thread(entry).await
    });
    assert_all_ok(join_all(tried).await);
}

/// Tests faults one at a time, because a busy machine hides them.
async fn sequentially(faults: &'static [FaultCases]) {
    let _alone = ALONE.write().await;
    let mut tried = Vec::new();
    for entry in faults {
        tried.push(on_blocking_thread(entry).await);
    }
    assert_all_ok(tried);
}

/// Runs on a blocking thread, because the reference backend blocks.
async fn on_blocking_thread(entry: &'static FaultCases) -> Result<(), String> {
    let detects = || Handle::current().block_on(detects(entry));
    spawn_blocking(detects).await.unwrap()
}

#[track_caller]
fn assert_all_ok(tried: Vec<Result<(), String>>) {
    let failed: Vec<_> = tried.into_iter().filter_map(Result::err).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n\n"));
}

/// Checks that a backend with the fault fails its cases and passes the unrelated ones.
async fn detects((fault, by): &FaultCases) -> Result<(), String> {
    let mut missed: BTreeSet<&str> = by.iter().copied().collect();
    let controls: BTreeSet<&str> = CONTROL_CASES.iter().copied().collect();
    let controls = &controls - &missed;
    let mut names = &missed | &controls;
    for _ in 0..MAX_TRIES {
        let report = run_cases(*fault, &names).await;
        let failed: BTreeSet<&str> = report.failures().map(name).collect();
        let affected = &failed & &controls;
        if !affected.is_empty() {
            return Err(format!("{fault:?} also fails {affected:?}:\n{report}"));
        }
        missed.retain(|case| !failed.contains(case));
        if missed.is_empty() {
            return Ok(());
        }
        names.clone_from(&missed);
    }
    Err(format!("{fault:?} is not detected by {missed:?}"))
}

/// Runs these cases against a backend with the fault.
async fn run_cases(fault: Fault, names: &BTreeSet<&str>) -> Report {
    let backend = Reference::new(Some(fault));
    let kill = async |sandbox: Arc<dyn Sandbox>| {
        backend.kill(&*sandbox);
        Ok(())
    };
    let names: Vec<&str> = names.iter().copied().collect();
    let options = SandboxOptions::new().only(&names).killed_by(kill);
    conformance::sandbox_with(&backend, options).await
}

fn name(case: &CaseResult) -> &str {
    &case.name
}

macro_rules! faults {
    ($($test:ident: $tried:ident { $($fault:ident => [$($case:ident),+ $(,)?],)+ })+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                $tried(&[$((Fault::$fault, &[$(stringify!($case)),+])),+]).await;
            }
        )+

        /// All cases that detect a fault.
        pub(crate) const DETECTING_CASES: &[&str] = &[$($($(stringify!($case)),+),+),+];
    };
}

faults! {
    faults_of_commands_are_found: concurrently {
        LosesTheExitCode => [
            exit_codes_are_kept, waiting_twice_returns_the_same_exit,
            a_cancelled_wait_loses_nothing,
        ],
        ReportsSignalsAsCodes => [
            signal_death_differs_from_an_exit_code, a_signal_reaches_the_command,
        ],
        UsesTheWrongShell => [the_shell_is_bash, output_keeps_its_order],
        UsesAShellForArguments => [
            arguments_without_a_shell_are_not_expanded, arguments_may_be_any_bytes,
            a_program_that_is_missing_is_an_error, a_program_that_is_not_executable_is_an_error,
            an_empty_argv_is_an_error,
        ],
        LeaksTheEnvironment => [host_environment_is_not_inherited],
        ForgetsTheEnvironment => [
            variables_of_a_request_reach_the_command, nul_in_a_request_is_refused,
            reported_enforcement_is_effective,
        ],
        IgnoresTheDirectory => [a_command_runs_in_the_requested_directory],
        LetsReadOnlyCommandsWrite => [
            a_read_only_command_changes_nothing_outside,
            children_of_a_read_only_command_are_read_only,
            a_missing_directory_or_a_link_is_refused,
        ],
        RemovesWritableDirectories => [a_read_only_command_writes_below_its_directory],
        ReportsOneErrorKind => [
            nul_in_a_request_is_refused, arguments_that_are_too_long_are_refused,
            a_program_that_is_missing_is_an_error, a_program_that_is_not_executable_is_an_error,
            an_empty_argv_is_an_error, a_directory_that_is_missing_is_an_error,
            a_directory_that_is_a_file_is_an_error, missing_files_are_not_found,
            a_directory_is_no_file, a_file_is_no_directory, a_path_outside_is_refused,
            no_command_starts_behind_an_escaping_link, a_write_of_another_size_fails,
            a_removed_working_directory_is_detected, download_gives_the_file_with_its_mode,
            a_name_that_is_too_long_is_refused, a_failed_copy_leaves_nothing,
            a_port_without_a_server_is_reported, connections_are_bounded,
        ],
        ReportsNoDuration => [the_duration_covers_the_command],
        UsesPipesForTerminals => [a_terminal_has_the_requested_size],
        CutsLongCommands => [
            a_command_line_of_100_kilobytes_runs,
            a_long_list_of_arguments_arrives_whole_or_is_refused,
        ],
    }
    faults_of_input_and_output_are_found: concurrently {
        LeavesInputOpen => [
            missing_stdin_is_at_eof, output_and_stdin_are_taken_once, input_that_is_dropped_ends,
        ],
        WritesAllInputFirst => [
            input_is_written_while_output_is_read, unread_input_does_not_block,
        ],
        BuffersEverything => [
            output_comes_as_it_is_written, a_stopped_reader_blocks_the_command,
            output_of_100_megabytes_takes_little_memory, input_that_the_command_closed_is_reported,
            a_process_id_matches_the_command,
        ],
        IgnoresBackpressure => [a_stopped_reader_blocks_the_command],
        MergesTheChannels => [
            stderr_is_separate, output_keeps_its_order, output_may_be_any_bytes,
            output_can_be_read_after_the_end, concurrent_commands_are_independent,
            timeout_keeps_the_output_so_far,
        ],
        DecodesOutputAsText => [output_may_be_any_bytes, arguments_may_be_any_bytes],
        LosesTheLastPiece => [a_walk_is_recursive_and_bounded,
            output_keeps_its_order, a_line_of_20_megabytes_is_kept,
            output_can_be_read_after_the_end, large_output_keeps_its_head_and_tail,
            given_input_arrives_whole, commands_start_in_the_working_directory,
            a_background_child_does_not_delay_the_exit, commands_and_files_share_one_view,
            mkdir_creates_parents_and_is_idempotent,
            upload_copies_a_directory_and_skips_special_files,
            outputs_are_saved_by_their_names, outputs_may_go_into_the_working_directory,
        ],
        CountsOnlyReadBytes => [
            untaken_output_is_counted_and_does_not_block,
            dropped_output_is_counted_and_does_not_block,
        ],
        SpillsEverything => [small_output_is_not_spilled],
        SpillsWithoutACap => [a_spilled_file_ends_at_its_cap],
        SpillsElsewhere => [
            large_output_is_spilled_to_a_file, each_channel_is_spilled_by_itself,
            a_spilled_file_ends_at_its_cap, output_of_100_megabytes_is_spilled_whole,
        ],
        SharesOneStream => [
            unread_output_does_not_block_other_operations,
            unread_output_does_not_delay_signals,
            blocked_input_does_not_block_other_operations,
            a_slow_read_does_not_block_other_operations,
            a_slow_write_does_not_block_other_operations,
        ],
        WaitsForBlockedInput => [
            blocked_input_ends_with_the_command,
            input_that_the_command_closed_is_reported,
        ],
    }
    faults_of_ends_are_found: concurrently {
        IgnoresTimeouts => [
            timeout_kills_the_command, timeout_keeps_the_output_so_far,
            timeout_ends_a_command_with_unread_output,
        ],
        KillsOnlyTheLeader => [
            timeout_kills_a_child_that_left_the_process_group, timeout_kills_a_daemon,
            timeout_kills_a_grandchild_that_holds_the_pipe, timeout_kills_a_stopped_command,
            timeout_kills_a_command_that_ignores_term, timeout_leaves_other_commands_alone,
            cancellation_kills_everything, dropping_the_process_kills_everything,
            dropping_a_run_kills_everything, a_background_child_is_killed,
            a_background_daemon_is_killed,
        ],
        KillsEverythingOnTimeout => [timeout_leaves_other_commands_alone],
        WaitsForPipeEof => [
            a_background_child_does_not_delay_the_exit, a_background_child_is_killed,
            a_kept_child_does_not_delay_the_exit,
        ],
        KillsAtTheTimeout => [the_grace_follows_the_timeout],
        SubtractsTheGraceFromTheTimeout => [a_command_has_the_whole_timeout],
        IgnoresCancellation => [
            cancellation_kills_everything, cancellation_before_the_start_ends_at_once,
        ],
        ForgetsDroppedProcesses => [
            dropping_the_process_kills_everything, dropping_a_run_kills_everything,
        ],
        ListsNoBackground => [a_kept_child_runs_on_and_is_listed, a_kept_daemon_is_listed],
        LeavesProcesses => [
            a_kept_process_ends_with_the_sandbox, closing_ends_a_running_command,
            a_sandbox_that_is_dropped_ends_its_commands,
            processes_of_a_kept_sandbox_survive_as_reported,
        ],
        LeavesZombies => [many_commands_leave_no_zombie],
        KeepsTimedOutBackground => [timeout_kills_kept_background_processes],
        DetachesTerminals => [timeout_ends_a_command_in_a_terminal, a_terminal_has_the_requested_size],
    }
    faults_of_files_are_found: concurrently {
        ChecksPathsAsText => [
            nothing_is_read_through_an_escaping_link,
            nothing_is_listed_through_an_escaping_link,
            nothing_is_written_through_an_escaping_link,
            nothing_is_moved_through_an_escaping_link, removing_follows_no_link,
            no_command_starts_behind_an_escaping_link,
            a_link_swapped_during_reads_does_not_escape,
            invalid_outputs_are_refused,
            a_link_swapped_during_writes_does_not_escape,
        ],
        FollowsLinks => [
            a_link_is_reported_as_a_link, a_listing_is_sorted_and_not_recursive,
            removing_a_directory_is_recursive, removing_follows_no_link,
            renaming_moves_and_replaces,
        ],
        RefusesLinks => [
            a_link_within_the_sandbox_is_followed, a_link_cycle_is_an_error,
        ],
        OpensSpecialFiles => [
            a_pipe_is_refused_at_once, a_device_is_refused_at_once, a_directory_is_no_file,
            nothing_is_read_through_an_escaping_link, a_path_outside_is_refused,
        ],
        ReadsNothing => [artifacts_are_the_files_that_changed,
            files_are_read_as_they_were_written, duplicate_outputs_are_refused,
            outputs_follow_no_link_of_the_output_directory, a_file_of_any_size_is_copied,
            outputs_are_copied_to_their_paths,
        ],
        WritesTheFirstPiece => [
            files_are_read_as_they_were_written, a_file_of_1_gigabyte_goes_in_and_out,
        ],
        WritesInPlace => [
            a_write_replaces_a_file_whole, a_write_of_another_size_fails,
            a_failed_write_leaves_nothing, a_failed_write_keeps_the_old_file,
            a_cancelled_write_leaves_no_file,
            nothing_is_written_through_an_escaping_link,
        ],
        LeavesTemporaryFiles => [
            a_write_of_another_size_fails, a_failed_write_leaves_nothing,
            a_failed_write_keeps_the_old_file,
        ],
        SharesTheTemporaryFile => [writes_to_one_file_do_not_mix, concurrent_copies_do_not_mix],
        IgnoresTheSize => [a_write_of_another_size_fails],
        LosesModes => [modes_are_kept, upload_copies_a_file, a_file_is_copied_to_another_sandbox],
        IgnoresRanges => [a_range_of_a_file_can_be_read],
        DecodesNamesAsText => [file_names_may_hold_any_bytes, a_file_of_any_name_is_copied],
        ListsUnsorted => [
            a_listing_is_sorted_and_not_recursive, a_listing_has_5000_entries,
            a_link_within_the_sandbox_is_followed, file_names_may_hold_any_bytes,
        ],
        CreatesNoParents => [
            a_write_creates_parent_directories, an_absolute_path_is_the_same_file,
        ],
        NamesTemporaryFilesAfterTheFile => [file_names_may_hold_any_bytes, a_file_of_any_name_is_copied],
        OverwritesWithoutTruncation => [a_copy_replaces_a_file_whole, a_write_replaces_a_file_whole],
        RemovesByPath => [a_tree_deeper_than_any_path_is_removed],
    }
    faults_of_life_and_policy_are_found: concurrently {
        LosesConnections => [a_connection_reaches_a_server],
        AllowsAnyNumberOfConnections => [connections_are_bounded],
        SharesOneDirectory => [two_sandboxes_share_nothing, closing_removes_the_files],
        ReusesIds => [sandbox_info_is_complete],
        WorksAfterClose => [
            a_closed_sandbox_reports_closed, a_copy_to_or_from_a_closed_sandbox_is_refused,
            connections_end_with_the_sandbox,
        ],
        ClosesOnce => [closing_twice_is_a_no_op],
        LeavesFiles => [
            closing_removes_the_files, a_dropped_sandbox_that_was_not_kept_leaves_nothing,
        ],
        AcceptsAnyHandle => [
            a_kept_sandbox_is_reattached, a_handle_of_an_unknown_sandbox_is_gone,
            a_kept_sandbox_that_is_closed_is_gone, a_handle_of_another_backend_is_refused,
        ],
        IgnoresThePolicy => [a_field_is_enforced_or_refused_by_name],
        ReportsUnsetFields => [
            unset_fields_are_not_reported, a_field_is_enforced_or_refused_by_name,
            best_effort_opens_and_reports_each_field,
        ],
        ReportsFalseEnforcement => [
            reported_enforcement_is_effective, a_hidden_file_is_neither_read_nor_changed,
            a_host_allowlist_blocks_other_hosts, a_reported_cpu_time_limit_is_effective,
            a_reported_memory_limit_is_effective, a_reported_process_limit_is_effective,
            a_reported_disk_limit_is_effective, a_reported_inode_limit_is_effective,
        ],
        PersistsOnce => [a_kept_sandbox_can_be_kept_again],
        ReportsNoSurvival => [survival_matches_persist],
        LeaksSecrets => [a_handle_is_text_without_secrets],
        HidesTheKill => [a_killed_sandbox_is_gone],
        HangsWhenKilled => [
            a_command_in_a_killed_sandbox_ends, a_transfer_in_a_killed_sandbox_ends,
            a_killed_sandbox_can_be_closed_and_leaves_nothing,
        ],
    }
    faults_of_memory_are_found: sequentially {
        BuffersFiles => [
            a_file_of_64_megabytes_takes_little_memory, a_copy_of_200_megabytes_takes_little_memory,
        ],
    }
    faults_of_races_are_found: sequentially {
        ChecksThenOpens => [a_link_swapped_during_reads_does_not_escape],
        ChecksThenChanges => [a_link_swapped_during_writes_does_not_escape],
    }
}
