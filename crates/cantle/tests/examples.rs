//! The examples, each with its recorded model: they run without a network, and say what they should.
//!
//! `recordings/analyst.jsonl` has every request of its example, and what differs from that fails. Where a
//! change is meant (a prompt, a tool's description), `CANTLE_RECORD_EXAMPLES=1` makes it anew from the
//! answers in `recordings/analyst.turns.jsonl`.

#![expect(
    clippy::unwrap_used,
    reason = "the lints know a test by its attribute, and what tests share has none"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// An example, which Cargo has built beside this test.
fn example(name: &str, here: &TempDir) -> Command {
    let test = env::current_exe().unwrap();
    let directory = test.parent().and_then(Path::parent).unwrap();
    let mut command = Command::new(directory.join("examples").join(name));
    command
        .current_dir(here.path())
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap())
        .env("HOME", here.path());
    command
}

/// What it says, where it succeeds.
fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    text
}

fn recordings() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

#[test]
fn the_analyst_asks_what_was_recorded() {
    let here = tempfile::tempdir().unwrap();
    let (turns, calls) = (
        recordings().join("analyst.turns.jsonl"),
        recordings().join("analyst.jsonl"),
    );
    let mut analyst = example("analyst", &here);
    analyst
        .arg(recordings().join("data"))
        .arg("How many did each city sell?");
    if env::var_os("CANTLE_RECORD_EXAMPLES").is_some() {
        analyst
            .env("ANALYST_REPLAY", turns)
            .env("ANALYST_RECORD", calls);
    } else {
        analyst.env("ANALYST_REPLAY", calls);
    }
    let result = r#"{"paths":["summary.txt"],"reason":"Bergen sold 12, Oslo 30."}"#;
    let expected = format!("{result}\nout/summary.txt\n6150 tokens\n");
    assert_eq!(said(&mut analyst), expected);
    let summary = std::fs::read_to_string(here.path().join("out/summary.txt"));
    assert_eq!(summary.unwrap(), "Bergen: 12\nOslo: 30\n");
}

#[test]
fn the_analyst_says_where_another_task_differs() {
    let here = tempfile::tempdir().unwrap();
    let mut analyst = example("analyst", &here);
    analyst
        .arg(recordings().join("data"))
        .arg("How many did each town sell?")
        .env("ANALYST_REPLAY", recordings().join("analyst.jsonl"));
    let said = said(&mut analyst);
    assert!(
        said.contains("message 2 (user) differs at `content`")
            && said.contains("now:      How many did each town sell?"),
        "{said}"
    );
}

#[test]
fn the_program_that_is_asked_answers() {
    let here = tempfile::tempdir().unwrap();
    let said = said(&mut example("ask_program", &here));
    assert!(said.contains(" asks: Which unit shall I use?\n"), "{said}");
    let finish = "{\"reason\":\"29032 feet\"}\n";
    assert!(said.ends_with(finish), "{said}");
}

#[test]
fn the_tool_of_ones_own_is_called() {
    let here = tempfile::tempdir().unwrap();
    let said = said(&mut example("own_tool", &here));
    assert_eq!(said, "{\"difference\":425770,\"larger\":\"Oslo\"}\n");
}
