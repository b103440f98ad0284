use std::fs::OpenOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle::core::ids::RunId;
use cantle::core::tool::{Answer, ApprovalScope, AskUser as _, Decision, QuestionId, ToolError};
use rustix::event::Timespec;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::approval::ShownCall;
use super::*;

/// The controlling side of a terminal, at which a test reads and types.
struct TestTerminal {
    side: Arc<File>,
}

impl TestTerminal {
    fn new() -> (Self, ChannelUser, TerminalUser) {
        let side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&side).expect("granted");
        unlockpt(&side).expect("unlocked");
        let name = ptsname(&side, Vec::new()).expect("a name");
        let name = name.to_str().expect("a path").to_owned();
        let terminal = OpenOptions::new().read(true).write(true).open(name);
        let terminal = terminal.expect("it opens");
        let (user, person) =
            TerminalUser::at(terminal.as_fd(), terminal.as_fd()).expect("a person");
        let side = Arc::new(File::from(side));
        (Self { side }, user, person)
    }

    fn write(&self, text: &str) {
        (&*self.side).write_all(text.as_bytes()).expect("typed");
    }

    /// Waits until something is displayed, and leaves it there.
    async fn displays(&self) {
        let side = Arc::clone(&self.side);
        let waiting = tokio::task::spawn_blocking(move || {
            let mut source = [PollFd::new(&*side, PollFlags::IN)];
            let wait = Timespec {
                tv_sec: 60,
                tv_nsec: 0,
            };
            poll(&mut source, Some(&wait)).expect("it polls")
        });
        assert_eq!(waiting.await.expect("no panic"), 1);
    }

    /// Returns everything that is displayed up to `end`.
    async fn read_until(&self, end: &'static str) -> String {
        let side = Arc::clone(&self.side);
        let reading = tokio::task::spawn_blocking(move || {
            let deadline = Instant::now() + Duration::from_secs(60);
            let mut shown = String::new();
            while !shown.ends_with(end) {
                let mut source = [PollFd::new(&*side, PollFlags::IN)];
                let wait = Timespec {
                    tv_sec: 1,
                    tv_nsec: 0,
                };
                if poll(&mut source, Some(&wait)).expect("it polls") > 0 {
                    let mut piece = [0; 1024];
                    let count = (&*side).read(&mut piece).expect("it reads");
                    shown.push_str(&String::from_utf8_lossy(&piece[..count]));
                }
                assert!(Instant::now() < deadline, "not shown: {end:?} in {shown:?}");
            }
            shown
        });
        reading.await.expect("no panic")
    }
}

fn id() -> QuestionId {
    QuestionId::new(RunId::new(), "call-1")
}

async fn answer_next(user: &mut TerminalUser, keys: Option<&mut TypedAhead>) {
    let question = user.next_question().await.expect("a question");
    user.answer(&question, keys).await;
}

/// Asks a question while `input` happens at the terminal, and returns the answer.
async fn asked(
    user: &ChannelUser,
    terminal_user: &mut TerminalUser,
    question: Question,
    input: impl Future<Output = ()>,
) -> Result<String, ToolError> {
    let answering = answer_next(terminal_user, None);
    let (answer, (), ()) = tokio::join!(user.ask(question), answering, input);
    answer.map(|answer| answer.to_string())
}

#[tokio::test]
async fn a_choice_is_asked_again_until_it_is_valid() {
    let (terminal, channel, mut user) = TestTerminal::new();
    // Typed before the question, so discarded.
    terminal.write("Red\n");
    assert_eq!(terminal.read_until("\n").await, "Red\r\n");
    let question =
        Question::choice(id(), "Which \x1b[31mcolour?", ["Red", "Gr\x07een"]).with_default("Red");
    let answer = asked(&channel, &mut user, question, async {
        let shown = terminal.read_until("> ").await;
        let (_, shown) = shown.split_once("\r\n? ").expect("a question");
        assert_eq!(
            shown,
            "Which \\u{1b}[31mcolour?\r\n  1  Red\r\n  2  Gr\\u{7}een\r\n[1-2, Enter for Red] > "
        );
        terminal.write("3\n");
        assert_eq!(
            terminal.read_until("> ").await,
            "3\r\n  the answer must be one of the 2 choices, by its text or its number\r\n\
             [1-2, Enter for Red] > "
        );
        terminal.write("2\n");
    });
    assert_eq!(answer.await.expect("answered"), "Gr\x07een");
}

