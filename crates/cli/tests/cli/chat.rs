//! Conversations: `cantle chat` at a terminal.

use std::process::Stdio;

use cantle_testkit::openai::{Script, ScriptedServer, ServerOptions, ToolCall, Turn};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::Child;
use tokio::time::timeout;

use crate::support::{DEADLINE, DEFAULT_SIGNALS, Exited, TestEnv, wait_for_exit};
use crate::{command, finish};

/// The end of the prompt, as the editor draws it.
const PROMPT: &str = "> ";

/// A program at a terminal of its own.
struct Terminal {
    child: Child,
    shown: String,
}

impl Terminal {
    /// Starts `cantle chat`; `None` without `script(1)`.
    fn chat(env: &TestEnv, args: &str) -> Option<Self> {
        // Ctrl-C is a signal, which a parent process may ignore.
        let mut script = env.command_of("env");
        script.args([DEFAULT_SIGNALS, "script"]);
        let line = format!(
            "stty columns 100; exec \"{}\" chat {args}",
            env!("CARGO_BIN_EXE_cantle")
        );
        script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
        let is_installed = std::process::Command::new("script")
            .arg("--version")
            .output();
        if is_installed.is_err() {
            eprintln!("SKIPPED: script(1) is not installed");
            return None;
        }
        Some(Self {
            child: script.stdin(Stdio::piped()).spawn().unwrap(),
            shown: String::new(),
        })
    }

    /// Waits until the text was displayed, after what was waited for before. Returns what came between.
    async fn shows(&mut self, text: &str) -> String {
        self.shows_one_of(&[text]).await.1
    }

    /// Waits until one of the texts was displayed, as [`shows`](Self::shows) does, and returns it, too.
    async fn shows_one_of<'t>(&mut self, texts: &[&'t str]) -> (&'t str, String) {
        let stdout = self.child.stdout.as_mut().unwrap();
        let mut bytes = std::mem::take(&mut self.shown).into_bytes();
        let reading = async {
            loop {
                let shown = String::from_utf8_lossy(&bytes).into_owned();
                for text in texts {
                    if let Some((before, after)) = shown.split_once(text) {
                        return (*text, before.to_owned(), after.to_owned());
                    }
                }
                let mut chunk = [0; 4096];
                let count = stdout.read(&mut chunk).await.unwrap();
                assert!(count > 0, "no {texts:?} in {shown:?}");
                bytes.extend(&chunk[..count]);
            }
        };
        let reading = timeout(DEADLINE, reading).await;
        let Ok((text, before, after)) = reading else {
            panic!(
                "no {texts:?} in time in {:?}",
                String::from_utf8_lossy(&bytes)
            );
        };
        self.shown = after;
        (text, before)
    }

    async fn types(&mut self, keys: &str) {
        let stdin = self.child.stdin.as_mut().unwrap();
        stdin.write_all(keys.as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
    }

    /// Types a line once the prompt is there.
    async fn enters(&mut self, line: &str) {
        self.shows(PROMPT).await;
        self.types(&format!("{line}\r")).await;
    }

    async fn ended(self) -> Exited {
        let mut exited = wait_for_exit(self.child).await;
        exited.stdout.insert_str(0, &self.shown);
        exited
    }
}

async fn served(script: impl Into<ServerOptions>) -> (ScriptedServer, TestEnv) {
    let server = ScriptedServer::start(script).await.unwrap();
    let env = TestEnv::new()
        .with_server(&server.url())
        .set("NO_COLOR", "1")
        .set("TERM", "xterm");
    (server, env)
}

async fn runs(env: &TestEnv) -> Vec<Value> {
    let list = env.run(["runs", "list", "--json"]).await;
    serde_json::from_str(&list.stdout).unwrap()
}

