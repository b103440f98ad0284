//! The supervisor: the process that runs inside every sandbox.
//!
//! A program without a C library, heap or threads, started by the sandbox's owner with one socket as its
//! stdin. Three kinds of process run it, each forked from the previous one:
//!
//! - the *guard* (`guard`), outside the sandbox's namespaces: it creates them and waits for the end;
//! - *init* (`init`): sets up the sandbox (`setup`), then serves orders until the socket closes;
//! - a *keeper* per command (`command`): starts it, adopts its orphans and reports its end. A command's
//!   processes are the descendants of its keeper (`tree`), whatever they do to their session, parents
//!   or environment.
//!
//! Confinement is set up once, in init, and inherited: a command costs two forks and an exec.
//!
//! In a container, which confines already, the *relay* (`relay`) replaces the guard and the owner's end of
//! the pipes: it multiplexes the commands' output over its stdin and stdout (`frames`). File operations
//! are commands without a program (`files`), performed as the commands' user.
#![no_std]
#![no_main]

mod command;
mod files;
#[expect(dead_code, reason = "each side uses one half")]
mod frames;
mod guard;
mod image;
mod init;
mod relay;
mod runtime;
mod setup;
mod sys;
mod tasks;
mod text;
mod tree;
#[expect(dead_code, reason = "each side uses one half")]
mod wire;
