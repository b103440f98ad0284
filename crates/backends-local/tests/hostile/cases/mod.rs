//! The table, by what is attacked.

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
use crate::ran::Ran;

/// All cases.
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

/// The command has seen the secret.
fn shows_secret(fixture: &Fixture, ran: &Ran) -> bool {
    ran.stdout.contains(&fixture.secret)
}

/// The command says so itself, where it can't be seen from outside.
fn says_so(_: &Fixture, ran: &Ran) -> bool {
    ran.stdout.lines().any(|line| line.starts_with("GOT"))
}

/// Something is different outside.
fn changes_outside(fixture: &Fixture, _: &Ran) -> bool {
    fixture.change().is_some()
}
