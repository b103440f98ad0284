//! Tests of the client suite: a conforming client passes, and each client with one fault fails exactly
//! the cases for that fault.
#![expect(
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "shared test code has no `#[test]` attribute"
)]

mod faults;
mod reference;
mod wire;

use std::sync::Arc;

use cantle_testkit::conformance::{self, Dialect, Outcome};

use crate::reference::Reference;

#[tokio::test]
async fn a_client_that_conforms_passes() {
    let report =
        conformance::llm_client(Dialect::Chat, &|to| Arc::new(Reference::new(to, None))).await;

    println!("{report}");
    report.assert();
    let skipped = report
        .cases
        .iter()
        .filter(|it| it.outcome != Outcome::Passed);
    assert_eq!(skipped.count(), 0, "no case is skipped");
    let undetecting = |name: &&str| !faults::DETECTING_CASES.contains(name);
    let names = report.cases.iter().map(|case| &*case.name);
    let idle: Vec<&str> = names.filter(undetecting).collect();
    assert_eq!(idle, [""; 0], "no known fault is detected by these cases");
}

#[tokio::test]
async fn a_client_without_streaming_passes() {
    let report = conformance::llm_client(Dialect::Chat, &|to| {
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
            "streaming_does_not_change_the_turn",
            "pieces_come_as_they_are_sent"
        ]
    );
}
