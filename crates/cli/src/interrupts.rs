//! SIGINT, SIGTERM and SIGHUP. The first one cancels the command, which then ends in order; the second one
//! exits immediately. Signals that the parent process ignores (`nohup`) stay ignored.

use std::future::pending;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, FailureExt as _};

/// Listeners for the signals that end the program.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: [Option<Signal>; 3],
}

impl Interrupts {
    /// Installs the listeners. Needs a runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let listen = |kind: SignalKind| {
            // Bit 0 is signal 1.
            if ignored >> (kind.as_raw_value() - 1) & 1 == 1 {
                return Ok(None);
            }
            let signal = signal(kind).context("failed to listen for signals");
            signal.map(Some).internal()
        };
        Ok(Self {
            signals: [
                listen(SignalKind::interrupt())?,
                listen(SignalKind::terminate())?,
                listen(SignalKind::hangup())?,
            ],
        })
    }

    /// Cancels `token` at the first signal, and returns at the second.
    pub(crate) async fn cancel_then_wait(&mut self, token: &CancellationToken) {
        self.next().await;
        token.cancel();
        self.next().await;
    }

    /// Waits for a signal. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        let [interrupt, terminate, hangup] = &mut self.signals;
        tokio::select! {
            () = received(interrupt) => {}
            () = received(terminate) => {}
            () = received(hangup) => {}
        }
    }
}

async fn received(signal: &mut Option<Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => pending().await,
    }
}

/// Returns the signals that this process ignores, one bit each; none if that is unknown.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