#[tokio::test]
async fn messages_share_the_conversation_and_the_sandbox() {
    let script = Script::new()
        .turn(command("echo one > notes"))
        .turn(finish("First answer.", &[]))
        .turn(command("cat notes; echo two >> notes"))
        .turn(finish("Second answer.", &["notes"]))
        .turn(command("cat notes"))
        .turn(finish("Third answer.", &[]));
    let (server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "'Take a note'") else {
        return;
    };
    chat.shows("First answer.").await;
    chat.enters("And another").await;
    let shown = chat.shows("Second answer.").await;
    assert!(shown.contains("│ one"), "{shown:?}");
    chat.enters("/cost").await;
    chat.shows("2 messages · ").await;
    chat.enters("/files").await;
    chat.shows("delivered  cantle-out/").await;
    chat.shows("sandbox    notes").await;
    chat.enters("/nonsense").await;
    chat.shows("there is no command `/nonsense`").await;
    chat.enters("/save").await;
    chat.shows("name a file: /save FILE").await;
    chat.enters("/cost now").await;
    chat.shows("/cost takes no argument").await;
    chat.enters("/save talk.md").await;
    chat.shows("Saved talk.md").await;
    chat.enters("/quit").await;
    let shown = chat.shows("To continue: cantle chat --continue ").await;
    assert!(!shown.contains("cantle: "), "{shown:?}");
    assert_eq!(chat.ended().await.code, Some(0));

    let saved = env.read("talk.md");
    assert!(
        saved.contains("First answer.") && saved.contains("Second answer."),
        "{saved}"
    );
    let history = env.read(".local/state/cantle/chat-history");
    assert!(history.contains("And another"), "{history}");

    // Later, in another process: the conversation and the files are still there.
    let mut chat = Terminal::chat(&env, "--continue last 'And now?'").unwrap();
    let shown = chat.shows("Third answer.").await;
    assert!(shown.contains("│ two"), "{shown:?}");
    chat.shows(PROMPT).await;
    chat.types("\u{4}").await;
    assert_eq!(chat.ended().await.code, Some(0));
    let request = server.requests().last().unwrap().body()["messages"].to_string();
    for text in ["Take a note", "First answer.", "And another", "And now?"] {
        assert!(request.contains(text), "{text}: {request}");
    }
    assert_eq!(runs(&env).await.len(), 3);

    // The records of all of them are there, and not those of another conversation.
    assert_eq!(env.run(["run", "Something else", "-q"]).await.code, Some(0));
    let last = runs(&env).await[1]["run"].as_str().unwrap().to_owned();
    let mut chat = Terminal::chat(&env, &format!("--continue {last}")).unwrap();
    chat.enters("/cost").await;
    chat.shows("3 messages · ").await;
    chat.enters("/files").await;
    chat.shows("delivered  cantle-out/").await;
    chat.enters("/save whole.md").await;
    chat.shows("Saved whole.md").await;
    chat.enters("/quit").await;
    chat.ended().await;
    let saved = env.read("whole.md");
    let answers = ["First answer.", "Second answer.", "Third answer."];
    assert!(answers.iter().all(|it| saved.contains(it)), "{saved}");
    assert!(!saved.contains("Something else"), "{saved}");
}

#[tokio::test]
async fn files_of_sub_agents_are_not_listed_as_delivered() {
    let delegate = ToolCall::new("reviewer", json!({"task": "Write a review."}));
    let main = Script::new()
        .turn(command("echo draft > notes"))
        .turn(Turn::tool(delegate))
        .turn(finish("All is done.", &["notes"]));
    let critic = Script::new()
        .turn(command("echo fine > review"))
        .turn(finish("It is fine.", &["review"]));
    let (_server, env) = served(ServerOptions::new(main).model("critic", critic)).await;
    env.write(
        "team.toml",
        "[reviewer]\ndescription = \"Reviews.\"\nmodel = \"critic\"\n",
    );
    let Some(mut chat) = Terminal::chat(&env, "--sub-agents team.toml 'Have it reviewed'") else {
        return;
    };
    chat.shows("All is done.").await;
    chat.enters("/files").await;
    let before = chat.shows("delivered  cantle-out/").await;
    assert!(!before.contains("delivered"), "{before:?}");
    chat.shows("sandbox    review").await;
    chat.enters("/quit").await;
    assert_eq!(chat.ended().await.code, Some(0));
}

