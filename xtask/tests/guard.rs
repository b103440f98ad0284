//! Commands under the guard end with the program that started them, children included.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

fn guard(script: &str) -> Command {
    let mut guard = Command::new(env!("CARGO_BIN_EXE_xtask"));
    guard.args(["guard", "--", "sh", "-c", script]);
    guard.stdin(Stdio::piped()).stdout(Stdio::piped());
    guard
}

/// Reports whether the process is running; a zombie is not.
fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit_once(") ")
        .and_then(|(_, after)| after.chars().next());
    state.is_some_and(|state| state != 'Z')
}

#[test]
fn a_closed_lifeline_ends_the_whole_group() {
    let mut guard = guard("sleep 1000 & echo $$ $!; wait").spawn().unwrap();
    let mut line = String::new();
    BufReader::new(guard.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    let pids: Vec<&str> = line.split_whitespace().collect();
    assert!(
        pids.len() == 2 && pids.iter().all(|pid| is_running(pid)),
        "{line}"
    );

    drop(guard.stdin.take());
    guard.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while pids.iter().any(|pid| is_running(pid)) {
        assert!(Instant::now() < deadline, "still running: {line}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_command_that_ignores_term_is_killed() {
    let mut guard = guard("trap '' TERM; echo ready; while :; do sleep 1; done")
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(guard.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    drop(guard.stdin.take());
    assert_eq!(guard.wait().unwrap().code(), Some(128 + 9));
}

#[test]
fn the_guard_exits_with_the_commands_code() {
    let status = |script| {
        let mut guard = guard(script).spawn().unwrap();
        let lifeline = guard.stdin.take();
        let status = guard.wait().unwrap();
        drop(lifeline);
        status.code()
    };
    assert_eq!(status("exit 7"), Some(7));
    assert_eq!(status("kill -TERM $$"), Some(128 + 15));
}
