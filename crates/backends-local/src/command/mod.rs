//! Running commands: a transport of the command driver over pipes, terminals and the supervisor's
//! sockets (`process::supervised`), or over process groups on systems without a supervisor (`process::grouped`).

mod channels;
mod output;
mod process;
mod start;
mod stdin;
mod transport;

pub(crate) use self::start::start;