#[tokio::test]
async fn interrupt_cancels_the_message_and_the_conversation_goes_on() {
    let script = Script::new()
        .turn(command("echo be''gun; sleep 1000"))
        .turn(finish("Went on.", &[]));
    let (server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "Wait") else {
        return;
    };
    chat.shows("begun").await;
    chat.types("\u{3}").await;
    chat.shows("cancelled").await;
    chat.enters("Something else").await;
    chat.shows("Went on.").await;
    chat.shows(PROMPT).await;
    chat.types("\u{3}").await;
    chat.shows("Ctrl-C again leaves").await;
    chat.shows(PROMPT).await;
    chat.types("\u{3}").await;
    chat.ended().await;
    let request = server.requests().last().unwrap().body()["messages"].to_string();
    assert!(request.contains("Something else"), "{request}");
}

#[tokio::test]
async fn text_typed_meanwhile_is_sent_or_waits_and_never_approves() {
    let gate = TestEnv::new();
    let wait = format!(
        "until [ -e {} ]; do sleep 0.01; done",
        gate.path("go").display()
    );
    let script = Script::new()
        .turn(command(&wait))
        .turn(command("echo approved"))
        .turn(finish("Done.", &[]));
    let (server, env) = served(script).await;
    let rules = "default = \"allow\"\n[[rule]]\ntool = \"code_exec\"\narguments = { cmd = \"echo*\" }\npermission = \"ask\"\n";
    env.write("rules.toml", rules);
    let args = "--policy unconfined --approve rules.toml Work";
    let Some(mut chat) = Terminal::chat(&env, args) else {
        return;
    };
    chat.shows("until [ -e ").await;
    chat.types("/cost\r").await;
    chat.shows("not sent, because commands are entered between messages: /cost")
        .await;
    // A message, and the beginning of another, which looks like an answer.
    chat.types("also count\ry").await;
    chat.shows("for the model's next turn: also count").await;
    gate.write("go", "");
    chat.shows("Run this command?").await;
    chat.shows("> ").await;
    chat.types("n not now\n").await;
    let shown = chat.shows("Done.").await;
    assert!(!shown.contains("│ approved"), "{shown:?}");
    // The text that was not sent can be edited.
    chat.shows("> y").await;
    chat.types("\u{15}/quit\r").await;
    chat.ended().await;
    let request = server.requests().last().unwrap().body()["messages"].to_string();
    assert!(request.contains("also count"), "{request}");
    assert!(request.contains("not now"), "{request}");
    assert!(!request.contains("/cost"), "{request}");
}

#[tokio::test]
async fn a_message_that_fails_is_edited_with_what_was_typed_meanwhile() {
    let wait = "echo be''gun; until test -e \"$SIGNALS/go\"; do sleep 0.1; done";
    let end = ToolCall::new("finish", json!({"reason": "First answer.", "paths": []}));
    let script = Script::new()
        .turn(command(wait).call(end))
        .turn(finish("Second answer.", &[]));
    let (server, env) = served(script).await;
    env.write("project/file", "");
    std::fs::create_dir(env.path("signals")).unwrap();
    let signals = env.path("signals").display().to_string();
    let args = format!(
        "--workdir project --diff missing/diff --read {signals} --env SIGNALS={signals} Work"
    );
    let Some(mut chat) = Terminal::chat(&env, &args) else {
        return;
    };
    chat.shows("begun").await;
    chat.types("also count\r").await;
    chat.shows("for the model's next turn: also count").await;
    chat.types("and check").await;
    chat.shows("> and check").await;
    env.write("signals/go", "");
    chat.shows("failed to write missing/diff").await;
    chat.shows("and check").await;
    chat.types("\r").await;
    chat.shows("Second answer.").await;
    chat.shows("failed to write missing/diff").await;
    chat.shows("and check").await;
    chat.types("\u{3}").await;
    chat.shows("Ctrl-C again leaves").await;
    chat.shows(PROMPT).await;
    chat.types("\u{3}").await;
    chat.ended().await;
    let request = server.requests().last().unwrap().body()["messages"].to_string();
    assert!(
        request.contains("Work\\nalso count\\nand check"),
        "{request}"
    );
}

