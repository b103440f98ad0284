//! The command driver: owns a running command from its start to its [`Exit`], for every backend.
//!
//! A backend knows how to start a process and how to signal it. Everything else about a command is the
//! same everywhere: time limits, cancellation, background processes, output pacing, spilling, and the
//! mapping of what happened to an [`Exit`]. This crate implements that part once, over [`Transport`].
//!
//! # The life of a command
//!
//! 1. **Start.** [`CommandDriver::new`] starts the clock. The backend resolves what to execute with
//!    [`Launch`], starts the process by its own means and, if that succeeded, passes the connection to it
//!    ([`StartedCommand`]) to [`CommandDriver::drive`]. While the backend waits for the process to
//!    start, an [`OnDrop`] kills it if the start is abandoned.
//! 2. **Running.** `drive` spawns the command's task and returns its handle, a [`DrivenProcess`]. The
//!    task polls four futures: the output of each channel, the input that came with the request, and the
//!    command's life.
//!    - *Output* is read whether or not anyone wants it. A reader sets the pace through a short
//!      channel; without a reader, bytes are counted and discarded. A command therefore blocks on a
//!      slow reader but never on a missing one. Bytes are also passed to a spill file if the request has
//!      one. Nothing is copied here: a chunk is the [`Bytes`] that the transport returned.
//!    - *Life* is a state machine without a clock or I/O (`lifecycle`). The task feeds it the
//!      transport's [`Report`]s, cancellation, the deadline and exceeded limits, and performs the
//!      action that it returns: send TERM, send KILL, list what is left.
//! 3. **End.** The state machine ends when nothing of the command is left, when its first process has
//!    ended and background processes may stay, or when killed processes do not die in time. This is the
//!    only place where a command can end. It is published once, in a watch channel (`Phase`): input
//!    fails from now on, and output is drained. Output that was written before the end is always
//!    delivered; output of background processes for half a second at most.
//! 4. **Exit.** When the output is drained, or after a delay if the reader is slow, the [`Exit`] is
//!    published and [`wait`](cantle_core::sandbox::Process::wait) returns.
//!
//! Dropping the handle of a running command kills the command. The task itself lives as long as the
//! handle or the output stream.
//!
//! # Writing a backend
//!
//! Implement [`Transport`] for a struct that identifies one command, [`Reports`], [`OutputChannel`] and
//! [`InputChannel`] for its connection. A backend whose orders take time (an HTTP call, say) runs a task
//! of its own that performs them, and uses an unbounded channel of [`Report`]s and bounded channels of
//! bytes, for which the traits are implemented.
//!
//! [`Bytes`]: bytes::Bytes
//! [`Exit`]: cantle_core::sandbox::Exit
//! [`Process`]: cantle_core::sandbox::Process
//! [`Process::wait`]: cantle_core::sandbox::Process::wait

#![forbid(unsafe_code)]

mod counters;
mod driver;
#[cfg(unix)]
mod launch;
mod lifecycle;
mod off_runtime;
mod output;
mod phase;
mod process;
mod spill;
mod transport;

pub use self::driver::CommandDriver;
#[cfg(unix)]
pub use self::launch::{Launch, c_string, check_environment, os_path};
pub use self::off_runtime::{OnDrop, run_off_runtime};
pub use self::process::DrivenProcess;
#[cfg(unix)]
pub use self::transport::exit_status;
pub use self::transport::{
    InputChannel, OutputChannel, Report, Reports, StartedCommand, Transport, explain_oom_kill,
    kind_of_message, parse_process_list, parse_stat,
};
