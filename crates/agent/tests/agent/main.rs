//! The agent as its users see it: sessions, runs, outcomes.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a helper that can't go on fails its test"
)]

mod approvals;
mod background;
mod budgets;
mod deadlines;
mod events;
mod files;
mod hooks;
mod images;
mod journals;
mod kept;
mod ledger;
mod repeats;
mod resumed;
mod runs;
mod sessions;
mod sub_agents;
mod summaries;
mod support;
