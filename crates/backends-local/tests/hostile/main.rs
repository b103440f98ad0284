//! Hostile code against every wall, one by one: a table of attacks, each with what must become of it
//! in every mode that this machine has.
//!
//! An attack must be blocked, or what would block it must be reported as not enforced; anything else
//! fails. And each attack also runs with its wall taken away, where it must succeed: otherwise it
//! proves nothing. How that is judged is in `run`, the attacks in `cases`, what they aim at in
//! `fixture`.
//!
//! As root, everything runs twice: as root, and again by the same program as an ordinary user.

#![cfg(confined)]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

mod arena;
mod case;
mod cases;
mod fixture;
mod mode;
mod owner;
mod ran;
mod run;
mod traces;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::mode::Who;
use crate::run::say;

/// Says which part of the test a process is to do.
const PART: &str = "CANTLE_HOSTILE_PART";
/// Where a set-user-id program of root's is, for the part that can't make one.
const SET_UID: &str = "CANTLE_HOSTILE_SET_UID";
/// Runs only the cases that have this in their name.
const ONLY: &str = "CANTLE_HOSTILE_ONLY";

/// Whom an ordinary user's part runs as.
const ORDINARY: u32 = 65_533;

#[test]
fn the_walls_hold() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let part = std::env::var(PART).unwrap_or_default();
    if let Some(mode) = part.strip_prefix("owner:") {
        runtime.block_on(owner::open_and_wait(mode));
    }
    let who = Who::of_this_process();
    let failed = runtime.block_on(run::all(who));
    let others_failed = who == Who::Root && !as_ordinary_user();
    assert!(
        !failed && !others_failed,
        "see the lines that begin with FAILED"
    );
}

/// Runs this program once more; whether nothing failed there.
fn as_ordinary_user() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let open_to_all = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open_to_all(directory.path(), 0o755);
    let program = directory.path().join("hostile");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    open_to_all(&program, 0o755);
    // It tells with whose rights it runs.
    let set_uid = directory.path().join("id");
    fs::copy("/usr/bin/id", &set_uid).unwrap();
    open_to_all(&set_uid, 0o4755);
    let status = Command::new(program)
        .args(["--exact", "the_walls_hold", "--nocapture"])
        .current_dir("/")
        .env(PART, "user")
        .env(SET_UID, &set_uid)
        .uid(ORDINARY)
        .gid(ORDINARY)
        .status()
        .unwrap();
    say(&format!("as user {ORDINARY}: {status}"));
    status.success()
}
