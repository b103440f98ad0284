//! One fault each, and the cases that find it.

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

/// Cases that a fault elsewhere leaves alone: it is found where it is, not everywhere.
const ELSEWHERE: &[&str] = &[
    "exit_codes_are_kept",
    "a_directory_is_made_with_those_above_and_once",
    "a_sandbox_says_what_it_is",
    "closing_again_does_nothing",
    "no_field_is_promised_that_is_not_set",
];

/// How many faults are tried at a time, however many tests there are. Most wait for what the fault keeps
/// from coming.
static PLACES: Semaphore = Semaphore::const_new(8);

/// How often a case is tried until it finds the fault. Some lie in a moment, which one good end proves, and
/// where the machine stands still now and then that may take many.
const TRIES: usize = 20;

/// What is wrong, and the cases that find it.
type Found = (Fault, &'static [&'static str]);

/// For most faults.
async fn side_by_side(faults: &'static [Found]) {
    let _others = ALONE.read().await;
    let tried = faults.iter().map(async |found| {
        let _place = PLACES.acquire().await;
        on_its_own_thread(found).await
    });
    none_is_wrong(join_all(tried).await);
}

/// For faults that are missed where much else goes on.
async fn one_by_one(faults: &'static [Found]) {
    let _alone = ALONE.write().await;
    let mut tried = Vec::new();
    for found in faults {
        tried.push(on_its_own_thread(found).await);
    }
    none_is_wrong(tried);
}

/// A backend so simple blocks the thread that it is on.
async fn on_its_own_thread(found: &'static Found) -> Result<(), String> {
    let is_found = || Handle::current().block_on(is_found(found));
    spawn_blocking(is_found).await.unwrap()
}

#[track_caller]
fn none_is_wrong(tried: Vec<Result<(), String>>) {
    let wrong: Vec<_> = tried.into_iter().filter_map(Result::err).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// A backend with the fault fails the cases beside it, and none of those that have nothing to do with it.
/// Otherwise, what was found instead.
async fn is_found((fault, by): &Found) -> Result<(), String> {
    let mut missed: BTreeSet<&str> = by.iter().copied().collect();
    let sound: BTreeSet<&str> = ELSEWHERE.iter().copied().collect();
    let sound = &sound - &missed;
    let mut names = &missed | &sound;
    for _ in 0..TRIES {
        let report = tried_with(*fault, &names).await;
        let failed: BTreeSet<&str> = report.failures().map(name).collect();
        let wronged = &failed & &sound;
        if !wronged.is_empty() {
            return Err(format!("{fault:?} is found by {wronged:?} too:\n{report}"));
        }
        missed.retain(|case| !failed.contains(case));
        if missed.is_empty() {
            return Ok(());
        }
        names.clone_from(&missed);
    }
    Err(format!("{fault:?} is not found by {missed:?}"))
}

/// What a backend with the fault makes of these cases.
async fn tried_with(fault: Fault, names: &BTreeSet<&str>) -> Report {
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

        /// Every case that finds a fault.
        pub(crate) const FINDERS: &[&str] = &[$($($(stringify!($case)),+),+),+];
    };
}