#[tokio::test]
async fn a_message_for_which_no_turn_is_left_is_the_next_one() {
    // The call after the command ends the run, whatever the user types meanwhile.
    let wait = "echo be''gun; until test -e \"$SIGNALS/go\"; do sleep 0.1; done";
    let end = ToolCall::new("finish", json!({"reason": "First answer.", "paths": []}));
    let script = Script::new()
        .turn(command(wait).call(end))
        .turn(finish("Second answer.", &[]));
    let (server, env) = served(script).await;
    std::fs::create_dir(env.path("signals")).unwrap();
    let signals = env.path("signals").display().to_string();
    let args = format!("--read {signals} --env SIGNALS={signals} Work");
    let Some(mut chat) = Terminal::chat(&env, &args) else {
        return;
    };
    chat.shows("begun").await;
    chat.types("also count\r").await;
    chat.shows("for the model's next turn: also count").await;
    env.write("signals/go", "");
    chat.shows("First answer.").await;
    chat.shows("> also count").await;
    chat.shows("Second answer.").await;
    chat.enters("/quit").await;
    chat.ended().await;
    let request = server.requests().last().unwrap().body()["messages"].to_string();
    assert!(request.contains("also count"), "{request}");
    assert_eq!(runs(&env).await.len(), 2);
}

#[tokio::test]
async fn the_editor_completes_commands_and_takes_several_lines() {
    let script = Script::new().turn(finish("Read.", &[]));
    let (server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "") else {
        return;
    };
    chat.enters("/co\t\t\u{15}/cos\t").await;
    chat.shows("0 messages · ").await;
    // Nothing begins with this; an empty line has nothing to complete.
    chat.enters("\t/cosx\t").await;
    chat.shows("there is no command `/cosx`").await;
    chat.shows(PROMPT).await;
    chat.types("one\\\rtwo\u{1b}\rthree\r").await;
    chat.shows("Read.").await;
    chat.enters("/quit").await;
    chat.ended().await;
    let request = server.requests()[0].body()["messages"].to_string();
    assert!(request.contains("one\\ntwo\\nthree"), "{request}");
}

#[tokio::test]
async fn interrupting_twice_leaves_and_says_how_to_go_on() {
    let script = Script::new()
        // The command as it is displayed does not contain what it prints.
        .turn(command("trap '' TERM; echo be''gun; sleep 1000"))
        .turn(finish("Went on.", &[]));
    let (server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "'Wait for it'") else {
        return;
    };
    chat.shows("begun").await;
    chat.types("\u{3}").await;
    chat.shows("interrupt again to exit").await;
    chat.types("\u{3}").await;
    let leaving = "To continue: cantle chat --continue ";
    let (shown, _) = chat.shows_one_of(&[leaving, "Ctrl-C again leaves"]).await;
    if shown != leaving {
        // This test was delayed: the command was killed after its grace, and the prompt got the second one.
        chat.shows(PROMPT).await;
        chat.types("\u{3}").await;
        chat.shows(leaving).await;
    }
    let exited = chat.ended().await;
    assert_eq!(exited.code, Some(4), "{exited:?}");
    let run = exited.stdout.trim();
    let mut chat = Terminal::chat(&env, &format!("--continue {run} Further")).unwrap();
    chat.shows("Went on.").await;
    chat.enters("/quit").await;
    chat.ended().await;
    let request = server.requests().last().unwrap().body()["messages"].to_string();
    assert!(request.contains("Wait for it"), "{request}");
}

