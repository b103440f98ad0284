//! The tools against scripted servers on this machine.

mod fetch;
mod search;
mod server;
