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
fn a_choice_is_named_by_its_text_or_its_number() {
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
        assert_eq!(question.read(words), answer, "{words:?}");
    }
    for words in ["", "0", "7", "-1", "Re", "Green"] {
        let error = question.read(words).expect_err(words);
        assert_eq!(
            error.to_string(),
            "the answer must be one of the 6 choices, by its text or its number"
        );
    }
}

#[test]
fn yes_and_no_have_a_few_forms() {
    let question = Question::confirm(id(), "Sure?");
    for (words, yes) in [
        ("y", true),
        ("YES", true),
        ("true", true),
        (" no ", false),
        ("N", false),
    ] {
        assert_eq!(
            question.read(words),
            Ok(Answer::Confirm { yes }),
            "{words:?}"
        );
    }
    for words in ["", "perhaps", "yes please"] {
        let error = question.read(words).expect_err(words);
        assert_eq!(error.to_string(), "the answer must be yes or no");
    }
}

#[test]
fn no_words_mean_the_default_where_there_is_one() {
    let text = Question::new(id(), "Who?");
    assert_eq!(
        text.read(" ").expect_err("nothing").to_string(),
        "an answer is needed"
    );
    assert_eq!(
        text.clone()
            .with_default("me")
            .read("")
            .expect("the default")
            .to_string(),
        "me"
    );
    assert_eq!(
        text.with_default("me")
            .read(" you ")
            .expect("text")
            .to_string(),
        "you"
    );

    let confirm = Question::confirm(id(), "Sure?").with_default("no");
    assert_eq!(confirm.read("").expect("the default").to_string(), "no");
    let wrong = Question::choice(id(), "Which?", ["a", "b"]).with_default("c");
    assert!(wrong.read("").is_err());
    assert_eq!(wrong.read("b"), choice(2, "b"));
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
        question.read("b").expect("an answer"),
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
async fn where_nobody_is_there_the_model_is_told_to_decide() {
    assert!(!NoUser.is_available());
    let error = NoUser.ask(Question::new(id(), "Who?")).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "Nobody can be asked in this run. Decide yourself and go on."
    );
}
