//! Stopping everything that belongs.

use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Process, Tree};

/// The pause between two looks at processes that are on their way out.
const PAUSE: Duration = Duration::from_millis(1);

impl Tree {
    /// Asks everything to end, with TERM. Blocks for as long as it takes to read `/proc`.
    pub(crate) fn terminate(&self) {
        let members = self.members();
        for leader in &self.leaders {
            leader.signal_group(Signal::TERM);
            // What is stopped would hear of it only when it is continued.
            leader.signal_group(Signal::CONT);
        }
        for member in members {
            if !self
                .leaders
                .iter()
                .any(|leader| leader.owns_group(member.group))
            {
                // One that we may not signal stays, and is reported by `kill`.
                let _ = member.signal(Signal::TERM);
                let _ = member.signal(Signal::CONT);
            }
        }
    }

    /// Kills everything, and blocks until it has ended, at the longest until `deadline`. Returns
    /// what is left.
    ///
    /// Killing one by one loses against a fork bomb: each child is born before its parent dies. So
    /// everything is stopped first, again and again until nothing new turns up; then nothing moves
    /// any more and can be killed at leisure.
    pub(crate) fn kill(&self, deadline: Instant) -> Vec<Process> {
        for leader in &self.leaders {
            leader.signal_group(Signal::STOP);
        }
        let mut found: Vec<Process> = Vec::new();
        loop {
            let stop = |member: &Process| {
                // One that we may not stop we may not kill either: it is what is left in the end.
                let _ = member.signal(Signal::STOP);
            };
            let mut fresh = self.each_member(stop);
            fresh.retain(|member| !found.iter().any(|known| known.is(member)));
            if fresh.is_empty() {
                break;
            }
            found.append(&mut fresh);
            if Instant::now() > deadline {
                break;
            }
        }
        for leader in &self.leaders {
            leader.signal_group(Signal::KILL);
        }
        let mut left = Vec::new();
        while !found.is_empty() {
            let (mut dying, immune): (Vec<_>, Vec<_>) = found
                .into_iter()
                .partition(|process| process.signal(Signal::KILL).is_ok());
            left.extend(immune);
            loop {
                dying.retain(Process::is_alive);
                if dying.is_empty() {
                    break;
                }
                if Instant::now() > deadline {
                    left.append(&mut dying);
                    return left;
                }
                sleep(PAUSE);
            }
            // One that was just being replaced by another program may not have been recognised.
            found = self.members();
            found.retain(|member| !left.iter().any(|immune| immune.is(member)));
        }
        left
    }
}
