//! Running a command: started in `start`, looked after by a task of its own in `drive`, used
//! through the handle in `process`.

mod channels;
mod drive;
mod output;
mod process;
mod reports;
mod source;
mod spill;
mod start;
mod stdin;

use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_supervisor::wire::Order;
use rustix::pipe::{PipeFlags, pipe_with};
use tokio::io::AsyncReadExt as _;
use tokio::net::unix::pipe;
use tokio::time::timeout;

pub(crate) use self::output::discard;
pub(crate) use self::source::Source;
pub(crate) use self::start::start;
use crate::sandbox::Shared;

/// How long to wait for the list of a command's processes.
const LIST_DEADLINE: Duration = Duration::from_secs(1);

/// One command and the processes that belong to it.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) shared: Arc<Shared>,
    /// Names it among the sandbox's commands.
    id: u32,
    /// It has ended, and what it left is killed or may stay.
    settled: AtomicBool,
}

impl Command {
    /// Has its processes killed. Blocks where other orders stand in the way, which is a matter of
    /// milliseconds.
    fn kill(&self) {
        // Where it fails the sandbox is gone, and they with it.
        let _ = self.shared.order_surely(Order::Kill { id: self.id });
    }

    /// What of it is running, as [`Order::List`] writes it; `None` where that isn't told.
    pub(crate) async fn list(&self) -> Option<Vec<u8>> {
        let (ours, theirs) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK).ok()?;
        let mut ours = pipe::Receiver::from_owned_fd(ours).ok()?;
        let order = Order::List { id: self.id };
        self.shared.order(order, &[theirs.as_fd()]).ok()?;
        drop(theirs);
        let mut listed = Vec::new();
        timeout(LIST_DEADLINE, ours.read_to_end(&mut listed))
            .await
            .ok()?
            .ok()?;
        Some(listed)
    }

    /// Nothing remains to be done for it.
    fn settle(&self) {
        self.settled.store(true, Ordering::Release);
    }

    /// Has everything killed without waiting for its end, unless the command is settled.
    fn abandon(&self) {
        if !self.settled.swap(true, Ordering::AcqRel) {
            self.kill();
        }
    }
}

/// Kills a command that is not looked after yet where its start is given up.
#[derive(Debug)]
struct Starting(Option<Arc<Command>>);

impl Starting {
    /// It has been started.
    fn finish(mut self) -> Option<Arc<Command>> {
        self.0.take()
    }
}

impl Drop for Starting {
    fn drop(&mut self) {
        if let Some(command) = &self.0 {
            command.abandon();
        }
    }
}