faults! {
    faults_of_commands_are_found: side_by_side {
        LosesTheExitCode => [
            exit_codes_are_kept, waiting_again_gives_the_same_answer,
            a_wait_that_is_given_up_loses_nothing,
        ],
        TakesSignalsForCodes => [
            death_by_a_signal_is_told_from_an_exit_code, a_signal_reaches_the_command,
        ],
        UsesTheWrongShell => [the_shell_is_bash, output_keeps_its_order],
        UsesAShellForArguments => [
            arguments_without_a_shell_are_not_expanded, arguments_may_be_any_bytes,
            a_program_that_is_missing_is_an_error, a_program_that_is_not_executable_is_an_error,
            no_program_at_all_is_an_error,
        ],
        LeaksTheEnvironment => [nothing_of_our_environment_is_inherited],
        ForgetsTheEnvironment => [
            variables_of_a_request_reach_the_command, nul_in_a_request_is_refused,
            what_is_said_to_be_enforced_is_enforced,
        ],
        IgnoresTheDirectory => [a_command_runs_in_the_directory_it_asks_for],
        FailsWithoutAKind => [
            nul_in_a_request_is_refused, arguments_that_are_too_long_are_refused,
            a_program_that_is_missing_is_an_error, a_program_that_is_not_executable_is_an_error,
            no_program_at_all_is_an_error, a_directory_that_is_missing_is_an_error,
            a_directory_that_is_a_file_is_an_error, what_is_missing_is_not_found,
            a_directory_is_no_file, a_file_is_no_directory, a_path_outside_is_refused,
            no_command_starts_behind_a_link_that_leads_out, a_write_of_another_size_fails,
            a_working_directory_that_is_removed_is_noticed, download_gives_the_file_with_its_mode,
            a_name_that_is_too_long_is_refused, what_cannot_be_copied_leaves_nothing,
        ],
        TakesNoTime => [the_duration_is_the_commands_own],
        AnswersWithPipes => [a_terminal_has_the_size_asked_for],
        CutsLongCommands => [
            a_command_line_of_100_kilobytes_runs,
            a_long_list_of_arguments_arrives_whole_or_is_refused,
        ],
    }
    faults_of_input_and_output_are_found: side_by_side {
        LeavesInputOpen => [
            no_input_is_at_its_end, output_and_input_are_given_once, input_that_is_dropped_ends,
        ],
        WritesAllInputFirst => [
            input_is_written_while_output_is_read, input_that_nobody_reads_blocks_nothing,
        ],
        BuffersEverything => [
            output_comes_as_it_is_written, a_reader_that_stops_holds_the_command,
            output_of_100_megabytes_takes_little_memory, input_that_the_command_closed_is_reported,
            a_process_id_is_the_commands_own,
        ],
        NeverHoldsTheCommand => [a_reader_that_stops_holds_the_command],
        MergesTheChannels => [
            stderr_is_kept_apart, output_keeps_its_order, output_may_be_any_bytes,
            output_can_be_read_after_the_end, thirty_two_commands_at_once_keep_apart,
            timeout_keeps_the_output_so_far,
        ],
        TakesOutputForText => [output_may_be_any_bytes, arguments_may_be_any_bytes],
        LosesTheLastPiece => [
            output_keeps_its_order, a_line_of_20_megabytes_is_kept,
            output_can_be_read_after_the_end, large_output_keeps_its_head_and_tail,
            given_input_arrives_whole, commands_start_in_the_working_directory,
            a_background_child_delays_no_answer, commands_and_files_share_one_view,
            a_directory_is_made_with_those_above_and_once,
            upload_copies_a_directory_and_passes_over_what_it_cannot,
            outputs_are_saved_by_their_names, outputs_may_go_into_the_working_directory,
        ],
        CountsOnlyWhatIsRead => [
            output_that_is_not_taken_is_counted_and_blocks_nothing,
            output_that_is_dropped_is_counted_and_blocks_nothing,
        ],
        SpillsEverything => [small_output_is_not_spilled],
        SpillsWithoutACap => [a_spilled_file_ends_at_its_cap],
        SpillsElsewhere => [
            large_output_is_spilled_to_a_file, each_channel_is_spilled_by_itself,
            a_spilled_file_ends_at_its_cap, output_of_100_megabytes_is_spilled_whole,
        ],
        SharesOneStream => [
            output_that_nobody_reads_holds_up_nothing_else,
            output_that_nobody_reads_holds_up_no_signal,
            input_that_nobody_takes_holds_up_nothing_else,
            a_file_that_is_read_slowly_holds_up_nothing_else,
            a_write_whose_data_are_slow_holds_up_nothing_else,
        ],
        WaitsForInputThatNobodyTakes => [
            input_that_nobody_takes_ends_with_the_command,
            input_that_the_command_closed_is_reported,
        ],
    }
    faults_of_ends_are_found: side_by_side {
        IgnoresTimeouts => [
            timeout_kills_the_command, timeout_keeps_the_output_so_far,
            timeout_ends_a_command_whose_output_nobody_reads,
        ],
        KillsOnlyTheLeader => [
            timeout_kills_a_child_that_left_the_process_group, timeout_kills_a_daemon,
            timeout_kills_a_grandchild_that_holds_the_pipe, timeout_kills_a_stopped_command,
            timeout_kills_a_command_that_ignores_term, timeout_leaves_other_commands_alone,
            cancellation_kills_everything, dropping_the_process_kills_everything,
            giving_up_a_run_kills_everything, a_background_child_is_killed,
            a_background_daemon_is_killed,
        ],
        KillsEverythingOnTimeout => [timeout_leaves_other_commands_alone],
        WaitsForThePipesEnd => [
            a_background_child_delays_no_answer, a_background_child_is_killed,
            a_kept_child_delays_no_answer,
        ],
        GivesTheGraceAfterTheTime => [the_grace_lies_before_the_end_of_the_time],
        TakesTheGraceFromTheTime => [a_grace_longer_than_the_time_leaves_some_of_it],
        IgnoresCancellation => [
            cancellation_kills_everything, cancellation_before_the_start_ends_at_once,
        ],
        ForgetsDroppedProcesses => [
            dropping_the_process_kills_everything, giving_up_a_run_kills_everything,
        ],
        ListsNoBackground => [a_kept_child_runs_on_and_is_listed, a_kept_daemon_is_listed],
        LeavesProcesses => [
            a_kept_process_ends_with_the_sandbox, closing_ends_a_running_command,
            a_sandbox_that_is_dropped_ends_its_commands,
            processes_of_a_kept_sandbox_survive_as_it_says,
        ],
        LeavesZombies => [many_commands_leave_no_zombie],
        KeepsWhatTimedOut => [timeout_kills_what_would_have_been_kept],
        FreesTerminals => [timeout_ends_a_command_in_a_terminal, a_terminal_has_the_size_asked_for],
    }
    faults_of_files_are_found: side_by_side {
        ChecksPathsAsText => [
            nothing_is_read_through_a_link_that_leads_out,
            nothing_is_listed_through_a_link_that_leads_out,
            nothing_is_written_through_a_link_that_leads_out,
            nothing_is_moved_through_a_link_that_leads_out, removing_follows_no_link,
            no_command_starts_behind_a_link_that_leads_out,
            a_link_that_changes_while_it_is_read_leads_nowhere,
            outputs_that_are_no_files_of_the_sandbox_are_refused,
            a_link_that_changes_while_it_is_changed_leads_nowhere,
        ],
        FollowsLinks => [
            a_link_is_reported_as_a_link, a_listing_is_sorted_and_not_recursive,
            removing_takes_a_directory_with_all_in_it, removing_follows_no_link,
            renaming_moves_and_replaces,
        ],
        RefusesLinks => [
            a_link_within_the_sandbox_is_followed, a_link_that_leads_in_circles_is_an_error,
        ],
        OpensAnything => [
            a_pipe_is_refused_at_once, a_device_is_refused_at_once, a_directory_is_no_file,
            nothing_is_read_through_a_link_that_leads_out, a_path_outside_is_refused,
        ],
        ReadsNothing => [
            files_are_read_as_they_were_written, outputs_that_would_be_one_file_are_refused,
            outputs_follow_no_link_of_the_output_directory, a_file_of_any_size_is_copied,
            outputs_are_handed_over_at_their_paths,
        ],
        WritesTheFirstPiece => [
            files_are_read_as_they_were_written, a_file_of_1_gigabyte_goes_in_and_out,
        ],
        WritesInPlace => [
            a_write_replaces_a_file_whole, a_write_of_another_size_fails,
            a_failed_write_leaves_nothing, a_failed_write_keeps_what_was_there,
            a_write_that_is_given_up_leaves_no_file,
            nothing_is_written_through_a_link_that_leads_out,
        ],
        LeavesTemporaryFiles => [
            a_write_of_another_size_fails, a_failed_write_leaves_nothing,
            a_failed_write_keeps_what_was_there,
        ],
        SharesTheTemporaryFile => [writes_to_one_file_do_not_mix, copies_side_by_side_do_not_mix],
        IgnoresTheSize => [a_write_of_another_size_fails],
        LosesModes => [modes_are_kept, upload_copies_a_file, a_file_is_copied_to_another_sandbox],
        IgnoresRanges => [a_range_of_a_file_can_be_read],
        TakesNamesForText => [names_may_be_anything, a_file_of_any_name_is_copied],
        ListsUnsorted => [
            a_listing_is_sorted_and_not_recursive, a_listing_has_5000_entries,
            a_link_within_the_sandbox_is_followed, names_may_be_anything,
        ],
        MakesNoDirectories => [
            a_write_makes_the_directories_above, an_absolute_path_is_the_same_file,
        ],
        NamesTemporaryFilesAfterTheFile => [names_may_be_anything, a_file_of_any_name_is_copied],
        OverwritesWithoutCutting => [a_copy_replaces_a_file_whole, a_write_replaces_a_file_whole],
        RemovesByPath => [a_tree_deeper_than_any_path_is_removed],
    }
    faults_of_life_and_policy_are_found: side_by_side {
        SharesOneDirectory => [two_sandboxes_share_nothing, closing_removes_the_files],
        ReusesIds => [a_sandbox_says_what_it_is],
        AnswersAfterClose => [
            a_closed_sandbox_answers_closed, a_copy_to_or_from_a_closed_sandbox_is_refused,
        ],
        ClosesOnce => [closing_again_does_nothing],
        LeavesFiles => [
            closing_removes_the_files, a_dropped_sandbox_that_was_not_kept_leaves_nothing,
        ],
        FindsAnything => [
            a_kept_sandbox_is_found_again, a_handle_of_nothing_is_gone,
            a_kept_sandbox_that_is_closed_is_gone, a_handle_of_another_backend_is_refused,
        ],
        IgnoresThePolicy => [a_field_is_enforced_or_refused_by_name],
        PromisesEverything => [
            no_field_is_promised_that_is_not_set, a_field_is_enforced_or_refused_by_name,
            best_effort_opens_and_reports_each_field,
        ],
        ClaimsToEnforce => [
            what_is_said_to_be_enforced_is_enforced, a_network_of_some_hosts_has_no_others,
            a_limit_of_processor_time_that_is_promised_holds,
            a_limit_of_memory_that_is_promised_holds, a_limit_of_processes_that_is_promised_holds,
            a_limit_of_disk_that_is_promised_holds, a_limit_of_inodes_that_is_promised_holds,
        ],
        KeepsOnce => [a_kept_sandbox_can_be_kept_again],
        SaysThatNothingSurvives => [what_is_kept_is_what_survives],
        TellsSecrets => [a_handle_is_text_without_secrets],
        HidesItsEnd => [a_killed_sandbox_is_gone],
        HangsWhenKilled => [
            a_command_in_a_killed_sandbox_ends, a_transfer_in_a_killed_sandbox_ends,
            a_killed_sandbox_can_be_closed_and_leaves_nothing,
        ],
    }
    faults_of_memory_are_found: one_by_one {
        LoadsFiles => [
            a_file_of_64_megabytes_takes_little_memory, a_copy_of_200_megabytes_takes_little_memory,
        ],
    }
    faults_of_races_are_found: one_by_one {
        ChecksThenOpens => [a_link_that_changes_while_it_is_read_leads_nowhere],
        ChecksThenChanges => [a_link_that_changes_while_it_is_changed_leads_nowhere],
    }
}
