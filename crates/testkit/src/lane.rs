//! Test lanes: how much of a test runs.
//!
//! The quick lane runs every behaviour once. The full lane adds the long matrix: all versions of a peer,
//! secondary modes, complete tables, gigabytes. `CANTLE_TEST_LANE=full` selects it; `cargo xtask test
//! --full` sets that variable. A test that runs reduced in the quick lane prints a line that begins
//! with `REDUCED`, and one that cannot run at all prints a line that begins with `SKIPPED`;
//! `cargo xtask test` lists both at its end.

/// The environment variable that selects the lane: `quick` (the default) or `full`.
pub const VARIABLE: &str = "CANTLE_TEST_LANE";

/// Reports whether the full lane was selected.
pub fn is_full() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|lane| lane == "full")
}

/// Reports that the running test cannot run, or that it belongs to the full lane.
#[expect(
    clippy::print_stdout,
    reason = "libtest captures it with the test's name"
)]
pub fn skip(reason: &str) {
    println!("SKIPPED: {reason}");
}

/// Returns `full` in the full lane. In the quick lane, returns `quick` and reports the omission.
#[expect(
    clippy::print_stdout,
    reason = "libtest captures it with the test's name"
)]
pub fn choose<T>(omitted: &str, quick: T, full: T) -> T {
    if is_full() {
        return full;
    }
    println!("REDUCED: without {omitted}");
    quick
}
