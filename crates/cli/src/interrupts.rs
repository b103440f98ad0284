//! Ctrl-C and its relatives. The first one cancels what is going on, so that it ends well; the second
//! ends it at once. A signal that whoever started us ignores (`nohup`) stays ignored.

use std::future::pending;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, FailureExt as _};

/// The signals that ask for the end.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: [Option<Signal>; 3],
}

impl Interrupts {
    /// Takes the signals from the system. Needs a runtime.
    pub(crate) fn take() -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let listen = |kind: SignalKind| {
            // The first signal is number one.
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
                // The terminal is gone.
                listen(SignalKind::hangup())?,
            ],
        })
    }

    /// Cancels `token` at the first signal, returns at the second.
    pub(crate) async fn cancel(mut self, token: &CancellationToken) {
        self.next().await;
        token.cancel();
        self.next().await;
    }

    async fn next(&mut self) {
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

/// The signals that this process ignores since its start, one bit each; none where that can't be
/// told.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
