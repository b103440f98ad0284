use std::fs::OpenOptions;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cantle::core::ids::RunId;
use cantle::core::tool::{AskUser as _, QuestionId, ToolError};
use rustix::event::Timespec;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;

/// The other side of a terminal: what a person sees and types.
struct Desk {
    side: Arc<File>,
}

impl Desk {
    fn new() -> (Self, ChannelUser, Person) {
        let side = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
        grantpt(&side).expect("granted");
        unlockpt(&side).expect("unlocked");
        let name = ptsname(&side, Vec::new()).expect("a name");
        let name = name.to_str().expect("a path").to_owned();
        let terminal = OpenOptions::new().read(true).write(true).open(name);
        let terminal = terminal.expect("it opens");
        let (user, person) = Person::at(terminal.as_fd(), terminal.as_fd()).expect("a person");
        let side = Arc::new(File::from(side));
        (Self { side }, user, person)
    }

    fn types(&self, text: &str) {
        (&*self.side).write_all(text.as_bytes()).expect("typed");
    }

    /// Everything that is shown until `end` is, at its end.
    async fn shows(&self, end: &'static str) -> String {
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

/// What becomes of a question while a person does this at the desk.
async fn asked(
    user: &ChannelUser,
    person: &mut Person,
    question: Question,
    at_the_desk: impl Future<Output = ()>,
) -> Result<String, ToolError> {
    let answering = async {
        let question = person.next().await.expect("it is asked");
        person.answer(&question).await;
    };
    let (answer, (), ()) = tokio::join!(user.ask(question), answering, at_the_desk);
    answer.map(|answer| answer.to_string())
}

#[tokio::test]
async fn a_choice_is_shown_with_its_numbers_and_asked_for_until_it_is_one() {
    let (desk, user, mut person) = Desk::new();
    // Typed before there was a question, and there before it is.
    desk.types("Red\n");
    assert_eq!(desk.shows("\n").await, "Red\r\n");
    let question =
        Question::choice(id(), "Which \x1b[31mcolour?", ["Red", "Gr\x07een"]).with_default("Red");
    let answer = asked(&user, &mut person, question, async {
        let shown = desk.shows("> ").await;
        let (_, shown) = shown.split_once("\r\n? ").expect("a question");
        assert_eq!(
            shown,
            "Which colour?\r\n  1  Red\r\n  2  Green\r\n[1-2, Enter for Red] > "
        );
        desk.types("3\n");
        assert_eq!(
            desk.shows("> ").await,
            "3\r\n  the answer must be one of the 2 choices, by its text or its number\r\n\
             [1-2, Enter for Red] > "
        );
        desk.types("2\n");
    });
    assert_eq!(answer.await.expect("answered"), "Gr\x07een");
}

#[tokio::test]
async fn an_empty_line_is_the_default_and_lines_are_not_mixed_up() {
    let (desk, user, mut person) = Desk::new();
    let question = Question::confirm(id(), "Sure?").with_default("no");
    let answer = asked(&user, &mut person, question, async {
        desk.shows("[yes or no, Enter for no] > ").await;
        desk.types("\n");
    });
    assert_eq!(answer.await.expect("answered"), "no");
    let answer = asked(&user, &mut person, Question::new(id(), "Who?"), async {
        desk.shows("? Who?\r\n> ").await;
        desk.types("Grüße\n");
    });
    assert_eq!(answer.await.expect("answered"), "Grüße");
}

#[tokio::test]
async fn the_end_of_the_input_is_no_answer() {
    let (desk, user, mut person) = Desk::new();
    let question = Question::new(id(), "Who?").with_default("me");
    let answer = asked(&user, &mut person, question, async {
        desk.shows("> ").await;
        desk.types("\x04");
    });
    assert_eq!(
        answer.await.unwrap_err().to_string(),
        "The user gave no answer (standard input has ended). Decide yourself and go on, or finish."
    );
}

#[tokio::test]
async fn who_no_longer_waits_takes_nothing_of_what_is_typed() {
    let (desk, user, mut person) = Desk::new();
    let question = Question::new(id(), "First?");
    {
        let asking = async { tokio::join!(user.ask(question.clone()), person.answer(&question)) };
        tokio::select! {
            _ = asking => panic!("nobody answered"),
            _ = desk.shows("> ") => {}
        }
    }
    let answer = asked(&user, &mut person, Question::new(id(), "Second?"), async {
        desk.shows("? Second?\r\n> ").await;
        desk.types("here\n");
    });
    assert_eq!(answer.await.expect("answered"), "here");
}

#[tokio::test]
async fn a_question_that_is_taken_back_is_waited_for_no_longer() {
    let (desk, user, mut person) = Desk::new();
    let question = Question::new(id(), "Who?");
    let asking = async {
        tokio::select! {
            _ = user.ask(question) => panic!("nobody answered"),
            _ = desk.shows("> ") => {}
        }
    };
    let answering = async {
        let question = person.next().await.expect("it is asked");
        person.answer(&question).await;
    };
    tokio::join!(asking, answering);
    desk.shows("(nobody waits for the answer any more)\r\n")
        .await;
}
