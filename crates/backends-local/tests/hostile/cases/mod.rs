//! The table of attacks, by target.

mod api;
mod control;
mod files;
mod host_api;
mod kernel;
mod network;
mod processes;
mod programs;
mod resources;
mod shared;

use crate::case::Case;
use crate::fixture::Fixture;
use crate::result::CommandResult;

/// Returns all cases.
pub(crate) fn all() -> Vec<Case> {
    [
        files::cases(),
        host_api::cases(),
        network::cases(),
        processes::cases(),
        control::cases(),
        shared::cases(),
        programs::cases(),
        kernel::cases(),
        resources::cases(),
        api::cases(),
    ]
    .concat()
}

/// The command has printed the secret.
fn shows_secret(fixture: &Fixture, ran: &CommandResult) -> bool {
    ran.stdout.contains(&fixture.secret)
}

/// The command reports success, which is invisible from outside.
fn reports_success(_: &Fixture, ran: &CommandResult) -> bool {
    ran.stdout.lines().any(|line| line.starts_with("GOT"))
}

/// A file outside has changed.
fn changes_outside(fixture: &Fixture, _: &CommandResult) -> bool {
    fixture.change().is_some()
}
