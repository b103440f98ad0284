//! One fault each, and the cases that find it.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantle_testkit::conformance::{self, CaseResult};

use crate::reference::{Fault, Reference};

/// A client with `fault` fails these cases, and none of those that have nothing to do with it.
async fn is_found(fault: Fault, by: &[&str]) {
    let names: BTreeSet<&str> = by.iter().chain(elsewhere(fault)).copied().collect();
    let names: Vec<&str> = names.into_iter().collect();

    let report =
        conformance::llm_client_cases(&|to| Arc::new(Reference::new(to, Some(fault))), &names)
            .await;

    let failed: BTreeSet<&str> = report.failures().map(name).collect();
    let expected: BTreeSet<&str> = by.iter().copied().collect();
    assert_eq!(failed, expected, "{report}");
}

/// Cases that the fault leaves alone: it is found where it is, not everywhere.
fn elsewhere(fault: Fault) -> &'static [&'static str] {
    match fault {
        // These are everywhere.
        Fault::EndsWithoutFinished | Fault::SaysMoreAfterFinished => &[],
        _ => &[
            "nobody_listening_is_a_connection_error",
            "the_model_is_the_one_asked_for",
            "usage_that_is_not_said_is_none",
            "a_text_is_one_block",
            "an_overflow_is_recognised",
        ],
    }
}

fn name(case: &CaseResult) -> &str {
    &case.name
}

macro_rules! faults {
    ($($test:ident: $fault:ident => [$($case:ident),+ $(,)?],)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                is_found(Fault::$fault, &[$(stringify!($case)),+]).await;
            }
        )+

        /// Every case that finds a fault.
        pub(crate) const FINDERS: &[&str] = &[$($(stringify!($case)),+),+];
    };
}

faults! {
    makes_empty_blocks: MakesEmptyBlocks => [an_empty_turn_has_no_blocks],
    puts_text_first: PutsTextFirst => [
        reasoning_comes_before_text_and_calls, pieces_add_up_to_the_blocks,
    ],
    merges_parallel_calls: MergesParallelCalls => [
        parallel_tool_calls_are_kept_apart, pieces_add_up_to_the_blocks,
        a_tool_call_without_an_id_gets_one,
    ],
    invents_no_ids: InventsNoIds => [a_tool_call_without_an_id_gets_one],
    mends_arguments: MendsArguments => [
        malformed_arguments_are_passed_through, a_tool_call_keeps_its_parts,
    ],
    ignores_the_stop_reason: IgnoresTheStopReason => [
        stop_reasons_are_told_apart, a_turn_that_was_too_long_has_its_usage,
    ],
    counts_cached_tokens_twice: CountsCachedTokensTwice => [no_token_is_counted_twice],
    takes_no_usage_for_zero: TakesNoUsageForZero => [usage_that_is_not_said_is_none],
    decodes_piece_by_piece: DecodesPieceByPiece => [slow_bytes_change_nothing],
    reads_comments_as_data: ReadsCommentsAsData => [habits_of_servers_change_nothing],
    drops_pieces: DropsPieces => [
        a_text_is_one_block, pieces_add_up_to_the_blocks, streaming_or_not_the_turn_is_the_same,
    ],
    answers_from_memory: AnswersFromMemory => [
        calls_side_by_side_keep_apart, a_longer_history_begins_with_the_same_bytes,
    ],
    knows_one_kind_only: KnowsOneKindOnly => [
        refusals_have_a_kind_and_are_not_repeated, an_overflow_is_recognised,
        a_page_of_a_proxy_is_a_server_error, a_connection_that_is_closed_is_a_connection_error,
        nobody_listening_is_a_connection_error, a_stream_that_breaks_off_is_interrupted,
    ],
    hides_the_status: HidesTheStatus => [
        a_server_that_keeps_failing_is_given_up, a_page_of_a_proxy_is_a_server_error,
        refusals_have_a_kind_and_are_not_repeated,
    ],
    takes_anything_for_an_answer: TakesAnythingForAnAnswer => [
        what_is_no_answer_is_a_protocol_error, a_stream_that_ends_early_is_no_turn,
    ],
    ignores_retry_after: IgnoresRetryAfter => [a_busy_server_is_waited_for_or_reported],
    never_tells_of_retries: NeverTellsOfRetries => [
        a_busy_server_is_waited_for_or_reported, a_server_that_keeps_failing_is_given_up,
    ],
    hardly_gives_up: HardlyGivesUp => [a_server_that_keeps_failing_is_given_up],
    repeats_refusals: RepeatsRefusals => [refusals_have_a_kind_and_are_not_repeated],
    runs_by_itself: RunsByItself => [
        nothing_is_sent_before_the_stream_is_polled, dropping_the_stream_ends_the_request,
    ],
    dies_with_its_client: DiesWithItsClient => [a_stream_outlives_its_client],
    holds_pieces_back: HoldsPiecesBack => [pieces_come_as_they_are_sent],
    ignores_truncation: IgnoresTruncation => [
        a_stream_that_breaks_off_is_interrupted, a_stream_that_ends_early_is_no_turn,
        a_stream_that_makes_no_sense_is_an_error, a_turn_cut_at_any_byte_is_not_finished,
    ],
    ignores_error_events: IgnoresErrorEvents => [
        an_error_within_a_stream_is_an_error, a_stream_that_makes_no_sense_is_an_error,
    ],
    retries_after_the_first_event: RetriesAfterTheFirstEvent => [
        a_stream_that_breaks_off_is_interrupted, an_error_within_a_stream_is_an_error,
        a_turn_cut_at_any_byte_is_not_finished,
    ],
    ends_without_finished: EndsWithoutFinished => [
        a_text_is_one_block, a_stream_outlives_its_client, an_overflow_is_recognised,
    ],
    says_more_after_finished: SaysMoreAfterFinished => [
        a_text_is_one_block, an_empty_turn_has_no_blocks,
    ],
    asks_for_another_model: AsksForAnotherModel => [the_model_is_the_one_asked_for],
    forgets_tool_results: ForgetsToolResults => [a_conversation_is_sent_whole],
    numbers_its_requests: NumbersItsRequests => [the_same_request_is_the_same_bytes],
    marks_the_last_message: MarksTheLastMessage => [a_longer_history_begins_with_the_same_bytes],
    puts_the_key_in_the_body: PutsTheKeyInTheBody => [the_key_is_sent_where_it_belongs],
    follows_redirects_with_the_key: FollowsRedirectsWithTheKey => [
        a_redirect_takes_no_key_along,
    ],
    shows_the_key_in_debug: ShowsTheKeyInDebug => [the_key_is_shown_nowhere],
    shows_the_key_in_errors: ShowsTheKeyInErrors => [the_key_is_shown_nowhere],
}
