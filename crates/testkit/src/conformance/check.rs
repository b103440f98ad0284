//! How a case says what is wrong: its failure, and the checks that make one.

use std::fmt::{self, Debug};
use std::panic::Location;
use std::time::Duration;

use cantle_core::llm::LlmError;
use cantle_core::sandbox::{InvalidPath, SandboxError, SandboxErrorKind};
use cantle_core::tool::ProviderError;
use tokio::time::Instant;

/// What a case returns.
pub(super) type Checked<T = ()> = Result<T, Failure>;

/// Why a case did not pass, and where in it.
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

    /// The behaviour need not be there, or can't be seen from here.
    #[track_caller]
    pub(super) fn skip(reason: impl Into<String>) -> Self {
        Self {
            skip: true,
            ..Self::new(reason)
        }
    }

    /// The same, with where in the case it came to it.
    pub(super) fn within(mut self, circumstances: &str) -> Self {
        self.reason = format!("{circumstances}: {}", self.reason);
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
        // The last part of the path is enough to find the check, and the same on every machine.
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

impl From<ProviderError> for Failure {
    #[track_caller]
    fn from(error: ProviderError) -> Self {
        Self::new(error.to_string())
    }
}

impl From<InvalidPath> for Failure {
    #[track_caller]
    fn from(error: InvalidPath) -> Self {
        Self::new(error.to_string())
    }
}

/// The suite's own side failed: a temporary file, a socket.
impl From<std::io::Error> for Failure {
    #[track_caller]
    fn from(error: std::io::Error) -> Self {
        Self::new(format!("on the suite's own side: {error}"))
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

/// `actual` is `expected`.
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

/// The same for data too long to be printed.
#[track_caller]
pub(super) fn same_bytes(what: &str, actual: &[u8], expected: &[u8]) -> Checked {
    if actual == expected {
        return Ok(());
    }
    let differ = actual.iter().zip(expected).position(|(a, b)| a != b);
    let at = differ.unwrap_or(actual.len().min(expected.len()));
    let (got, wanted) = (actual.len(), expected.len());
    Err(Failure::new(format!(
        "{what}: got {got} bytes where {wanted} were expected; they differ from byte {at} on"
    )))
}

/// An operation of a sandbox that must fail with one of these kinds.
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

/// Waits for something with a deadline of its own, which lies before the case's, so that the
/// failure says what did not come.
#[track_caller]
pub(super) fn within<F: Future>(
    what: &str,
    limit: Duration,
    future: F,
) -> impl Future<Output = Checked<F::Output>> {
    let late = Failure::new(format!("{what} did not come within {limit:?}"));
    async move { tokio::time::timeout(limit, future).await.map_err(|_| late) }
}

/// Something that began at `since` ended in time.
#[track_caller]
pub(super) fn prompt(what: &str, since: Instant, limit: Duration) -> Checked {
    let took = since.elapsed();
    if took <= limit {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{what} took {took:?}; at most {limit:?} were expected"
    )))
}

/// A value for a message, cut where it is long.
pub(super) fn short(value: &impl Debug) -> String {
    const CHARS: usize = 400;
    let text = format!("{value:?}");
    match text.char_indices().nth(CHARS) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None => text,
    }
}
