//! The display on a terminal.

use std::process::Stdio;

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::timeout;

use crate::support::{DEADLINE, TestEnv, wait_for_exit};
use crate::{command, finish};

/// Starts `cantle run` at a terminal of 72 columns; `None` without `script(1)`.
fn start(server: &ScriptedServer, no_color: &str, flags: &str) -> Option<(TestEnv, Child)> {
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("NO_COLOR", no_color)
        .set("TERM", "xterm")
        .set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let line = format!("stty columns 72; exec \"$PROGRAM\" run 'Count the words' {flags}");
    let mut script = env.command_of("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    let Ok(child) = script.spawn() else {
        eprintln!("SKIPPED: script(1) is not installed");
        return None;
    };
    Some((env, child))
}

#[tokio::test]
async fn status_line_and_colours() {
    for (no_color, coloured) in [("", true), ("1", false)] {
        let gate = TestEnv::new();
        let go = gate.path("go");
        // The first turn lasts until its status was seen.
        let wait = format!("until [ -e {} ]; do sleep 0.01; done", go.display());
        let script = Script::new()
            .turn(command(&wait))
            .turn(finish("There are 3 words.", &[]));
        let server = ScriptedServer::start(script).await.unwrap();
        let Some((_env, mut child)) = start(&server, no_color, "--policy unconfined") else {
            return;
        };
        let mut shown = Vec::new();
        let stdout = child.stdout.as_mut().unwrap();
        let reading = async {
            while !shown.ends_with("turn 1/30 · 10 in · 5 out · ".as_bytes()) {
                shown.push(stdout.read_u8().await.unwrap());
            }
        };
        timeout(DEADLINE, reading).await.unwrap();
        gate.write("go", "");
        let exited = wait_for_exit(child).await;
        assert_eq!(exited.code, Some(0), "{exited:?}");
        let text = String::from_utf8(shown).unwrap() + &exited.stdout;
        assert_eq!(text.contains("\u{1b}[1m"), coloured, "{text:?}");
        // The status line is removed before other text and at the end.
        let (_, end) = text.rsplit_once("/30 · ").unwrap();
        assert!(
            end.contains("\r\u{1b}[J") && end.contains("There are 3 words."),
            "{end:?}"
        );
    }
}

#[tokio::test]
async fn malformed_arguments_are_escaped() {
    let nasty = "{\"cmd\": \"wc\u{1b}[2J -w\r\n";
    let script = Script::new()
        .turn(Turn::tool(ToolCall::new("code_exec", nasty)))
        .turn(finish("Gave up.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let Some((_env, child)) = start(&server, "1", "") else {
        return;
    };
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    let text = exited.stdout;
    assert!(!text.contains("\u{1b}[2J"), "{text:?}");
    let call = "\r\n  $ code_exec {\"cmd\": \"wc\\u{1b}[2J -w\\u{d}\r\n";
    let (_, after) = text.split_once(call).unwrap();
    let (result, _) = after.split_once("  └ failed · ").unwrap();
    assert!(
        result.contains("  │ Tool arguments are not valid"),
        "{result:?}"
    );
}

#[tokio::test]
async fn an_approval_follows_the_explanation_and_edits_the_command() {
    let call = ToolCall::new("code_exec", serde_json::json!({"cmd": "echo one"}));
    let script = Script::new()
        .turn(Turn::text("I count first.").call(call))
        .turn(finish("Counted.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("NO_COLOR", "1")
        .set("TERM", "xterm")
        .set("EDITOR", "sed -i s/one/two/")
        .set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let line = "\"$PROGRAM\" run Count --approve ask";
    let mut script = env.command_of("script");
    script.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    let Ok(mut child) = script.stdin(Stdio::piped()).spawn() else {
        eprintln!("SKIPPED: script(1) is not installed");
        return;
    };
    let mut shown = Vec::new();
    let stdout = child.stdout.as_mut().unwrap();
    let reading = async {
        while !shown.ends_with(b"[a]lways > ") {
            shown.push(stdout.read_u8().await.unwrap());
        }
    };
    timeout(DEADLINE, reading).await.unwrap();
    let shown = String::from_utf8(shown).unwrap();
    let (before, question) = shown.split_once("I count first.").unwrap();
    assert!(!before.contains("echo one"), "{shown:?}");
    let question = question.split_once("    echo one\r\n").unwrap().1;
    assert!(
        question.starts_with("  Run this command? [y]es"),
        "{shown:?}"
    );
    let stdin = child.stdin.as_mut().unwrap();
    stdin.write_all(b"e\n").await.unwrap();
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.code, Some(0), "{exited:?}");
    assert!(exited.stdout.contains("  $ echo two\r\n"), "{exited:?}");
    let request = server.requests()[1].body()["messages"].to_string();
    assert!(request.contains("echo one"), "{request}");
    let note = "The user changed this call before it ran.";
    assert!(request.contains(note), "{request}");
}

#[tokio::test]
async fn tty_allocates_a_terminal() {
    let env = TestEnv::new();
    let line = "tty; stty size; read line; echo \"got $line\"; cat; exit 7";
    let args = ["exec", "--tty", "--", "bash", "-c", line];
    let mut child = env.command(args).stdin(Stdio::piped()).spawn().unwrap();
    let before = "/dev/pts/0\r\n24 80\r\n";
    let mut text = vec![0; before.len()];
    let stdout = child.stdout.as_mut().unwrap();
    let reading = timeout(DEADLINE, stdout.read_exact(&mut text)).await;
    reading.unwrap().unwrap();
    assert_eq!(String::from_utf8(text).unwrap(), before);
    // Not earlier: the terminal echoes input at any time.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    // Ends `cat`.
    drop(stdin);
    let exited = wait_for_exit(child).await;
    assert_eq!(exited.stdout, "hello\r\ngot hello\r\n", "{exited:?}");
    assert_eq!((exited.code, &*exited.stderr), (Some(7), ""), "{exited:?}");
}

#[tokio::test]
async fn terminal_mode_is_restored() {
    let env = TestEnv::new()
        .set("TERM", "xterm")
        .set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let line = "stty rows 31 columns 99; before=$(stty -g); \
                \"$PROGRAM\" exec --tty -- bash -c 'stty size; kill -9 $$'; echo \"code $?\"; \
                test \"$before\" = \"$(stty -g)\" && echo restored";
    let mut script = env.command_of("script");
    script.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    let Ok(child) = script.spawn() else {
        eprintln!("SKIPPED: script(1) is not installed");
        return;
    };
    let exited = wait_for_exit(child).await;
    assert!(exited.stdout.contains("31 99\r\n"), "{exited:?}");
    assert!(exited.stdout.contains("code 137\r\nrestored"), "{exited:?}");
}
