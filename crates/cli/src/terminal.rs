//! This process's terminal, while a command in a sandbox has a terminal of its own.
//!
//! Every key is forwarded to the command, including Ctrl-C, and so are changes of the window size.

use std::future::pending;
use std::io;

use cantle::core::sandbox::PtySize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Size of a terminal that does not report one.
const DEFAULT_SIZE: PtySize = PtySize {
    rows: 24,
    columns: 80,
};

/// The terminal in raw mode; dropping it restores the mode.
#[derive(Debug)]
pub(crate) struct Raw {
    /// The mode before, and the signal of a changed size, if standard input is a terminal.
    terminal: Option<(Termios, Signal)>,
}

impl Raw {
    /// Enters raw mode, if standard input is a terminal. Needs a runtime.
    pub(crate) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(Self { terminal: None });
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        let resized = signal(SignalKind::window_change())?;
        tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
        Ok(Self {
            terminal: Some((before, resized)),
        })
    }

    /// Returns whether standard input is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal.is_some()
    }

    /// Waits for a change of the window size. Cancel-safe.
    pub(crate) async fn resized(&mut self) -> PtySize {
        match &mut self.terminal {
            Some((_, resized)) => {
                resized.recv().await;
                size()
            }
            None => pending().await,
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some((before, _)) = &self.terminal {
            // The terminal may be gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
        }
    }
}

/// Returns the size of the terminal.
pub(crate) fn size() -> PtySize {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => PtySize {
            rows: size.ws_row,
            columns: size.ws_col,
        },
        _ => DEFAULT_SIZE,
    }
}
