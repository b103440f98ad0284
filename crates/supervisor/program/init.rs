//! Init: the first process inside a sandbox.
//!
//! It serves the owner's orders, reaps orphans, and exits when the control socket is closed; then
//! everything in the sandbox is killed.

use crate::command::{self, CommandTable};
use crate::setup::{self, CommandProfile, Mounts};
use crate::sys::{self, Errno, Fd, NONE, PollFd};
use crate::tree::Tree;
use crate::wire::{ORDER_BYTES, Order, Reader, SetupReply};

/// Sets the sandbox up and serves until the owner is gone. `mounts` are those that the guard has made, `missing` has a
/// bit for what the guard could not do. `alone` says that every other visible process belongs to the sandbox: it has a
/// PID namespace.
pub fn run(control: Fd, steps: Reader<'static>, mounts: &Mounts, missing: u64, alone: bool) -> ! {
    sys::set_name(c"cantle-init");
    if alone {
        // Covers the setup; switching the user clears it.
        let _ = sys::die_with_parent();
    }
    let built = match setup::build(steps, mounts, missing, alone) {
        Ok(built) => built,
        Err(failed) => {
            // The owner may be gone.
            let _ = sys::send(control, &failed.encode(), &[]);
            sys::exit(1);
        }
    };
    sys::umask(0o022);
    let ready = SetupReply::Ready {
        missing: built.missing,
        landlock: built.landlock,
    };
    if sys::send(control, &ready.encode(), &built.opened).is_err() {
        sys::exit(1);
    }
    built.opened.iter().copied().for_each(sys::close);
    let served = Init::start(control, alone, &built.profile).and_then(|mut init| init.serve());
    if !alone {
        // The owner sees that the sandbox has ended before its commands do.
        sys::close(control);
        // The guard or the relay does the same, but may have been killed.
        Tree::below(sys::getpid()).kill_for_good(false);
    }
    // With a PID namespace, the kernel kills everything in it.
    sys::exit(i32::from(served.is_err()))
}

struct Init<'b> {
    control: Fd,
    /// Readable when a child has changed state.
    signals: Fd,
    /// Readable when the guard has ended; unused with a PID namespace, where that kills init.
    guard: Fd,
    alone: bool,
    profile: &'b CommandProfile,
    commands: CommandTable,
}

impl<'b> Init<'b> {
    fn start(control: Fd, alone: bool, profile: &'b CommandProfile) -> sys::Result<Self> {
        let child_ended = 1 << (sys::SIGCHLD - 1);
        // SIGPIPE: the reader of a process list may be gone.
        sys::set_signal_mask(child_ended | 1 << (sys::SIGPIPE - 1));
        Ok(Self {
            control,
            signals: sys::signal_fd(child_ended)?,
            guard: if alone {
                NONE
            } else {
                // On a kernel without pidfds, the end of the control socket must do.
                sys::pidfd_open(sys::getppid()).unwrap_or(NONE)
            },
            alone,
            profile,
            commands: CommandTable::new(),
        })
    }

    fn serve(&mut self) -> sys::Result<()> {
        loop {
            let mut polled = [self.control, self.signals, self.guard].map(PollFd::readable);
            sys::poll(&mut polled, -1)?;
            let [control, signals, guard] = polled.map(|polled| polled.is_ready());
            if signals {
                let mut information = [0; 128];
                // Once: at most one waits, and commands can send more of them as fast as they are read.
                let _ = sys::read(self.signals, &mut information);
                self.reap();
            }
            if guard {
                return Ok(());
            }
            if control {
                let mut message = [0; ORDER_BYTES];
                let received = sys::receive(self.control, &mut message)?;
                if received.length == 0 {
                    return Ok(());
                }
                if let Some(order) = Order::decode(&message) {
                    self.execute(order, &received.fds);
                }
                received.fds.iter().copied().for_each(sys::close);
            }
        }
    }

    fn execute(&mut self, order: Order, fds: &[Fd]) {
        match order {
            Order::Setup => {}
            Order::Spawn { id } => {
                let private = [self.control, self.signals, self.guard];
                command::start(&mut self.commands, id, fds, private, self.profile);
            }
            Order::Signal { id, pid, signal } => {
                if let Some(tree) = self.tree(id) {
                    tree.signal_group(pid, signal);
                }
            }
            Order::Terminate { id } => self.tree(id).iter().for_each(Tree::terminate),
            Order::Kill { id } => {
                if let Some(keeper) = self.commands.keeper(id)
                    && !Tree::below(keeper).kill_for_good(self.alone)
                {
                    // The command has not started yet, and must not; or it is about to end.
                    let _ = sys::kill(keeper, sys::SIGKILL);
                }
            }
            Order::List { id } => {
                if let (Some(tree), Some(pipe)) = (self.tree(id), fds.first()) {
                    tree.list(*pipe);
                }
            }
            Order::Count => {
                if let Some(pipe) = fds.first() {
                    let all = Tree::below(sys::getpid()).count();
                    let count = all.saturating_sub(self.commands.keepers()) as u32;
                    // Few bytes always fit in an empty pipe.
                    let _ = sys::write(*pipe, &count.to_le_bytes());
                }
            }
            Order::Connect { port, v6 } => {
                if let Some(answer) = fds.first() {
                    let connected = sys::connect_to_loopback(port, v6, false);
                    let Errno(errno) = connected.err().unwrap_or(Errno(0));
                    let socket = connected.ok();
                    // Fails if the owner is gone.
                    let _ = sys::send(*answer, &errno.to_le_bytes(), socket.as_slice());
                    socket.into_iter().for_each(sys::close);
                }
            }
        }
    }

    /// Returns the processes of a command that has any.
    fn tree(&self, id: u32) -> Option<Tree<'static>> {
        self.commands.keeper(id).map(Tree::below)
    }

    /// Reaps children that have ended.
    fn reap(&mut self) {
        while let Ok(Some(ended)) = sys::wait(false, true) {
            if !ended.is_over() {
                // A command may have stopped its keeper, or an orphan, which may stay stopped.
                if self.commands.includes(ended.pid) {
                    ended.continue_if_stopped();
                }
                continue;
            }
            let was_keeper = self.commands.forget(ended.pid);
            // A process of the sandbox has killed the keeper; init inherits its descendants.
            if was_keeper && ended.status != 0 {
                Tree::below(sys::getpid())
                    .without(&|pid| self.commands.includes(pid))
                    .kill_for_good(self.alone);
            }
        }
    }
}
