//! Runs the examples with recorded models and checks their output.
//!
//! `recordings/analyst.jsonl` contains every request of its example, and a request that differs fails. After
//! an intended change (a prompt, a tool's description), `CANTLE_RECORD_EXAMPLES=1` records it again with the
//! answers in `recordings/analyst.turns.jsonl`.

#![expect(
    clippy::unwrap_used,
    reason = "clippy exempts test functions only, not their helpers"
)]

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// Returns the command of an example, which Cargo has built next to this test.
fn example(name: &str, directory: &TempDir) -> Command {
    let test = env::current_exe().unwrap();
    let target = test.parent().and_then(Path::parent).unwrap();
    let mut command = Command::new(target.join("examples").join(name));
    command
        .current_dir(directory.path())
        .env_clear()
        .env("PATH", env::var_os("PATH").unwrap())
        .env("HOME", directory.path());
    command
}

/// Runs an example successfully, and returns its output.
fn output_of(command: &mut Command) -> String {
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
fn analyst_sends_the_recorded_requests() {
    let directory = tempfile::tempdir().unwrap();
    let (turns, calls) = (
        recordings().join("analyst.turns.jsonl"),
        recordings().join("analyst.jsonl"),
    );
    let mut analyst = example("analyst", &directory);
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
    assert_eq!(output_of(&mut analyst), expected);
    let summary = std::fs::read_to_string(directory.path().join("out/summary.txt"));
    assert_eq!(summary.unwrap(), "Bergen: 12\nOslo: 30\n");
}

#[test]
fn analyst_reports_a_different_request() {
    let directory = tempfile::tempdir().unwrap();
    let mut analyst = example("analyst", &directory);
    analyst
        .arg(recordings().join("data"))
        .arg("How many did each town sell?")
        .env("ANALYST_REPLAY", recordings().join("analyst.jsonl"));
    let output = output_of(&mut analyst);
    assert!(
        output.contains("message 2 (user) differs at `content`")
            && output.contains("now:      How many did each town sell?"),
        "{output}"
    );
}

#[test]
fn ask_program_answers_questions() {
    let directory = tempfile::tempdir().unwrap();
    let output = output_of(&mut example("ask_program", &directory));
    assert!(
        output.contains(" asks: Which unit shall I use?\n"),
        "{output}"
    );
    let finish = "{\"reason\":\"29032 feet\"}\n";
    assert!(output.ends_with(finish), "{output}");
}

#[test]
fn own_tool_is_called() {
    let directory = tempfile::tempdir().unwrap();
    let output = output_of(&mut example("own_tool", &directory));
    assert_eq!(output, "{\"difference\":425770,\"larger\":\"Oslo\"}\n");
}
