//! Init: the first process inside a sandbox.
//!
//! It does what its owner asks for over the control socket, reaps whom nobody else does, and ends
//! when the socket is closed: then everything in the sandbox is killed.

use crate::command::{self, Commands};
use crate::setup::{self, Limits};
use crate::sys::{self, Fd, PollFd};
use crate::tree::{Keepers as _, Tree};
use crate::wire::{ORDER_BYTES, Order, Reader, Ready};

/// Builds the walls, then serves until the owner is gone. `alone` says whether every other process
/// that can be seen belongs to the sandbox.
pub fn run(control: Fd, steps: Reader<'static>, groups: &[Fd], alone: bool) -> ! {
    sys::set_name(c"cantle-init");
    if alone {
        // Also while the walls are built; another user forgets it.
        let _ = sys::die_with_parent();
    }
    let built = match setup::build(steps, groups, alone) {
        Ok(built) => built,
        Err(failed) => {
            // Where the owner is gone nobody needs to know.
            let _ = sys::send(control, &failed.encode(), &[]);
            sys::exit(1);
        }
    };
    sys::umask(0o022);
    let ready = Ready::Ready {
        missing: built.missing,
        landlock: built.landlock,
    };
    let opened = built.opened();
    if sys::send(control, &ready.encode(), opened).is_err() {
        sys::exit(1);
    }
    opened.iter().copied().for_each(sys::close);
    let served = Init::start(control, alone, &built.limits).and_then(|mut init| init.serve());
    if !alone {
        // Whoever started us does the same, but may have been killed.
        Tree::below(sys::getpid()).kill_for_good(false);
    }
    // With a process namespace of our own, the kernel kills all that is in it.
    sys::exit(i32::from(served.is_err()))
}

struct Init<'b> {
    control: Fd,
    /// Readable when a child has ended.
    signals: Fd,
    /// Readable when the guard has ended; with a process namespace that is our end, too.
    guard: Fd,
    alone: bool,
    limits: &'b Limits,
    commands: Commands,
}

impl<'b> Init<'b> {
    fn start(control: Fd, alone: bool, limits: &'b Limits) -> sys::Result<Self> {
        let child_ended = 1 << (sys::SIGCHLD - 1);
        // A list that nobody reads any more is no reason to end.
        sys::set_signal_mask(child_ended | 1 << (sys::SIGPIPE - 1));
        Ok(Self {
            control,
            signals: sys::signal_fd(child_ended)?,
            guard: if alone {
                Fd(-1)
            } else {
                // Where a kernel has no such thing, the end of the control socket must do.
                sys::pidfd_open(sys::getppid()).unwrap_or(Fd(-1))
            },
            alone,
            limits,
            commands: Commands::new(),
        })
    }

    fn serve(&mut self) -> sys::Result<()> {
        loop {
            let mut polled = [self.control, self.signals, self.guard].map(PollFd::readable);
            sys::poll(&mut polled, -1)?;
            let [control, signals, guard] = polled.map(|polled| polled.is_ready());
            if signals {
                let mut information = [0; 128];
                while sys::read(self.signals, &mut information).is_ok() {}
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
                let fds = &received.fds[..received.fd_count];
                if let Some(order) = Order::decode(&message) {
                    self.obey(order, fds);
                }
                fds.iter().copied().for_each(sys::close);
            }
        }
    }

    fn obey(&mut self, order: Order, fds: &[Fd]) {
        match order {
            Order::Setup => {}
            Order::Spawn { id } => {
                let own = [self.control, self.signals, self.guard];
                command::start(&mut self.commands, id, fds, own, self.limits);
            }
            Order::Signal { id, pid, signal } => {
                if let Some(keeper) = self.commands.keeper(id) {
                    Tree::below(keeper).signal_group(pid, signal);
                }
            }
            Order::Terminate { id } => {
                if let Some(keeper) = self.commands.keeper(id) {
                    Tree::below(keeper).terminate();
                }
            }
            Order::Kill { id } => {
                if let Some(keeper) = self.commands.keeper(id) {
                    let found = Tree::below(keeper).kill_for_good(self.alone);
                    if !found {
                        // It has not started the command yet, and must not; or it is about to end.
                        let _ = sys::kill(keeper, sys::SIGKILL);
                    }
                }
            }
            Order::List { id } => {
                if let (Some(keeper), Some(pipe)) = (self.commands.keeper(id), fds.first()) {
                    Tree::below(keeper).list(*pipe);
                }
            }
        }
    }

    /// Lets go of children that have ended.
    fn reap(&mut self) {
        while let Ok(Some(ended)) = sys::wait(false, true) {
            if !ended.is_over() {
                // A keeper, stopped by a command; or an orphan of ours, which may be.
                if self.commands.includes(ended.pid) {
                    ended.go_on_if_stopped();
                }
                continue;
            }
            let was_keeper = self.commands.forget(ended.pid);
            // Somebody in the sandbox has killed it. What it kept comes to us.
            if was_keeper && ended.status != 0 {
                Tree::below(sys::getpid())
                    .without(&self.commands)
                    .kill_for_good(self.alone);
            }
        }
    }
}
