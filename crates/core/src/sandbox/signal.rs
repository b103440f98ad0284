//! Signals that can be sent to a command.

/// A signal, by its Linux number.
///
/// ```
/// use cantle_core::sandbox::Signal;
///
/// assert_eq!(Signal::from_raw(15), Some(Signal::TERM));
/// assert_eq!(Signal::from_raw(65), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal(i32);

impl Signal {
    /// `SIGHUP`.
    pub const HUP: Self = Self(1);
    /// `SIGINT`.
    pub const INT: Self = Self(2);
    /// `SIGKILL`.
    pub const KILL: Self = Self(9);
    /// `SIGUSR1`.
    pub const USR1: Self = Self(10);
    /// `SIGTERM`.
    pub const TERM: Self = Self(15);

    /// Returns the signal with this number, including real-time signals; `None` outside 1 to 64.
    pub fn from_raw(number: i32) -> Option<Self> {
        (1..=64).contains(&number).then_some(Self(number))
    }

    /// Describes the signal in the words of programs in Go; `None` for a real-time signal.
    ///
    /// ```
    /// use cantle_core::sandbox::Signal;
    ///
    /// assert_eq!(Signal::TERM.description(), Some("terminated"));
    /// ```
    pub fn description(self) -> Option<&'static str> {
        let index = usize::try_from(self.0 - 1).ok()?;
        DESCRIPTIONS.get(index).copied()
    }

    /// Returns the signal with this [`description`](Self::description).
    pub fn from_description(description: &str) -> Option<Self> {
        let mut all = (1..=64).filter_map(Self::from_raw);
        all.find(|signal| signal.description() == Some(description))
    }

    /// Returns the signal's number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }
}

/// The descriptions of the signals from 1 on in Go, the language of E2B's daemon.
const DESCRIPTIONS: [&str; 31] = [
    "hangup",
    "interrupt",
    "quit",
    "illegal instruction",
    "trace/breakpoint trap",
    "aborted",
    "bus error",
    "floating point exception",
    "killed",
    "user defined signal 1",
    "segmentation fault",
    "user defined signal 2",
    "broken pipe",
    "alarm clock",
    "terminated",
    "stack fault",
    "child exited",
    "continued",
    "stopped (signal)",
    "stopped",
    "stopped (tty input)",
    "stopped (tty output)",
    "urgent I/O condition",
    "CPU time limit exceeded",
    "file size limit exceeded",
    "virtual timer expired",
    "profiling timer expired",
    "window changed",
    "I/O possible",
    "power failure",
    "bad system call",
];
