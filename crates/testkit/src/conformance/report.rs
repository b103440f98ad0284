//! What a suite found.

use std::fmt;
use std::time::Duration;

/// The result of every case of a suite, in the order of its table.
///
/// [`Display`](fmt::Display) has one line per case and one that counts them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a report fails no test; see `Report::assert`"]
pub struct Report {
    /// What became of each case.
    pub cases: Vec<CaseResult>,
}

/// What became of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaseResult {
    /// The behaviour the case asks for.
    pub name: String,
    /// Whether it is there.
    pub outcome: Outcome,
    /// How long the case took.
    pub duration: Duration,
}

/// Whether a behaviour is there.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "who reads a report must place every outcome"
)]
pub enum Outcome {
    /// It is.
    Passed,
    /// It isn't, and need not be; or it can't be seen from here. With the reason.
    Skipped(String),
    /// It isn't. With the reason.
    Failed(String),
}

impl Report {
    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases
            .iter()
            .filter(|case| matches!(case.outcome, Outcome::Failed(_)))
    }

    /// The cases that were skipped, each with its reason: what an implementation says it can't do, and
    /// what can't be seen from here. A test that compares their names notices when one is added.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.cases.iter().filter_map(|case| match &case.outcome {
            Outcome::Skipped(reason) => Some((&*case.name, &**reason)),
            _ => None,
        })
    }

    /// Fails the test unless every case passed or was skipped.
    ///
    /// # Panics
    /// Where a case failed, or there is none. The message is the whole report.
    #[track_caller]
    #[expect(
        clippy::panic,
        reason = "the one place where a suite meets the test harness, which knows panics only"
    )]
    pub fn assert(&self) {
        if self.cases.is_empty() || self.failures().next().is_some() {
            panic!("the implementation does not conform\n{self}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut passed, mut skipped, mut failed) = (0, 0, 0);
        for case in &self.cases {
            match case.outcome {
                Outcome::Passed => passed += 1,
                Outcome::Skipped(_) => skipped += 1,
                Outcome::Failed(_) => failed += 1,
            }
            writeln!(f, "{case}")?;
        }
        write!(f, "{passed} passed, {skipped} skipped, {failed} failed")
    }
}

impl fmt::Display for CaseResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (word, reason) = match &self.outcome {
            Outcome::Passed => ("passed", None),
            Outcome::Skipped(reason) => ("skipped", Some(reason)),
            Outcome::Failed(reason) => ("FAILED", Some(reason)),
        };
        let seconds = self.duration.as_secs_f64();
        write!(f, "{word:<7} {seconds:>6.2} s  {}", self.name)?;
        match reason {
            Some(reason) => write!(f, ": {}", reason.replace('\n', " ")),
            None => Ok(()),
        }
    }
}
