//! Our own terminal, while a command in a sandbox has one that looks like it: every key goes to the
//! command, Ctrl-C too, and the command is told when the window changes.

use std::future::pending;
use std::io;

use cantle::core::sandbox::PtySize;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// What a terminal has that says nothing of its size.
const USUAL: PtySize = PtySize {
    rows: 24,
    columns: 80,
};

/// Our terminal, passing keys on as they are. Dropped, it is as it was.
#[derive(Debug)]
pub(crate) struct Raw {
    before: Option<Termios>,
    resized: Option<Signal>,
}

impl Raw {
    /// Takes over standard input, where that is a terminal. Needs a runtime.
    pub(crate) fn enter() -> io::Result<Self> {
        let stdin = io::stdin();
        if !isatty(&stdin) {
            return Ok(Self {
                before: None,
                resized: None,
            });
        }
        let before = tcgetattr(&stdin)?;
        let mut raw = before.clone();
        raw.make_raw();
        let resized = signal(SignalKind::window_change())?;
        tcsetattr(&stdin, OptionalActions::Drain, &raw)?;
        Ok(Self {
            before: Some(before),
            resized: Some(resized),
        })
    }

    /// Whether there is a person at the keys.
    pub(crate) fn is_terminal(&self) -> bool {
        self.before.is_some()
    }

    /// Waits until the window has another size. Cancel-safe.
    pub(crate) async fn resized(&mut self) -> PtySize {
        match &mut self.resized {
            Some(resized) => {
                resized.recv().await;
                size()
            }
            None => pending().await,
        }
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            // The terminal may be gone.
            let _ = tcsetattr(io::stdin(), OptionalActions::Drain, before);
        }
    }
}

/// The size of our terminal.
pub(crate) fn size() -> PtySize {
    match tcgetwinsize(io::stdin()) {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => PtySize {
            rows: size.ws_row,
            columns: size.ws_col,
        },
        _ => USUAL,
    }
}
