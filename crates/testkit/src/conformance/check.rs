//! Failures of cases, and the checks that create them.

use std::fmt::{self, Debug};
use std::panic::Location;
use std::time::Duration;

use cantle_core::escape::shorten;
use cantle_core::llm::LlmError;
use cantle_core::policy::InvalidPolicy;
use cantle_core::sandbox::{InvalidPath, SandboxError, SandboxErrorKind};
use cantle_core::tool::ProviderError;
use tokio::time::Instant;

/// Result of a case or a check.
pub(super) type Checked<T = ()> = Result<T, Failure>;

/// Reason and source location of a failure or skip.
#[derive(Debug)]
pub(super) struct Failure {
    reason: String,
    at: &'static Location<'static>,
    skip: bool,
}

impl Failure {
    #[track_caller]
    pub(super) fn new(reason: impl Into<String>) -> Self {
        Self {
            reason: reason.into(),
            at: Location::caller(),
            skip: false,
        }
    }

    /// Skips the case: the behaviour is optional or not observable.
    #[track_caller]
    pub(super) fn skip(reason: impl Into<String>) -> Self {
        Self {
            skip: true,
            ..Self::new(reason)
        }
    }

    /// Prepends context to the reason.
    pub(super) fn context(mut self, context: &str) -> Self {
        self.reason = format!("{context}: {}", self.reason);
        self
    }

    pub(super) fn is_skip(&self) -> bool {
        self.skip
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)?;
        if self.skip {
            return Ok(());
        }
        // The file name suffices and does not depend on the machine.
        let file = self.at.file().rsplit(['/', '\\']).next();
        write!(f, " [{}:{}]", file.unwrap_or_default(), self.at.line())
    }
}

impl From<SandboxError> for Failure {
    #[track_caller]
    fn from(error: SandboxError) -> Self {
        Self {
            skip: error.kind() == SandboxErrorKind::Unsupported,
            ..Self::new(format!("{error} ({:?})", error.kind()))
        }
    }
}

impl From<LlmError> for Failure {
    #[track_caller]
    fn from(error: LlmError) -> Self {
        Self::new(format!("{error} ({:?})", error.kind()))
    }
}

macro_rules! failure_from_display {
    ($($error:ty),+) => {
        $(impl From<$error> for Failure {
            #[track_caller]
            fn from(error: $error) -> Self {
                Self::new(error.to_string())
            }
        })+
    };
}
#[cfg(feature = "files")]
failure_from_display!(cantle_files::FilesError);
failure_from_display!(ProviderError, InvalidPath, InvalidPolicy, serde_json::Error);

/// A failure of the suite itself: a temporary file, a socket.
impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("test setup: {error}"))
    }
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err($crate::conformance::check::Failure::new(format!($($message)+)));
        }
    };
}
pub(super) use ensure;

/// Checks that `actual` equals `expected`.
#[track_caller]
#[expect(
    clippy::needless_pass_by_value,
    reason = "it reads like `assert_eq!` at a hundred places"
)]
pub(super) fn equal<T: PartialEq<U> + Debug, U: Debug>(
    what: &str,
    actual: T,
    expected: U,
) -> Checked {
    if actual == expected {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what}: expected {}, got {}",
        short(&expected),
        short(&actual)
    )))
}

/// Checks that two byte strings are equal, without printing them.
#[track_caller]
pub(super) fn same_bytes(what: &str, actual: &[u8], expected: &[u8]) -> Checked {
    if actual == expected {
        return Ok(());
    }
    let difference = actual.iter().zip(expected).position(|(a, b)| a != b);
    let at = difference.unwrap_or(actual.len().min(expected.len()));
    let (got, wanted) = (actual.len(), expected.len());
    Err(Failure::new(format!(
        "{what}: got {got} bytes, expected {wanted}; first difference at byte {at}"
    )))
}

/// Checks that a sandbox operation failed with one of `kinds`.
#[track_caller]
pub(super) fn refused<T>(
    what: &str,
    result: Result<T, SandboxError>,
    kinds: &[SandboxErrorKind],
) -> Checked {
    match result {
        Ok(_) => Err(Failure::new(format!(
            "{what} succeeded; expected it to fail with {kinds:?}"
        ))),
        Err(error) if kinds.contains(&error.kind()) => Ok(()),
        Err(error) if error.kind() == SandboxErrorKind::Unsupported => Err(error.into()),
        Err(error) => Err(Failure::new(format!(
            "{what} failed with {:?} ({error}); expected {kinds:?}",
            error.kind()
        ))),
    }
}

/// Awaits `future` with a limit below the case's deadline, so that the failure names the step.
#[track_caller]
pub(super) fn within<F: Future>(
    what: &str,
    limit: Duration,
    future: F,
) -> impl Future<Output = Checked<F::Output>> {
    let timed_out = Failure::new(format!("{what} did not come within {limit:?}"));
    async move {
        tokio::time::timeout(limit, future)
            .await
            .map_err(|_| timed_out)
    }
}

/// Checks that at most `limit` has passed since `since`.
#[track_caller]
pub(super) fn ensure_prompt(what: &str, since: Instant, limit: Duration) -> Checked {
    let took = since.elapsed();
    if took <= limit {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what} took {took:?}; the limit is {limit:?}"
    )))
}

/// Formats a value for a message, truncated.
pub(super) fn short(value: &impl Debug) -> String {
    const CHARS: usize = 400;
    shorten(&format!("{value:?}"), CHARS)
}

/// Returns bytes that don't repeat within any buffer.
pub(super) fn noise(count: usize) -> Vec<u8> {
    let numbers =
        (0..count.div_ceil(4)).flat_map(|n| (n as u32).wrapping_mul(2_654_435_761).to_le_bytes());
    numbers.take(count).collect()
}
