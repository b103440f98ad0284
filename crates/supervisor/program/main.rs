//! The supervisor: the first process of a sandbox.
//!
//! It is a program without a C library, a heap or threads, some tens of kilobytes in memory, and is
//! started by our process with one socket as its input. Three kinds of process run it, each forked
//! from the one before:
//!
//! - the *guard* (`guard`), outside the sandbox: makes the namespaces and waits for the end;
//! - the *init* (`init`): builds the walls (`setup`), then takes orders until the socket closes;
//! - a *keeper* for each command (`command`): starts it, adopts what the command leaves behind, and
//!   reports its end. What belongs to a command is what descends from its keeper (`tree`): nothing
//!   that a program does to its session, its parents or its environment changes that.
//!
//! The walls are built once, around init; a command inherits them and costs two forks and an exec.
//!
//! In a container the walls are there already, and our process is not near: there the *relay*
//! (`relay`) takes the guard's place and our process's. It makes the pipes of commands and says over
//! its input and output what goes through them (`frames`); init and the keepers are the same. Files
//! are read and written by commands that execute nothing (`files`), as the user who runs commands.
#![no_std]
#![no_main]

mod command;
mod files;
#[expect(dead_code, reason = "each side uses its half")]
mod frames;
mod guard;
mod init;
mod relay;
mod runtime;
mod setup;
mod sys;
#[expect(dead_code, reason = "each side uses its half")]
mod tasks;
mod text;
mod tree;
#[expect(dead_code, reason = "each side uses its half")]
mod wire;