#[tokio::test]
async fn approval_rules_in_force_are_shown() {
    let script = Script::new()
        .turn(command("echo one"))
        .turn(finish("First answer.", &[]))
        .turn(command("echo one"))
        .turn(finish("Second answer.", &[]));
    let (_server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "--approve ask Work") else {
        return;
    };
    chat.shows("[a]lways > ").await;
    chat.types("a\n").await;
    chat.shows("neither] > ").await;
    chat.types("2\n").await;
    chat.shows("First answer.").await;
    chat.enters("/quit").await;
    chat.ended().await;

    // The rules are those of the earlier run; what was allowed for its rest is not.
    let mut chat = Terminal::chat(&env, "--continue last").unwrap();
    chat.enters("/approve").await;
    let shown = chat.shows("[a]lways").await;
    assert!(
        shown.contains("ask\r\n  allow finish\r\n  ask about all others\r\n"),
        "{shown:?}"
    );
    chat.enters("Again").await;
    chat.shows("[a]lways > ").await;
    chat.types("y\n").await;
    chat.shows("Second answer.").await;
    // A file that changes is in force as it was read.
    env.write("rules.toml", "default = \"deny\"\n[[rule]]\ntool = \"code_exec\"\narguments = { cmd = \"ls*\" }\npermission = \"ask\"\n");
    chat.enters("/approve rules.toml").await;
    chat.shows("From now on: rules.toml").await;
    chat.enters("/approve").await;
    chat.shows("  ask about code_exec with cmd = ls*\r\n  deny all others\r\n")
        .await;
    chat.enters("/approve never").await;
    chat.enters("/approve").await;
    chat.shows("never\r\n  allow all calls\r\n").await;
    chat.enters("/quit").await;
    chat.ended().await;
}

#[tokio::test]
async fn a_saved_conversation_has_no_values_of_variables() {
    let script = Script::new()
        .turn(command("echo $FLAG_VALUE $FILE_VALUE"))
        .turn(finish("Printed.", &[]));
    let (_server, env) = served(script).await;
    env.write("variables", "FILE_VALUE=file-secret\n");
    let args = "--env FLAG_VALUE=flag-secret --env-file variables Print";
    let Some(mut chat) = Terminal::chat(&env, args) else {
        return;
    };
    chat.shows("Printed.").await;
    for file in ["talk.md", "talk.json"] {
        chat.enters(&format!("/save {file}")).await;
        chat.shows(&format!("Saved {file}")).await;
        let saved = env.read(file);
        assert!(
            saved.contains("[FLAG_VALUE redacted] [FILE_VALUE redacted]"),
            "{saved}"
        );
        assert!(!saved.contains("-secret"), "{saved}");
    }
    chat.enters("/quit").await;
    chat.ended().await;
    // Later, the values are not known: that is said, and those that are set again are redacted.
    let shown = env.run(["runs", "show", "last", "--format", "html"]).await;
    assert!(
        shown
            .stderr
            .contains("the values of FILE_VALUE and FLAG_VALUE are not known here"),
        "{shown:?}"
    );
    assert!(
        shown
            .stdout
            .contains("those of FILE_VALUE and FLAG_VALUE were not known"),
        "{shown:?}"
    );
    let env = env
        .set("FLAG_VALUE", "flag-secret")
        .set("FILE_VALUE", "file-secret");
    for format in ["json", "atif", "inspect", "fine-tuning"] {
        let shown = env.run(["runs", "show", "last", "--format", format]).await;
        assert_eq!(shown.stderr, "", "{shown:?}");
        assert!(!shown.stdout.contains("-secret"), "{shown:?}");
    }
}

#[tokio::test]
async fn summary_and_another_model_go_on_in_the_same_sandbox() {
    // The script goes by the length of the conversation, so it begins anew after the summary.
    let script = Script::new()
        .turn(command("cat notes; echo one > notes"))
        .turn(finish("An answer.", &[]))
        .turn(finish("The user wants notes; one is taken.", &[]));
    let (server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "'Take a note'") else {
        return;
    };
    chat.shows("An answer.").await;
    chat.enters("/compact").await;
    chat.shows("one is taken.").await;
    chat.enters("/model other").await;
    chat.shows("From now on: other").await;
    chat.enters("And now?").await;
    let shown = chat.shows("An answer.").await;
    assert!(shown.contains("model other"), "{shown:?}");
    assert!(shown.contains("│ one"), "{shown:?}");
    chat.enters("/quit").await;
    chat.ended().await;
    let last = server.requests().pop().unwrap().body();
    assert_eq!(last["model"], "other");
    let request = last["messages"].to_string();
    assert!(request.contains("one is taken."), "{request}");
    assert!(!request.contains("Take a note"), "{request}");
}

