//! Reports of conformance suites.

use std::fmt;
use std::time::Duration;

/// Results of all cases of a suite, in the suite's order.
///
/// [`Display`](fmt::Display) prints one line per case, failed cases first, and the totals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
#[must_use = "a report fails no test; see `Report::assert`"]
pub struct Report {
    /// Results of the cases.
    pub cases: Vec<CaseResult>,
}

/// Result of one case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CaseResult {
    /// Name of the required behaviour.
    pub name: String,
    /// Outcome of the case.
    pub outcome: Outcome,
    /// Duration of the case.
    pub duration: Duration,
}

/// Outcome of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "readers of a report must handle every outcome"
)]
pub enum Outcome {
    /// The behaviour was observed.
    Passed,
    /// The behaviour is optional and unsupported, or not observable. Contains the reason.
    Skipped(String),
    /// The behaviour is missing. Contains the reason.
    Failed(String),
}

impl Report {
    /// Returns the failed cases.
    pub fn failures(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|case| case.is_failed())
    }

    /// Returns names and reasons of skipped cases: unsupported or not observable. Tests should compare
    /// the names with the expected ones.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.cases.iter().filter_map(|case| match &case.outcome {
            Outcome::Skipped(reason) => Some((&*case.name, &**reason)),
            _ => None,
        })
    }

    /// Fails the test unless every case passed or was skipped.
    ///
    /// # Panics
    /// If a case failed or the report is empty. The message is the whole report.
    #[track_caller]
    #[expect(clippy::panic, reason = "test harnesses detect failures by panics")]
    pub fn assert(&self) {
        if self.cases.is_empty() || self.failures().next().is_some() {
            panic!("the implementation does not conform\n{self}");
        }
    }
}

impl CaseResult {
    fn is_failed(&self) -> bool {
        matches!(self.outcome, Outcome::Failed(_))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for case in self.failures() {
            writeln!(f, "{case}")?;
        }
        for case in self.cases.iter().filter(|case| !case.is_failed()) {
            writeln!(f, "{case}")?;
        }
        let (failed, skipped) = (self.failures().count(), self.skipped().count());
        let passed = self.cases.len() - failed - skipped;
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
