//! Running a table of cases: each with a deadline, a few at a time, results in the table's order.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use futures_util::stream::{self, select};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, timeout};

use super::check::Checked;
use super::report::{CaseResult, Outcome, Report};

/// How many cases run at a time: of those that work, of which more would only compete for the
/// processor, and beside them as many of those that wait.
const AT_ONCE: usize = 6;

/// How long a case may take unless it says otherwise. Never reached where things are right.
const DEADLINE: Duration = Duration::from_secs(120);

/// The same for one that moves much.
const HEAVY_DEADLINE: Duration = Duration::from_secs(600);

/// Polled where the suite is awaited and nowhere else, so it need not be `Send`.
type Running<'a> = Pin<Box<dyn Future<Output = Checked> + 'a>>;

/// One behaviour, and how it is asked for.
pub(super) struct Case<H> {
    name: &'static str,
    body: for<'a> fn(&'a H) -> Running<'a>,
    optional: bool,
    beside: Beside,
    heavy: bool,
    deadline: Duration,
    left_out: Option<&'static str>,
}

/// What a case is run beside.
#[derive(Clone, Copy, PartialEq)]
enum Beside {
    /// Others that work.
    Working,
    /// Those, and others that wait.
    Waiting,
    Nothing,
}

impl<H> Case<H> {
    pub(super) fn new(name: &'static str, body: for<'a> fn(&'a H) -> Running<'a>) -> Self {
        Self {
            name,
            body,
            optional: false,
            beside: Beside::Working,
            heavy: false,
            deadline: DEADLINE,
            left_out: None,
        }
    }

    /// An implementation may lack it.
    pub(super) fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// It measures what other cases would disturb.
    pub(super) fn alone(mut self) -> Self {
        self.beside = Beside::Nothing;
        self
    }

    /// It spends seconds until some time is over, and works for a moment.
    pub(super) fn waits(mut self) -> Self {
        self.beside = Beside::Waiting;
        self
    }

    /// It moves so much that a run in a hurry leaves it out.
    pub(super) fn heavy(mut self) -> Self {
        self.heavy = true;
        self.deadline(HEAVY_DEADLINE)
    }

    /// The case as a run in a hurry has it: one that is heavy is skipped.
    pub(super) fn in_a_hurry(mut self) -> Self {
        self.left_out = self.heavy.then_some("left out of a quick run");
        self
    }

    /// It takes longer than others, where things are right.
    pub(super) fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Runs the cases of these names against what `harness` holds, or all where there are none. A name
/// that is no case's is a failure.
pub(super) async fn run<H>(harness: &H, cases: Vec<Case<H>>, names: &[&str]) -> Report {
    let unknown = names
        .iter()
        .filter(|name| cases.iter().all(|case| case.name != **name));
    let unknown = unknown.map(|name| CaseResult {
        name: (*name).to_owned(),
        outcome: Outcome::Failed("there is no case of this name".to_owned()),
        duration: Duration::ZERO,
    });
    let wanted = |case: &&Case<H>| names.is_empty() || names.contains(&case.name);
    let mut numbered: Vec<_> = cases.iter().filter(wanted).enumerate().collect();
    // First what takes longest, so that it isn't waited for alone.
    numbered.sort_by_key(|(_, case)| !case.heavy);
    let those = |beside| {
        let numbered = numbered.iter().copied();
        numbered.filter(move |(_, case)| case.beside == beside)
    };
    let one = |(at, case)| async move { (at, run_one(case, harness).await) };
    let waiting = stream::iter(those(Beside::Waiting).map(one)).buffer_unordered(AT_ONCE);
    let working = stream::iter(those(Beside::Working).map(one)).buffer_unordered(AT_ONCE);
    let mut results: Vec<_> = select(waiting, working).collect().await;
    for numbered in those(Beside::Nothing) {
        results.push(one(numbered).await);
    }
    results.sort_by_key(|(at, _)| *at);
    let results = results.into_iter().map(|(_, result)| result);
    Report {
        cases: unknown.chain(results).collect(),
    }
}

async fn run_one<H>(case: &Case<H>, harness: &H) -> CaseResult {
    let started = Instant::now();
    if let Some(reason) = case.left_out {
        return CaseResult {
            name: case.name.to_owned(),
            outcome: Outcome::Skipped(reason.to_owned()),
            duration: Duration::ZERO,
        };
    }
    let body = AssertUnwindSafe((case.body)(harness)).catch_unwind();
    let outcome = match timeout(case.deadline, body).await {
        Ok(Ok(Ok(()))) => Outcome::Passed,
        Ok(Ok(Err(failure))) if failure.is_skip() && case.optional => {
            Outcome::Skipped(failure.to_string())
        }
        Ok(Ok(Err(failure))) if failure.is_skip() => {
            Outcome::Failed(format!("this can't be left out: {failure}"))
        }
        Ok(Ok(Err(failure))) => Outcome::Failed(failure.to_string()),
        Ok(Err(panic)) => Outcome::Failed(format!("panicked: {}", panic_text(panic))),
        Err(_) => Outcome::Failed(format!("did not end within {:?}", case.deadline)),
    };
    CaseResult {
        name: case.name.to_owned(),
        outcome,
        duration: started.elapsed(),
    }
}

fn panic_text(panic: Box<dyn Any + Send>) -> String {
    match panic.downcast::<String>() {
        Ok(text) => *text,
        Err(panic) => panic
            .downcast_ref::<&str>()
            .map_or_else(|| "without words".to_owned(), |text| (*text).to_owned()),
    }
}