/// Keys that are pressed while a question is drawn answer nothing: they are discarded, or kept for the editor.
#[tokio::test]
async fn only_keys_after_the_question_is_drawn_count() {
    for keeps in [false, true] {
        let (terminal, channel, mut user) = TestTerminal::new();
        let mut keys = keeps.then(|| TypedAhead::at(user.keys.as_fd()).expect("a terminal"));
        // More than the terminal takes, so that drawing it waits for this test.
        let text = format!("Begin? {}", "more ".repeat(40_000));
        let question = Question::new(id(), text);
        let typing = async {
            terminal.displays().await;
            terminal.write("early\n");
            terminal.read_until("> ").await;
            terminal.write("late\n");
        };
        let answering = answer_next(&mut user, keys.as_mut());
        let (answer, (), ()) = tokio::join!(channel.ask(question), answering, typing);
        assert_eq!(answer.expect("answered").to_string(), "late");
        let kept = keys.map(|keys| {
            keys.resume();
            keys.end()
        });
        assert_eq!(kept.as_deref(), keeps.then_some("early\n"));
    }
}

#[tokio::test]
async fn an_empty_line_selects_the_default() {
    let (terminal, channel, mut user) = TestTerminal::new();
    let question = Question::confirm(id(), "Sure?").with_default("no");
    let answer = asked(&channel, &mut user, question, async {
        terminal.read_until("[yes or no, Enter for no] > ").await;
        terminal.write("\n");
    });
    assert_eq!(answer.await.expect("answered"), "no");
    let answer = asked(&channel, &mut user, Question::new(id(), "Who?"), async {
        terminal.read_until("? Who?\r\n> ").await;
        terminal.write("Grüße\n");
    });
    assert_eq!(answer.await.expect("answered"), "Grüße");
}

#[tokio::test]
async fn end_of_input_declines_the_question() {
    let (terminal, channel, mut user) = TestTerminal::new();
    let question = Question::new(id(), "Who?").with_default("me");
    let answer = asked(&channel, &mut user, question, async {
        terminal.read_until("> ").await;
        terminal.write("\x04");
    });
    assert_eq!(
        answer.await.unwrap_err().to_string(),
        "The user gave no answer (standard input has ended). Decide yourself and go on, or finish."
    );
}

#[tokio::test]
async fn a_dropped_question_reads_no_input() {
    let (terminal, channel, mut user) = TestTerminal::new();
    let question = Question::new(id(), "First?");
    {
        let asking =
            async { tokio::join!(channel.ask(question.clone()), user.answer(&question, None)) };
        tokio::select! {
            _ = asking => panic!("answered"),
            _ = terminal.read_until("> ") => {}
        }
    }
    let answer = asked(&channel, &mut user, Question::new(id(), "Second?"), async {
        terminal.read_until("? Second?\r\n> ").await;
        terminal.write("here\n");
    });
    assert_eq!(answer.await.expect("answered"), "here");
}

#[tokio::test]
async fn a_withdrawn_question_stops_reading() {
    let (terminal, channel, mut user) = TestTerminal::new();
    let question = Question::new(id(), "Who?");
    let asking = async {
        tokio::select! {
            _ = channel.ask(question) => panic!("answered"),
            _ = terminal.read_until("> ") => {}
        }
    };
    tokio::join!(asking, answer_next(&mut user, None));
    terminal
        .read_until("(the question was withdrawn)\r\n")
        .await;
}

