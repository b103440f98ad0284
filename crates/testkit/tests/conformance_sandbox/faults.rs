//! One fault each, and the cases that find it.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantle_core::sandbox::Sandbox;
use cantle_testkit::conformance::{self, CaseResult, SandboxOptions};

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

/// A backend with `fault` fails these cases, and none of those that have nothing to do with it.
async fn is_found(fault: Fault, by: &[&str]) {
    let _others = ALONE.read().await;
    let names: BTreeSet<&str> = by.iter().chain(ELSEWHERE).copied().collect();
    let names: Vec<&str> = names.into_iter().collect();

    let backend = Reference::new(Some(fault));
    let kill = async |sandbox: Arc<dyn Sandbox>| {
        backend.kill(&*sandbox);
        Ok(())
    };
    let options = SandboxOptions::new().only(&names).killed_by(kill);
    let report = conformance::sandbox_with(&backend, options).await;

    let failed: BTreeSet<&str> = report.failures().map(name).collect();
    let expected: BTreeSet<&str> = by.iter().copied().collect();
    assert_eq!(failed, expected, "{report}");
}

fn name(case: &CaseResult) -> &str {
    &case.name
}

macro_rules! faults {
    ($($test:ident: $fault:ident => [$($case:ident),+ $(,)?],)+) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $test() {
                is_found(Fault::$fault, &[$(stringify!($case)),+]).await;
            }
        )+

        /// Every case that finds a fault.
        pub(crate) const FINDERS: &[&str] = &[$($(stringify!($case)),+),+];
    };
}

