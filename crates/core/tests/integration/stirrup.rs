//! The real Stirrup 0.2 opens our histories, and we open its own. Where a Python with it is named.

use std::path::{Path, PathBuf};
use std::process::Command;

use cantle_core::message::{Message, history};

/// Runs the script that speaks for Stirrup; `None` where no Python with Stirrup is named.
#[expect(clippy::print_stderr, reason = "a skipped test says so")]
fn stirrup(arguments: &[&str]) -> Option<Vec<u8>> {
    let Some(python) = std::env::var_os("CANTLE_TEST_STIRRUP_PYTHON") else {
        let required = std::env::var("CANTLE_REQUIRE").unwrap_or_default();
        let required = required
            .split(',')
            .any(|name| name == "stirrup" || name == "all");
        assert!(
            !required,
            "CANTLE_TEST_STIRRUP_PYTHON is not set; run `cargo xtask test`"
        );
        eprintln!("SKIPPED: CANTLE_TEST_STIRRUP_PYTHON names no Python with Stirrup 0.2");
        return None;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../xtask/peers/stirrup_history.py");
    let output = Command::new(python)
        .arg(script)
        .args(arguments)
        .output()
        .expect("python runs");
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{errors}");
    Some(output.stdout)
}

fn load(path: &Path) -> Vec<Message> {
    let json = std::fs::read(path).expect("the history can be read");
    history::from_json(&json).expect("the history loads")
}

#[test]
fn stirrup_histories_can_be_loaded() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let dumped = directory.path().join("history.json");
    if stirrup(&["dump", &dumped.to_string_lossy()]).is_none() {
        return;
    }
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/stirrup/history-v0.2.json"
    );
    assert_eq!(load(&dumped).len(), load(&PathBuf::from(fixture)).len());
}

#[test]
fn stirrup_can_load_histories() {
    let fixture = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/fixtures/stirrup/history-v0.2.json"
    );
    let messages = load(&PathBuf::from(fixture));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let ours = directory.path().join("ours.json");
    std::fs::write(&ours, history::to_json(&messages).expect("it is written")).expect("written");
    let Some(theirs) = stirrup(&["load", &ours.to_string_lossy()]) else {
        return;
    };
    assert_eq!(
        history::from_json(&theirs).expect("what Stirrup writes loads"),
        messages
    );
}