/// Has a call decided on at a terminal where this is typed at each prompt, and returns the decision and all that
/// was shown.
async fn decided(tool: &str, arguments: &str, typed: &[&'static str]) -> (Answer, String) {
    let (terminal, channel, mut user) = TestTerminal::new();
    let question = Question::approval(id(), tool, arguments);
    let mut shown = String::new();
    let typing = async {
        for text in typed {
            shown.push_str(&terminal.read_until("> ").await);
            terminal.write(text);
        }
    };
    let answering = answer_next(&mut user, None);
    let (answer, (), ()) = tokio::join!(channel.ask(question), answering, typing);
    (answer.expect("answered"), shown.replace("\r\n", "\n"))
}

fn decision(decision: Decision) -> Answer {
    Answer::Approval { decision }
}

#[tokio::test]
async fn a_command_is_shown_as_it_runs_and_decided_on_by_a_key() {
    let arguments = r#"{"cmd": "cd src\nrm -r \u202e*"}"#;
    let (answer, shown) = decided("code_exec", arguments, &["\n", "y\n"]).await;
    assert_eq!(answer, decision(Decision::Approve));
    let prompt = "  Run this command? [y]es / [n]o and a reason / [e]dit / [a]lways > ";
    assert_eq!(
        shown,
        format!(
            "\n    cd src\n    rm -r \\u{{202e}}*\n{prompt}\n  Answer y, n, e or a; a reason can follow n, as in \
             `n use the copy`.\n{prompt}"
        )
    );
    let always = |scope| decision(Decision::ApproveAlways { scope });
    let cases: [(&[&str], Answer); 5] = [
        (
            &["n use the copy\n"],
            decision(Decision::rejection("use the copy")),
        ),
        (
            &["n\n", "too slow\n"],
            decision(Decision::rejection("too slow")),
        ),
        (&["No\n", "\n"], decision(Decision::rejection(""))),
        (
            &["a\n", "\n", "a\n", "1\n"],
            always(ApprovalScope::Arguments),
        ),
        (&["a\n", "2\n"], always(ApprovalScope::Tool)),
    ];
    for (typed, expected) in cases {
        let (answer, shown) = decided("code_exec", arguments, typed).await;
        assert_eq!(answer, expected, "{shown}");
        if typed.contains(&"2\n") {
            assert!(shown.contains("  2  every command\n"), "{shown}");
        }
    }
}

#[tokio::test]
async fn a_call_that_is_no_command_is_shown_with_all_its_arguments() {
    let (_, shown) = decided("write", r#"{"path": "a", "cmd": 3}"#, &["a\n", "2\n"]).await;
    assert!(
        shown.starts_with(
            "\n    {\n      \"cmd\": 3,\n      \"path\": \"a\"\n    }\n  Allow this call of write?"
        ),
        "{shown}"
    );
    assert!(shown.contains("  2  every call of write\n"), "{shown}");
    // What is no JSON object is shown as it is.
    let (_, shown) = decided("write", r#""{\"path\"}""#, &["y\n"]).await;
    assert!(shown.starts_with("\n    \"{\\\"path\\\"}\"\n"), "{shown}");
    // Nothing that the command gets beside its text is hidden.
    let (_, shown) = decided("code_exec", r#"{"cmd": "ls", "as": "root"}"#, &["y\n"]).await;
    assert!(
        shown.starts_with("\n    ls\n    with {\"as\":\"root\"}\n"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_carriage_return_at_the_end_of_a_line_is_shown() {
    // The shell executes a program whose name ends with it.
    let (_, shown) = decided("code_exec", r#"{"cmd": "ls\r\npwd\r\n"}"#, &["y\n"]).await;
    assert!(
        shown.starts_with("\n    ls\\u{d}\n    pwd\\u{d}\n  Run this command?"),
        "{shown}"
    );
}

#[tokio::test]
async fn a_long_command_is_cut_with_its_size_until_all_of_it_is_asked_for() {
    let command = "echo line\n".repeat(100) + "rm -r .";
    let arguments = serde_json::json!({ "cmd": command }).to_string();
    let (answer, shown) = decided("code_exec", &arguments, &["v\n", "y\n"]).await;
    assert_eq!(answer, decision(Decision::Approve));
    let (first, second) = shown.split_once("[v]iew all > ").expect("it is cut");
    assert_eq!(first.matches("echo line").count(), 30);
    assert!(
        first.contains("… not all of it: it has 101 lines and 907 characters\n"),
        "{first}"
    );
    assert!(!first.contains("rm -r"));
    assert_eq!(second.matches("echo line").count(), 100);
    assert!(second.contains("\n    rm -r .\n"), "{second}");
}

#[tokio::test]
async fn an_edited_call_keeps_its_other_arguments() {
    // Without an editor, a line is typed.
    let call = ShownCall::new("code_exec", r#"{"cmd": "ls /", "as": "user"}"#);
    let edited = call.with_text("ls\n").expect("edited");
    assert_eq!(edited, r#"{"as":"user","cmd":"ls\n"}"#);
    let call = ShownCall::new("write", r#"{"path": "a"}"#);
    assert_eq!(
        call.with_text("{\"path\": \"b\"}"),
        Ok(r#"{"path":"b"}"#.to_owned())
    );
    assert!(
        call.with_text("[1]")
            .is_err_and(|error| error.contains("must be a JSON object"))
    );
    assert!(call.with_text(" \n").is_err());
}

#[tokio::test]
async fn an_editor_changes_the_call() {
    let (terminal, _channel, user) = TestTerminal::new();
    let (withdrawn, guard) = io::pipe().expect("a pipe");
    let prompt = Prompt {
        keys: user.keys.try_clone().expect("a copy"),
        screen: user.screen.try_clone().expect("a copy"),
        withdrawn,
        shown: None,
    };
    let call = ShownCall::new("code_exec", r#"{"cmd": "ls /"}"#);
    let edit = |editor: &str| prompt.edit_in(editor, &call);
    let edited = edit("sed -i s,/,/tmp,").expect("it runs").expect("edited");
    assert_eq!(
        call.with_text(&edited),
        Ok(r#"{"cmd":"ls /tmp"}"#.to_owned())
    );
    let failed = edit("false")
        .expect("it runs")
        .expect_err("nothing changed");
    assert_eq!(failed, "`false` failed: nothing was changed");
    drop(guard);
    assert!(edit("sleep 1000 #").is_err());
    drop(terminal);
}
