//! A table of cases: each with a deadline, a few at a time, results in the table's order.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::time::Duration;

use cantle_core::tool::panic_message;
use futures_util::stream::{self, select};
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::time::{Instant, timeout};

use super::check::Checked;
use super::report::{CaseResult, Outcome, Report};

/// Maximum number of concurrent busy cases, and of concurrent waiting cases.
const MAX_CONCURRENT: usize = 6;

/// Default deadline of a case. Not reached by correct implementations.
const DEADLINE: Duration = Duration::from_secs(120);

/// Default deadline of a heavy case.
const HEAVY_DEADLINE: Duration = Duration::from_secs(600);

/// Future of a case. Polled only by the suite's own future, so it need not be `Send`.
type CaseFuture<'a> = Pin<Box<dyn Future<Output = Checked> + 'a>>;

/// One required behaviour and its check.
pub(super) struct Case<H> {
    name: &'static str,
    body: for<'a> fn(&'a H) -> CaseFuture<'a>,
    optional: bool,
    schedule: Schedule,
    heavy: bool,
    deadline: Duration,
    skip_reason: Option<&'static str>,
}

/// Cases that may run concurrently with a case.
#[derive(Clone, Copy, PartialEq)]
enum Schedule {
    Busy,
    /// Mostly sleeps; does not count against the busy cases.
    Waiting,
    Alone,
}

impl<H> Case<H> {
    pub(super) fn new(name: &'static str, body: for<'a> fn(&'a H) -> CaseFuture<'a>) -> Self {
        Self {
            name,
            body,
            optional: false,
            schedule: Schedule::Busy,
            heavy: false,
            deadline: DEADLINE,
            skip_reason: None,
        }
    }

    /// Lets an implementation skip the case with `Unsupported`.
    pub(super) fn optional(mut self) -> Self {
        self.optional = true;
        self
    }

    /// Runs the case without others, which would disturb its measurements.
    pub(super) fn alone(mut self) -> Self {
        self.schedule = Schedule::Alone;
        self
    }

    /// Marks a case that mostly waits for a timeout.
    pub(super) fn waits(mut self) -> Self {
        self.schedule = Schedule::Waiting;
        self
    }

    /// Marks a case as too large for quick runs.
    pub(super) fn heavy(mut self) -> Self {
        self.heavy = true;
        self.deadline(HEAVY_DEADLINE)
    }

    /// Skips the case if it is heavy.
    pub(super) fn skip_if_heavy(mut self) -> Self {
        self.skip_reason = self.heavy.then_some("not part of a quick run");
        self
    }

    /// Sets the deadline.
    pub(super) fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }
}

/// Runs the named cases against `harness`, or all cases if `names` is empty. An unknown name is a
/// failure.
pub(super) async fn run<H>(harness: &H, cases: Vec<Case<H>>, names: &[&str]) -> Report {
    let unknown = names
        .iter()
        .filter(|name| cases.iter().all(|case| case.name != **name));
    let unknown = unknown.map(|name| CaseResult {
        name: (*name).to_owned(),
        outcome: Outcome::Failed("unknown case".to_owned()),
        duration: Duration::ZERO,
    });
    let selected = |case: &&Case<H>| names.is_empty() || names.contains(&case.name);
    let mut numbered: Vec<_> = cases.iter().filter(selected).enumerate().collect();
    // Long cases start first, which shortens the total.
    numbered.sort_by_key(|(_, case)| !case.heavy);
    let scheduled = |schedule| {
        let numbered = numbered.iter().copied();
        numbered.filter(move |(_, case)| case.schedule == schedule)
    };
    let run = |(at, case)| async move { (at, run_one(case, harness).await) };
    let waiting =
        stream::iter(scheduled(Schedule::Waiting).map(run)).buffer_unordered(MAX_CONCURRENT);
    let working = stream::iter(scheduled(Schedule::Busy).map(run)).buffer_unordered(MAX_CONCURRENT);
    let mut results: Vec<_> = select(waiting, working).collect().await;
    for numbered in scheduled(Schedule::Alone) {
        results.push(run(numbered).await);
    }
    results.sort_by_key(|(at, _)| *at);
    let results = results.into_iter().map(|(_, result)| result);
    Report {
        cases: unknown.chain(results).collect(),
    }
}

async fn run_one<H>(case: &Case<H>, harness: &H) -> CaseResult {
    let started = Instant::now();
    if let Some(reason) = case.skip_reason {
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
            Outcome::Failed(format!("not optional: {failure}"))
        }
        Ok(Ok(Err(failure))) => Outcome::Failed(failure.to_string()),
        Ok(Err(panic)) => Outcome::Failed(format!("panicked: {}", panic_message(&*panic))),
        Err(_) => Outcome::Failed(format!("did not end within {:?}", case.deadline)),
    };
    CaseResult {
        name: case.name.to_owned(),
        outcome,
        duration: started.elapsed(),
    }
}

/// Declares a function that lists cases: the name of each, the call that checks it unless a function
/// has that name, and the adaptations of its [`Case`].
macro_rules! cases {
    ($list:ident for $harness:ident: $($name:ident $(=> $check:ident($($argument:expr),*))?
        $(.$adapt:ident($($value:expr)?))*,)*) => {
        pub(super) fn $list<'h>() -> Vec<$crate::conformance::suite::Case<$harness<'h>>> {
            vec![$($crate::conformance::suite::cases!(@ $harness $name $($check($($argument),*))?)
                $(.$adapt($($value)?))*,)*]
        }
    };
    (@ $harness:ident $name:ident) => {
        $crate::conformance::suite::cases!(@ $harness $name $name())
    };
    (@ $harness:ident $name:ident $check:ident($($argument:expr),*)) => {
        $crate::conformance::suite::Case::new(stringify!($name), |harness: &$harness<'_>| {
            Box::pin(harness.check(async |subject| $check(subject, $($argument),*).await))
        })
    };
}
pub(super) use cases;
