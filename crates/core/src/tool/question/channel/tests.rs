use std::error::Error as _;

use futures_util::FutureExt as _;

use super::*;
use crate::ids::RunId;

fn question(call_id: &str) -> Question {
    Question::choice(QuestionId::new(RunId::new(), call_id), "Which?", ["a", "b"])
}

#[tokio::test]
async fn questions_are_answered_in_any_order() {
    let (user, mut questions) = user_channel();
    assert!(user.is_available());
    let (first, second) = (question("first"), question("second"));
    let asking = async { tokio::join!(user.ask(first.clone()), user.ask(second.clone())) };
    let answering = async {
        assert_eq!(questions.next().await, Some(first.clone()));
        assert_eq!(questions.next().await, Some(second.clone()));
        let answers = questions.answers();
        answers.answer(&second.id, "2").expect("an answer");
        let error = answers.answer(&second.id, "2").unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("no question {} is open", second.id)
        );
        assert_eq!(error, AnswerError::NotOpen(second.id.clone()));
        let error = answers.answer(&first.id, "c").unwrap_err();
        assert!(matches!(error, AnswerError::Invalid(..)), "{error}");
        assert!(error.source().is_none(), "the message has it");
        answers.answer(&first.id, "a").expect("an answer");
    };
    let ((first, second), ()) = tokio::join!(asking, answering);
    assert_eq!(first.expect("answered").to_string(), "a");
    assert_eq!(second.expect("answered").to_string(), "b");
}

#[tokio::test]
async fn a_question_can_be_declined() {
    let (user, mut questions) = user_channel();
    let asking = user.ask(question("call"));
    let declining = async {
        let question = questions.next().await.expect("a question");
        let answers = questions.answers();
        answers
            .decline(&question.id, "The user is away.")
            .expect("it is open");
        assert!(answers.decline(&question.id, "again").is_err());
    };
    let (asked, ()) = tokio::join!(asking, declining);
    assert_eq!(asked.unwrap_err().to_string(), "The user is away.");
}

#[tokio::test]
async fn withdrawn_questions_are_not_received() {
    let (user, mut questions) = user_channel();
    let (gone, stays) = (question("gone"), question("stays"));
    assert!(user.ask(gone.clone()).now_or_never().is_none());
    assert!(questions.answers().answer(&gone.id, "a").is_err());
    let mut asking = user.ask(stays.clone());
    assert!((&mut asking).now_or_never().is_none());
    let second = user.ask(stays.clone()).await.unwrap_err();
    assert_eq!(
        second.to_string(),
        "This call already has an open question."
    );
    assert_eq!(questions.next().await, Some(stays.clone()));
    questions
        .answers()
        .answer(&stays.id, "b")
        .expect("an answer");
    assert_eq!(asking.await.expect("answered").to_string(), "b");
    drop(user);
    assert_eq!(questions.next().await, None);
}

#[tokio::test]
async fn dropping_the_receiver_fails_open_questions() {
    let (user, questions) = user_channel();
    let answers = questions.answers();
    let mut asking = user.ask(question("call"));
    assert!((&mut asking).now_or_never().is_none());
    drop(questions);
    let no_user = "There is no user to ask in this run. Decide yourself and continue.";
    assert_eq!(asking.await.unwrap_err().to_string(), no_user);
    assert!(!user.is_available());
    let late = user.ask(question("late")).await.unwrap_err();
    assert_eq!(late.to_string(), no_user);
    assert_eq!(format!("{answers:?}"), "AnswerHandle([])");
}

#[tokio::test]
async fn closing_of_a_question_can_be_awaited() {
    let (user, questions) = user_channel();
    let answers = questions.answers();
    for end in 0..3 {
        let question = question("call");
        let mut asking = Box::pin(user.ask(question.clone()));
        assert!((&mut asking).now_or_never().is_none());
        let mut closed = Box::pin(answers.closed(&question.id));
        assert!((&mut closed).now_or_never().is_none());
        match end {
            0 => drop(asking),
            1 => drop(answers.answer(&question.id, "a").expect("an answer")),
            _ => answers.decline(&question.id, "no").expect("it is open"),
        }
        closed.await;
    }
    answers.closed(&question("never asked").id).await;
}
