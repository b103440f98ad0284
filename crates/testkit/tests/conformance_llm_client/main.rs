//! The client suite proves itself: a client that conforms passes it, and clients with one fault each
//! fail exactly the cases that ask for what they lack.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod faults;
mod reference;
mod wire;

use std::sync::Arc;

use cantle_testkit::conformance::{self, Outcome};

use crate::reference::Reference;

#[tokio::test]
async fn a_client_that_conforms_passes() {
    let report = conformance::llm_client(&|to| Arc::new(Reference::new(to, None))).await;

    println!("{report}");
    report.assert();
    let skipped = report
        .cases
        .iter()
        .filter(|it| it.outcome != Outcome::Passed);
    assert_eq!(skipped.count(), 0, "everything can be asked of this client");
    let finds_nothing = |name: &&str| !faults::FINDERS.contains(name);
    let names = report.cases.iter().map(|case| &*case.name);
    let idle: Vec<&str> = names.filter(finds_nothing).collect();
    assert_eq!(idle, [""; 0], "no fault is known that these cases find");
}

#[tokio::test]
async fn a_client_that_never_streams_passes_without_what_streams() {
    let report = conformance::llm_client(&|to| {
        let mut to = to.clone();
        to.stream = false;
        Arc::new(Reference::new(&to, None))
    })
    .await;

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
            "streaming_or_not_the_turn_is_the_same",
            "pieces_come_as_they_are_sent"
        ]
    );
}
