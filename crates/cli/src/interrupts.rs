//! SIGINT, SIGTERM and SIGHUP. The first one cancels the command, which then ends in order; the second one
//! exits immediately. Signals that the parent process ignores (`nohup`) stay ignored.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, FailureExt as _};

/// Listeners for the signals that end the program.
#[derive(Debug)]
pub(crate) struct Interrupts {
    signals: Vec<Signal>,
}

impl Interrupts {
    /// Installs the listeners. Needs a runtime.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let ignored = ignored_signals();
        let mut kinds = vec![
            SignalKind::interrupt(),
            SignalKind::terminate(),
            SignalKind::hangup(),
        ];
        // Bit 0 is signal 1.
        kinds.retain(|kind| ignored >> (kind.as_raw_value() - 1) & 1 == 0);
        let signals = kinds.into_iter().map(signal).collect::<io::Result<_>>();
        let signals = signals.context("failed to listen for signals").internal()?;
        Ok(Self { signals })
    }

    /// Cancels `token` at the first signal, and returns at the second.
    pub(crate) async fn cancel_then_wait(&mut self, token: &CancellationToken) {
        self.next().await;
        token.cancel();
        self.next().await;
    }

    /// Waits for a signal. Cancel-safe.
    pub(crate) async fn next(&mut self) {
        poll_fn(|cx| {
            let mut signals = self.signals.iter_mut();
            match signals.any(|signal| signal.poll_recv(cx).is_ready()) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })
        .await;
    }
}

/// Returns the signals that this process ignores, one bit each; none if that is unknown.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default()
}
