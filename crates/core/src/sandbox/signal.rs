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

    /// Returns the signal's number.
    pub const fn as_raw(self) -> i32 {
        self.0
    }
}
