use serde_json::json;

use super::*;

fn id() -> QuestionId {
    let run = "00000000000070008000000000000001"
        .parse()
        .expect("a run id");
    QuestionId::new(run, "call-1")
}

fn choice(number: usize, text: &str) -> Result<Answer, InvalidAnswer> {
    let text = text.to_owned();
    Ok(Answer::Choice { number, text })
}

#[test]
fn choices_are_given_by_text_or_number() {
    let question = Question::choice(
        id(),
        "Which?",
        ["Red", " green ", "GREEN", "1", "Blue", "Red"],
    );
    let cases = [
        ("Red", choice(1, "Red")),
        ("  red\n", choice(1, "Red")),
        ("green", choice(2, "green")),
        ("GREEN", choice(3, "GREEN")),
        // A text goes before a number.
        ("1", choice(4, "1")),
        ("2", choice(2, "green")),
        ("5", choice(5, "Blue")),
    ];
    for (words, answer) in cases {
        assert_eq!(question.parse_answer(words), answer, "{words:?}");
    }
    for words in ["", "0", "7", "-1", "Re", "Green"] {
        let error = question.parse_answer(words).expect_err(words);
        assert_eq!(
            error.to_string(),
            "the answer must be one of the 6 choices, by its text or its number"
        );
    }
}

#[test]
fn yes_and_no_have_several_spellings() {
    let question = Question::confirm(id(), "Sure?");
    for (words, yes) in [
        ("y", true),
        ("YES", true),
        ("true", true),
        (" no ", false),
        ("N", false),
    ] {
        assert_eq!(
            question.parse_answer(words),
            Ok(Answer::Confirm { yes }),
            "{words:?}"
        );
    }
    for words in ["", "perhaps", "yes please"] {
        let error = question.parse_answer(words).expect_err(words);
        assert_eq!(error.to_string(), "the answer must be yes or no");
    }
}

#[test]
fn empty_text_means_the_default() {
    let text = Question::new(id(), "Who?");
    assert_eq!(
        text.parse_answer(" ").expect_err("nothing").to_string(),
        "an answer is needed"
    );
    assert_eq!(
        text.clone()
            .with_default("me")
            .parse_answer("")
            .expect("the default")
            .to_string(),
        "me"
    );
    assert_eq!(
        text.with_default("me")
            .parse_answer(" you ")
            .expect("text")
            .to_string(),
        "you"
    );

    let confirm = Question::confirm(id(), "Sure?").with_default("no");
    assert_eq!(
        confirm.parse_answer("").expect("the default").to_string(),
        "no"
    );
    let wrong = Question::choice(id(), "Which?", ["a", "b"]).with_default("c");
    assert!(wrong.parse_answer("").is_err());
    assert_eq!(wrong.parse_answer("b"), choice(2, "b"));
}

#[test]
fn questions_and_answers_are_json() {
    let question = Question::choice(id(), "Which?", ["a", "b"]).with_default("a");
    let written = json!({
        "id": {"run": "00000000000070008000000000000001", "call_id": "call-1"},
        "text": "Which?",
        "kind": "choice",
        "choices": ["a", "b"],
        "default": "a",
    });
    assert_eq!(serde_json::to_value(&question).expect("JSON"), written);
    assert_eq!(
        serde_json::from_value::<Question>(written).expect("a question"),
        question
    );
    assert_eq!(
        question.id.to_string(),
        "00000000000070008000000000000001/call-1"
    );

    for (question, kind) in [
        (Question::new(id(), "Who?"), "text"),
        (Question::confirm(id(), "Sure?"), "confirm"),
    ] {
        let written = serde_json::to_value(&question).expect("JSON");
        assert_eq!(written["kind"], kind);
        assert_eq!(
            serde_json::from_value::<Question>(written).expect("a question"),
            question
        );
    }
    for answer in [
        question.parse_answer("b").expect("an answer"),
        Answer::Confirm { yes: true },
        Answer::Text {
            text: "x".to_owned(),
        },
    ] {
        let written = serde_json::to_value(&answer).expect("JSON");
        assert_eq!(
            serde_json::from_value::<Answer>(written).expect("an answer"),
            answer
        );
    }
}

#[tokio::test]
async fn without_a_user_the_model_must_decide() {
    assert!(!NoUser.is_available());
    let error = NoUser.ask(Question::new(id(), "Who?")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "There is no user to ask in this run. Decide yourself and continue."
    );
}