faults! {
    loses_the_exit_code: LosesTheExitCode => [
        exit_codes_are_kept, waiting_again_gives_the_same_answer,
        a_wait_that_is_given_up_loses_nothing,
    ],
    takes_signals_for_codes: TakesSignalsForCodes => [
        death_by_a_signal_is_told_from_an_exit_code, a_signal_reaches_the_command,
    ],
    uses_the_wrong_shell: UsesTheWrongShell => [the_shell_is_bash, output_keeps_its_order],
    uses_a_shell_for_arguments: UsesAShellForArguments => [
        arguments_without_a_shell_are_not_expanded, arguments_may_be_any_bytes,
        a_program_that_is_missing_is_an_error, a_program_that_is_not_executable_is_an_error,
        no_program_at_all_is_an_error,
    ],
    leaks_the_environment: LeaksTheEnvironment => [nothing_of_our_environment_is_inherited],
    forgets_the_environment: ForgetsTheEnvironment => [
        variables_of_a_request_reach_the_command, nul_in_a_request_is_refused,
        what_is_said_to_be_enforced_is_enforced,
    ],
    ignores_the_directory: IgnoresTheDirectory => [a_command_runs_in_the_directory_it_asks_for],
    fails_without_a_kind: FailsWithoutAKind => [
        nul_in_a_request_is_refused, arguments_that_are_too_long_are_refused,
        a_program_that_is_missing_is_an_error, a_program_that_is_not_executable_is_an_error,
        no_program_at_all_is_an_error, a_directory_that_is_missing_is_an_error,
        a_directory_that_is_a_file_is_an_error, what_is_missing_is_not_found,
        a_directory_is_no_file, a_file_is_no_directory, a_path_outside_is_refused,
        no_command_starts_behind_a_link_that_leads_out, a_write_of_another_size_fails,
        a_working_directory_that_is_removed_is_noticed, download_gives_the_file_with_its_mode, a_name_that_is_too_long_is_refused, what_cannot_be_copied_leaves_nothing,
    ],
    takes_no_time: TakesNoTime => [the_duration_is_the_commands_own],
    answers_with_pipes: AnswersWithPipes => [a_terminal_has_the_size_asked_for],
    leaves_input_open: LeavesInputOpen => [
        no_input_is_at_its_end, output_and_input_are_given_once, input_that_is_dropped_ends,
    ],
    writes_all_input_first: WritesAllInputFirst => [
        input_is_written_while_output_is_read, input_that_nobody_reads_blocks_nothing,
    ],
    buffers_everything: BuffersEverything => [
        output_comes_as_it_is_written, a_reader_that_stops_holds_the_command,
        output_of_100_megabytes_takes_little_memory, input_that_the_command_closed_is_reported,
        a_process_id_is_the_commands_own,
    ],
    never_holds_the_command: NeverHoldsTheCommand => [a_reader_that_stops_holds_the_command],
    merges_the_channels: MergesTheChannels => [
        stderr_is_kept_apart, output_keeps_its_order, output_may_be_any_bytes,
        output_can_be_read_after_the_end, thirty_two_commands_at_once_keep_apart,
        timeout_keeps_the_output_so_far,
    ],
    takes_output_for_text: TakesOutputForText => [
        output_may_be_any_bytes, arguments_may_be_any_bytes,
    ],
    loses_the_last_piece: LosesTheLastPiece => [
        output_keeps_its_order, a_line_of_20_megabytes_is_kept, output_can_be_read_after_the_end,
        large_output_keeps_its_head_and_tail, given_input_arrives_whole,
        commands_start_in_the_working_directory, a_background_child_delays_no_answer,
        commands_and_files_share_one_view, a_directory_is_made_with_those_above_and_once,
        upload_copies_a_directory_and_passes_over_what_it_cannot,
        outputs_are_saved_by_their_names, outputs_may_go_into_the_working_directory,
    ],
    counts_only_what_is_read: CountsOnlyWhatIsRead => [
        output_that_is_not_taken_is_counted_and_blocks_nothing,
        output_that_is_dropped_is_counted_and_blocks_nothing,
    ],
    spills_everything: SpillsEverything => [small_output_is_not_spilled],
    spills_without_a_cap: SpillsWithoutACap => [a_spilled_file_ends_at_its_cap],
    spills_elsewhere: SpillsElsewhere => [
        large_output_is_spilled_to_a_file, each_channel_is_spilled_by_itself,
        a_spilled_file_ends_at_its_cap, output_of_100_megabytes_is_spilled_whole,
    ],
    ignores_timeouts: IgnoresTimeouts => [
        timeout_kills_the_command, timeout_keeps_the_output_so_far,
        timeout_ends_a_command_whose_output_nobody_reads,
    ],
    kills_only_the_leader: KillsOnlyTheLeader => [
        timeout_kills_a_child_that_left_the_process_group, timeout_kills_a_daemon,
        timeout_kills_a_grandchild_that_holds_the_pipe, timeout_kills_a_stopped_command,
        timeout_kills_a_command_that_ignores_term, timeout_leaves_other_commands_alone,
        cancellation_kills_everything, dropping_the_process_kills_everything,
        giving_up_a_run_kills_everything, a_background_child_is_killed,
        a_background_daemon_is_killed,
    ],
    kills_everything_on_timeout: KillsEverythingOnTimeout => [
        timeout_leaves_other_commands_alone,
    ],
    waits_for_the_pipes_end: WaitsForThePipesEnd => [
        a_background_child_delays_no_answer, a_background_child_is_killed,
        a_kept_child_delays_no_answer,
    ],
    gives_the_grace_after_the_time: GivesTheGraceAfterTheTime => [
        the_grace_lies_before_the_end_of_the_time,
    ],
    takes_the_grace_from_the_time: TakesTheGraceFromTheTime => [
        a_grace_longer_than_the_time_leaves_some_of_it,
    ],
    ignores_cancellation: IgnoresCancellation => [
        cancellation_kills_everything, cancellation_before_the_start_ends_at_once,
    ],
    forgets_dropped_processes: ForgetsDroppedProcesses => [
        dropping_the_process_kills_everything, giving_up_a_run_kills_everything,
    ],
    lists_no_background: ListsNoBackground => [
        a_kept_child_runs_on_and_is_listed, a_kept_daemon_is_listed,
    ],
    leaves_processes: LeavesProcesses => [
        a_kept_process_ends_with_the_sandbox, closing_ends_a_running_command,
        a_sandbox_that_is_dropped_ends_its_commands, processes_of_a_kept_sandbox_survive_as_it_says,
    ],
    leaves_zombies: LeavesZombies => [many_commands_leave_no_zombie],
    checks_paths_as_text: ChecksPathsAsText => [
        nothing_is_read_through_a_link_that_leads_out,
        nothing_is_listed_through_a_link_that_leads_out,
        nothing_is_written_through_a_link_that_leads_out,
        nothing_is_moved_through_a_link_that_leads_out, removing_follows_no_link,
        no_command_starts_behind_a_link_that_leads_out,
        a_link_that_changes_while_it_is_read_leads_nowhere,
        outputs_that_are_no_files_of_the_sandbox_are_refused, a_link_that_changes_while_it_is_changed_leads_nowhere,
    ],
    checks_then_opens: ChecksThenOpens => [a_link_that_changes_while_it_is_read_leads_nowhere],
    follows_links: FollowsLinks => [
        a_link_is_reported_as_a_link, a_listing_is_sorted_and_not_recursive,
        removing_takes_a_directory_with_all_in_it, removing_follows_no_link,
        renaming_moves_and_replaces,
    ],
    refuses_links: RefusesLinks => [
        a_link_within_the_sandbox_is_followed, a_link_that_leads_in_circles_is_an_error,
    ],
    opens_anything: OpensAnything => [
        a_pipe_is_refused_at_once, a_device_is_refused_at_once, a_directory_is_no_file,
        nothing_is_read_through_a_link_that_leads_out, a_path_outside_is_refused,
    ],
    reads_nothing: ReadsNothing => [
        files_are_read_as_they_were_written, outputs_that_would_be_one_file_are_refused,
        outputs_follow_no_link_of_the_output_directory, a_file_of_any_size_is_copied, outputs_are_handed_over_at_their_paths,
    ],
    loads_files: LoadsFiles => [a_file_of_64_megabytes_takes_little_memory, a_copy_of_200_megabytes_takes_little_memory,
    ],
    writes_the_first_piece: WritesTheFirstPiece => [files_are_read_as_they_were_written, a_file_of_1_gigabyte_goes_in_and_out,
    ],
    writes_in_place: WritesInPlace => [
        a_write_replaces_a_file_whole, a_write_of_another_size_fails,
        a_failed_write_leaves_nothing, a_failed_write_keeps_what_was_there,
        a_write_that_is_given_up_leaves_no_file,
        nothing_is_written_through_a_link_that_leads_out,
    ],
    leaves_temporary_files: LeavesTemporaryFiles => [
        a_write_of_another_size_fails, a_failed_write_leaves_nothing,
        a_failed_write_keeps_what_was_there,
    ],
    shares_the_temporary_file: SharesTheTemporaryFile => [writes_to_one_file_do_not_mix, copies_side_by_side_do_not_mix,
    ],
    ignores_the_size: IgnoresTheSize => [a_write_of_another_size_fails],
    loses_modes: LosesModes => [
        modes_are_kept, upload_copies_a_file, a_file_is_copied_to_another_sandbox,
    ],
    ignores_ranges: IgnoresRanges => [a_range_of_a_file_can_be_read],
    takes_names_for_text: TakesNamesForText => [names_may_be_anything, a_file_of_any_name_is_copied,
    ],
    lists_unsorted: ListsUnsorted => [
        a_listing_is_sorted_and_not_recursive, a_listing_has_5000_entries,
        a_link_within_the_sandbox_is_followed, names_may_be_anything,
    ],
    makes_no_directories: MakesNoDirectories => [
        a_write_makes_the_directories_above, an_absolute_path_is_the_same_file,
    ],
    shares_one_directory: SharesOneDirectory => [
        two_sandboxes_share_nothing, closing_removes_the_files,
    ],
    reuses_ids: ReusesIds => [a_sandbox_says_what_it_is],
    answers_after_close: AnswersAfterClose => [a_closed_sandbox_answers_closed, a_copy_to_or_from_a_closed_sandbox_is_refused,
    ],
    closes_once: ClosesOnce => [closing_again_does_nothing],
    leaves_files: LeavesFiles => [closing_removes_the_files, a_dropped_sandbox_that_was_not_kept_leaves_nothing,
    ],
    finds_anything: FindsAnything => [
        a_kept_sandbox_is_found_again, a_handle_of_nothing_is_gone, a_kept_sandbox_that_is_closed_is_gone, a_handle_of_another_backend_is_refused,
    ],
    ignores_the_policy: IgnoresThePolicy => [a_field_is_enforced_or_refused_by_name],
    promises_everything: PromisesEverything => [
        no_field_is_promised_that_is_not_set, a_field_is_enforced_or_refused_by_name,
        best_effort_opens_and_reports_each_field,
    ],
    claims_to_enforce: ClaimsToEnforce => [what_is_said_to_be_enforced_is_enforced, a_network_of_some_hosts_has_no_others, a_limit_of_processor_time_that_is_promised_holds, a_limit_of_memory_that_is_promised_holds, a_limit_of_processes_that_is_promised_holds, a_limit_of_disk_that_is_promised_holds, a_limit_of_inodes_that_is_promised_holds,
    ],
    cuts_long_commands: CutsLongCommands => [
        a_command_line_of_100_kilobytes_runs, a_long_list_of_arguments_arrives_whole_or_is_refused,
    ],
    shares_one_stream: SharesOneStream => [
        output_that_nobody_reads_holds_up_nothing_else, output_that_nobody_reads_holds_up_no_signal,
        input_that_nobody_takes_holds_up_nothing_else, a_file_that_is_read_slowly_holds_up_nothing_else,
        a_write_whose_data_are_slow_holds_up_nothing_else,
    ],
    waits_for_input_that_nobody_takes: WaitsForInputThatNobodyTakes => [
        input_that_nobody_takes_ends_with_the_command, input_that_the_command_closed_is_reported,
    ],
    keeps_what_timed_out: KeepsWhatTimedOut => [timeout_kills_what_would_have_been_kept],
    frees_terminals: FreesTerminals => [
        timeout_ends_a_command_in_a_terminal, a_terminal_has_the_size_asked_for,
    ],
    checks_then_changes: ChecksThenChanges => [
        a_link_that_changes_while_it_is_changed_leads_nowhere,
    ],
    names_temporary_files_after_the_file: NamesTemporaryFilesAfterTheFile => [
        names_may_be_anything, a_file_of_any_name_is_copied,
    ],
    overwrites_without_cutting: OverwritesWithoutCutting => [
        a_copy_replaces_a_file_whole, a_write_replaces_a_file_whole,
    ],
    removes_by_path: RemovesByPath => [a_tree_deeper_than_any_path_is_removed],
    keeps_once: KeepsOnce => [a_kept_sandbox_can_be_kept_again],
    says_that_nothing_survives: SaysThatNothingSurvives => [what_is_kept_is_what_survives],
    tells_secrets: TellsSecrets => [a_handle_is_text_without_secrets],
    hides_its_end: HidesItsEnd => [a_killed_sandbox_is_gone],
    hangs_when_killed: HangsWhenKilled => [
        a_command_in_a_killed_sandbox_ends, a_transfer_in_a_killed_sandbox_ends,
        a_killed_sandbox_can_be_closed_and_leaves_nothing,
    ],
}
