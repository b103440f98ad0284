//! What a person sees on a live terminal.

use std::process::Stdio;

use cantle_testkit::openai::{Script, ScriptedServer, ToolCall, Turn};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::support::{DEADLINE, Place};
use crate::{command, finish};

/// What `cantle run` writes to a terminal of 72 columns on its way to a good end; `None`, said aloud,
/// where there is no terminal to be had.
async fn shown(server: &ScriptedServer, no_color: &str) -> Option<String> {
    let place = Place::new()
        .served_by(&server.url())
        .set("NO_COLOR", no_color)
        .set("TERM", "xterm")
        .set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let line = "stty columns 72; exec \"$PROGRAM\" run 'Count the words'";
    let mut script = place.command_of("script");
    script.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    let Ok(child) = script.spawn() else {
        eprintln!("SKIPPED: there is no script(1)");
        return None;
    };
    let ended = crate::support::ended(child).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    Some(ended.stdout)
}

#[tokio::test]
async fn there_is_a_status_line_and_colours_unless_they_are_not_wanted() {
    let script = Script::new()
        .turn(command("seq 3"))
        .turn(finish("There are 3 words.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    for (no_color, coloured) in [("", true), ("1", false)] {
        let Some(shown) = shown(&server, no_color).await else {
            return;
        };
        assert_eq!(shown.contains("\u{1b}[1m"), coloured, "{shown:?}");
        assert!(shown.contains("turn 1/30 · 0 in · 0 out · "), "{shown:?}");
        // The status line is taken away before anything else is written, and at the end.
        let (_, end) = shown.rsplit_once("turn 2/30").unwrap();
        assert!(
            end.contains("\r\u{1b}[J") && end.contains("There are 3 words."),
            "{end:?}"
        );
    }
}

#[tokio::test]
async fn malformed_arguments_are_shown_as_they_came_but_harmless() {
    let nasty = "{\"cmd\": \"wc\u{1b}[2J -w\r\n";
    let script = Script::new()
        .turn(Turn::tool(ToolCall::new("code_exec", nasty)))
        .turn(finish("Gave up.", &[]));
    let server = ScriptedServer::start(script).await.unwrap();
    let Some(shown) = shown(&server, "1").await else {
        return;
    };
    assert!(!shown.contains("\u{1b}[2J"), "{shown:?}");
    let call = "\r\n  $ code_exec {\"cmd\": \"wc -w\r\n";
    let (_, after) = shown.split_once(call).unwrap();
    let (result, _) = after.split_once("  └ failed · ").unwrap();
    assert!(
        result.contains("  │ Tool arguments are not valid"),
        "{result:?}"
    );
}

#[tokio::test]
async fn a_command_can_have_a_terminal_of_its_own() {
    let place = Place::new();
    let line = "tty; stty size; read line; echo \"got $line\"; cat; exit 7";
    let args = ["exec", "--tty", "--", "bash", "-c", line];
    let mut child = place.command(args).stdin(Stdio::piped()).spawn().unwrap();
    let before = "/dev/pts/0\r\n24 80\r\n";
    let mut shown = vec![0; before.len()];
    let stdout = child.stdout.as_mut().unwrap();
    let reading = timeout(DEADLINE, stdout.read_exact(&mut shown)).await;
    reading.unwrap().unwrap();
    assert_eq!(String::from_utf8(shown).unwrap(), before);
    // Not earlier: what is typed is shown by the terminal, wherever the program is.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"hello\n").await.unwrap();
    // The end of the input ends `cat`.
    drop(stdin);
    let ended = crate::support::ended(child).await;
    assert_eq!(ended.stdout, "hello\r\ngot hello\r\n", "{ended:?}");
    assert_eq!((ended.code, &*ended.stderr), (Some(7), ""), "{ended:?}");
}

#[tokio::test]
async fn a_terminal_is_left_as_it_was() {
    let place = Place::new()
        .set("TERM", "xterm")
        .set("PROGRAM", env!("CARGO_BIN_EXE_cantle"));
    let line = "stty rows 31 columns 99; before=$(stty -g); \
                \"$PROGRAM\" exec --tty -- bash -c 'stty size; kill -9 $$'; echo \"code $?\"; \
                test \"$before\" = \"$(stty -g)\" && echo restored";
    let mut script = place.command_of("script");
    script.args(["--quiet", "--return", "--command", line, "/dev/null"]);
    let Ok(child) = script.spawn() else {
        eprintln!("SKIPPED: there is no script(1)");
        return;
    };
    let ended = crate::support::ended(child).await;
    assert!(ended.stdout.contains("31 99\r\n"), "{ended:?}");
    assert!(ended.stdout.contains("code 137\r\nrestored"), "{ended:?}");
}
