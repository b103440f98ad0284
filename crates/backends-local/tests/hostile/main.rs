//! Hostile code against each mechanism: a table of attacks with the required outcome in each mode that
//! this machine supports.
//!
//! An attack must be blocked, or the report must show that it is not. As a negative control, each attack
//! also runs without the mechanisms against it and must succeed; otherwise it proves nothing. `run`
//! judges the outcomes, `cases` contains the attacks, `fixture` their targets.
//!
//!
//! As root, everything runs twice: as root, and as an ordinary user.

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
mod result;
mod run;
mod traces;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::mode::TestUser;
use crate::run::say;

/// Selects the part of the test that a process performs.
const PART: &str = "CANTLE_HOSTILE_PART";
/// Path of root's set-user-id program, for the part that can't create one.
const SET_UID: &str = "CANTLE_HOSTILE_SET_UID";
/// Runs only the cases whose name contains this.
const ONLY: &str = "CANTLE_HOSTILE_ONLY";

/// The user of the ordinary user's part.
const ORDINARY: u32 = 65_533;

#[test]
fn confinement_holds() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let part = std::env::var(PART).unwrap_or_default();
    if let Some(mode) = part.strip_prefix("owner:") {
        runtime.block_on(owner::open_and_wait(mode));
    }
    let who = TestUser::of_this_process();
    if !cantle_testkit::lane::is_full() {
        say("REDUCED: modes in which a single mechanism is left out");
    }
    let failed = runtime.block_on(run::all(who));
    let others_failed = who == TestUser::Root && !as_ordinary_user();
    assert!(
        !failed && !others_failed,
        "see the lines that begin with FAILED"
    );
}

/// Runs this program again; returns whether it succeeded.
fn as_ordinary_user() -> bool {
    let directory = tempfile::tempdir().unwrap();
    let open_to_all = |path: &std::path::Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    open_to_all(directory.path(), 0o755);
    let program = directory.path().join("hostile");
    fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    open_to_all(&program, 0o755);
    // It prints its effective user.
    let set_uid = directory.path().join("id");
    fs::copy("/usr/bin/id", &set_uid).unwrap();
    open_to_all(&set_uid, 0o4755);
    let status = Command::new(program)
        .args(["--exact", "confinement_holds", "--nocapture"])
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
