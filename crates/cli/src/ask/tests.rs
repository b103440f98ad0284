use std::fs::OpenOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle::core::ids::RunId;
use cantle::core::tool::{AskUser as _, QuestionId, ToolError};
use rustix::event::Timespec;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

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

/// Asks a question while `input` happens at the terminal, and returns the answer.
async fn asked(
    user: &ChannelUser,
    terminal_user: &mut TerminalUser,
    question: Question,
    input: impl Future<Output = ()>,
) -> Result<String, ToolError> {
    let answering = async {
        let question = terminal_user.next_question().await.expect("a question");
        terminal_user.answer(&question).await;
    };
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
        let asking = async { tokio::join!(channel.ask(question.clone()), user.answer(&question)) };
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
    let answering = async {
        let question = user.next_question().await.expect("a question");
        user.answer(&question).await;
    };
    tokio::join!(asking, answering);
    terminal
        .read_until("(the question was withdrawn)\r\n")
        .await;
}