#[tokio::test]
async fn a_session_that_was_closed_for_another_model_is_kept_as_the_settings_say() {
    let (_server, env) = served(Script::new().turn(finish("An answer.", &[]))).await;
    let env = env.set("CANTLE_KEEP_DAYS", "0");
    let Some(mut chat) = Terminal::chat(&env, "'Hello'") else {
        return;
    };
    chat.shows("An answer.").await;
    chat.enters("/model other").await;
    chat.shows("From now on: other").await;
    chat.enters("/quit").await;
    chat.ended().await;
    let workspaces = ".local/state/cantle/workspaces";
    assert_eq!(env.list(workspaces), [""; 0]);
}

#[tokio::test]
async fn only_the_first_message_gets_the_fresh_sandbox() {
    let script = Script::new()
        .turn(command("echo one > notes"))
        .turn(finish("First answer.", &[]))
        .turn(command("cat notes; echo two > notes"))
        .turn(finish("Second answer.", &[]))
        .turn(command("cat notes"))
        .turn(finish("Third answer.", &[]));
    let (_server, env) = served(script).await;
    let Some(mut chat) = Terminal::chat(&env, "'Take a note'") else {
        return;
    };
    chat.shows("First answer.").await;
    chat.enters("/quit").await;
    chat.ended().await;

    let args = "--continue last --fresh-sandbox 'Take another'";
    let mut chat = Terminal::chat(&env, args).unwrap();
    let shown = chat.shows("Second answer.").await;
    assert!(!shown.contains("│ one"), "{shown:?}");
    // Another model needs another session.
    chat.enters("/model other").await;
    chat.shows("From now on: other").await;
    chat.enters("And now?").await;
    let shown = chat.shows("Third answer.").await;
    assert!(shown.contains("│ two"), "{shown:?}");
    chat.enters("/quit").await;
    chat.ended().await;
}

#[tokio::test]
async fn changes_of_a_directory_are_applied_and_undone() {
    let script = Script::new()
        .turn(command("echo changed > file"))
        .turn(finish("Changed.", &[]))
        .turn(command("cat file"))
        .turn(finish("Looked.", &[]));
    let (_server, env) = served(script).await;
    env.write("project/file", "as it was\n");
    let Some(mut chat) = Terminal::chat(&env, "--workdir project 'Change it'") else {
        return;
    };
    chat.shows("Apply").await;
    chat.shows("> ").await;
    chat.types("y\n").await;
    chat.shows(PROMPT).await;
    assert_eq!(env.read("project/file"), "changed\n");
    chat.types("Look\r").await;
    let shown = chat.shows("Looked.").await;
    assert!(shown.contains("│ changed"), "{shown:?}");
    chat.enters("/quit").await;
    chat.ended().await;
    // Another process finds the changes of an earlier message.
    let mut chat = Terminal::chat(&env, "--continue last").unwrap();
    chat.enters("/undo").await;
    chat.shows("Reverted: 1 file").await;
    chat.enters("/quit").await;
    chat.ended().await;
    assert_eq!(env.read("project/file"), "as it was\n");
}

#[tokio::test]
async fn without_a_terminal_it_is_refused() {
    let env = TestEnv::new()
        .set("CANTLE_MODEL", "m")
        .set("CANTLE_API_KEY", "k");
    let refused = env.run(["chat", "Hello"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("needs a terminal"), "{refused:?}");
    let refused = env.run(["chat", "--json", "Hello"]).await;
    assert!(
        refused.stderr.contains("cantle chat has no --json"),
        "{refused:?}"
    );
}
