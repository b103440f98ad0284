//! Faults and the cases that detect them.

use std::collections::BTreeSet;
use std::sync::Arc;

use cantle_testkit::conformance::{self, CaseResult, Dialect};

use crate::reference::{Fault, Reference};

/// Checks that a client with `fault` fails these cases and no unrelated ones.
async fn detects(fault: Fault, by: &[&str]) {
    let names: BTreeSet<&str> = by.iter().chain(control_cases(fault)).copied().collect();
    let names: Vec<&str> = names.into_iter().collect();

    let report = conformance::llm_client_cases(
        Dialect::Chat,
        &|to| Arc::new(Reference::new(to, Some(fault))),
        &names,
    )
    .await;

    let failed: BTreeSet<&str> = report.failures().map(name).collect();
    let expected: BTreeSet<&str> = by.iter().copied().collect();
    assert_eq!(failed, expected, "{report}");
}

/// Unrelated cases, which must pass despite the fault.
fn control_cases(fault: Fault) -> &'static [&'static str] {
    match fault {
        // These faults affect every case.
        Fault::EndsWithoutFinished | Fault::ContinuesAfterFinished => &[],
        _ => &[
            "a_refused_connection_is_unreachable",
            "the_requested_model_is_sent",
            "missing_usage_is_none",
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
                detects(Fault::$fault, &[$(stringify!($case)),+]).await;
            }
        )+

        /// All cases that detect a fault.
        pub(crate) const DETECTING_CASES: &[&str] = &[$($(stringify!($case)),+),+];
    };
}

faults! {
    makes_empty_blocks: MakesEmptyBlocks => [an_empty_turn_has_no_blocks],
    puts_text_first: PutsTextFirst => [
        reasoning_comes_before_text_and_calls, pieces_add_up_to_the_blocks,
    ],
    merges_parallel_calls: MergesParallelCalls => [
        parallel_tool_calls_stay_separate, pieces_add_up_to_the_blocks,
        a_tool_call_without_an_id_gets_one,
    ],
    invents_no_ids: GeneratesNoIds => [a_tool_call_without_an_id_gets_one],
    mends_arguments: RepairsArguments => [
        malformed_arguments_are_passed_through, a_tool_call_keeps_its_parts,
    ],
    ignores_the_stop_reason: IgnoresTheStopReason => [
        stop_reasons_are_distinguished, a_truncated_turn_has_its_usage,
    ],
    counts_cached_tokens_twice: CountsCachedTokensTwice => [no_token_is_counted_twice],
    takes_no_usage_for_zero: ReportsMissingUsageAsZero => [missing_usage_is_none],
    decodes_piece_by_piece: DecodesPieceByPiece => [slow_delivery_does_not_change_the_turn],
    reads_comments_as_data: ReadsCommentsAsData => [server_quirks_do_not_change_the_turn],
    drops_pieces: DropsPieces => [
        a_text_is_one_block, pieces_add_up_to_the_blocks, streaming_does_not_change_the_turn,
    ],
    answers_from_memory: RepeatsTheFirstRequest => [
        concurrent_calls_are_independent, a_longer_history_begins_with_the_same_bytes,
    ],
    knows_one_kind_only: ReportsOneErrorKind => [
        refusals_have_a_kind_and_are_not_repeated, an_overflow_is_recognised,
        a_proxy_error_page_is_a_server_error, a_connection_that_is_closed_is_a_connection_error,
        a_refused_connection_is_unreachable, a_stream_that_breaks_off_is_interrupted,
    ],
    hides_the_status: HidesTheStatus => [
        retries_of_a_failing_server_are_bounded, a_proxy_error_page_is_a_server_error,
        refusals_have_a_kind_and_are_not_repeated,
    ],
    takes_anything_for_an_answer: AcceptsAnyAnswer => [
        an_invalid_answer_is_a_protocol_error, a_stream_that_ends_early_is_an_error,
    ],
    ignores_retry_after: IgnoresRetryAfter => [rate_limits_are_retried_or_reported],
    never_tells_of_retries: HidesRetries => [
        rate_limits_are_retried_or_reported, retries_of_a_failing_server_are_bounded,
    ],
    hardly_gives_up: RetriesTooOften => [retries_of_a_failing_server_are_bounded],
    repeats_refusals: RetriesRefusals => [refusals_have_a_kind_and_are_not_repeated],
    runs_by_itself: RunsUnpolled => [
        nothing_is_sent_before_the_stream_is_polled, dropping_the_stream_ends_the_request,
    ],
    dies_with_its_client: DiesWithItsClient => [a_stream_outlives_its_client],
    holds_pieces_back: BuffersPieces => [pieces_come_as_they_are_sent],
    ignores_truncation: IgnoresTruncation => [
        a_stream_that_breaks_off_is_interrupted, a_stream_that_ends_early_is_an_error,
        a_malformed_stream_is_an_error, a_turn_cut_at_any_byte_is_not_finished,
    ],
    ignores_error_events: IgnoresErrorEvents => [
        an_error_within_a_stream_is_an_error, a_malformed_stream_is_an_error,
    ],
    repeats_broken_streams_silently: RepeatsBrokenStreamsSilently => [
        a_stream_that_breaks_off_is_interrupted,
    ],
    ends_without_finished: EndsWithoutFinished => [
        a_text_is_one_block, a_stream_outlives_its_client, an_overflow_is_recognised,
    ],
    says_more_after_finished: ContinuesAfterFinished => [
        a_text_is_one_block, an_empty_turn_has_no_blocks,
    ],
    asks_for_another_model: RequestsAnotherModel => [the_requested_model_is_sent],
    forgets_tool_results: ForgetsToolResults => [a_conversation_is_sent_whole],
    numbers_its_requests: NumbersItsRequests => [the_same_request_is_the_same_bytes],
    marks_the_last_message: MarksTheLastMessage => [a_longer_history_begins_with_the_same_bytes],
    puts_the_key_in_the_body: PutsTheKeyInTheBody => [the_key_is_sent_where_it_belongs],
    follows_redirects_with_the_key: FollowsRedirectsWithTheKey => [
        a_redirect_does_not_forward_the_key,
    ],
    shows_the_key_in_debug: ShowsTheKeyInDebug => [the_key_is_not_exposed],
    shows_the_key_in_errors: ShowsTheKeyInErrors => [the_key_is_not_exposed],
}
