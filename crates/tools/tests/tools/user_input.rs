//! Asking the user: what is asked, and what comes back.

use std::sync::Arc;

use cantle_core::ids::RunId;
use cantle_core::metadata::Metadata;
use cantle_core::tool::{
    NoUser, QuestionKind, ToolContext, ToolErrorKind, ToolOutput, user_channel,
};
use cantle_tools::user_input;
use serde_json::{Value, json};

use crate::session::call;

fn used(output: ToolOutput) -> ToolOutput {
    output.with_metadata(Metadata::uses(1))
}

#[test]
fn spec_of_user_input() {
    let tool = user_input();
    let spec = tool.spec();
    let parameters = serde_json::to_string_pretty(spec.parameters()).expect("JSON");
    insta::assert_snapshot!(
        "user_input_spec",
        format!("{}\n\n{}\n\n{parameters}", spec.name(), spec.description())
    );
    // Two questions at once would be one too many for a person.
    assert!(!tool.properties().concurrency_safe);
}

#[tokio::test]
async fn answers_are_normalized() {
    let choices = || QuestionKind::Choice {
        choices: vec!["PDF".to_owned(), "Markdown".to_owned()],
    };
    let cases = [
        (
            json!({"question": " What is it called? "}),
            (QuestionKind::Text, None),
            ("report ", "report"),
        ),
        (
            json!({"question": "Which?", "question_type": "choice", "choices": ["PDF", "Markdown"], "default": "PDF"}),
            (choices(), Some("PDF")),
            ("2", "Markdown"),
        ),
        (
            json!({"question": "Which?", "question_type": "choice", "choices": ["PDF", "Markdown"], "default": "pdf"}),
            (choices(), Some("pdf")),
            ("", "PDF"),
        ),
        (
            json!({"question": "Sure?", "question_type": "confirm", "choices": null, "default": ""}),
            (QuestionKind::Confirm, None),
            ("Y", "yes"),
        ),
    ];
    for (arguments, (kind, default), (words, answer)) in cases {
        let (user, mut questions) = user_channel();
        let mut cx = ToolContext::new(RunId::new(), "call-1");
        cx.user = Arc::new(user);
        let id = cx.question_id();
        let tool = user_input();
        let asking = call(&tool, arguments.clone(), cx);
        let answering = async {
            let question = questions.next().await.expect("it is asked");
            let text = arguments["question"].as_str().map(str::trim);
            assert_eq!(Some(question.text.as_str()), text);
            assert_eq!((question.id, question.kind), (id.clone(), kind));
            assert_eq!(question.default.as_deref(), default);
            questions.answers().answer(&id, words).expect("an answer");
        };
        let (output, ()) = tokio::join!(asking, answering);
        assert_eq!(output.expect("it works"), used(ToolOutput::text(answer)));
    }
}

#[tokio::test]
async fn invalid_questions_are_refused_with_advice() {
    let many: Vec<Value> = (0..101).map(|number| json!(number.to_string())).collect();
    let cases = [
        json!({"question": "  "}),
        json!({"question": "Which?", "question_type": "choice"}),
        json!({"question": "Which?", "question_type": "choice", "choices": ["a", " "]}),
        json!({"question": "Which?", "question_type": "choice", "choices": many}),
        json!({"question": "Which?", "choices": ["a", "b"]}),
        json!({"question": "Which?", "question_type": "choice", "choices": ["a", "b"], "default": "c"}),
        json!({"question": "Sure?", "question_type": "confirm", "default": "perhaps"}),
        // No user is attached.
        json!({"question": "Sure?", "question_type": "confirm", "default": "no"}),
    ];
    let mut report = String::new();
    for arguments in cases {
        let mut cx = ToolContext::new(RunId::new(), "call-1");
        cx.user = Arc::new(NoUser);
        let output = call(&user_input(), arguments, cx).await.expect("it works");
        assert!(!output.success);
        assert_eq!(output.metadata, Some(Metadata::uses(1)));
        report.push_str(&format!("{}\n", output.content.text()));
    }
    insta::assert_snapshot!("user_input_refused", report);
}

#[tokio::test]
async fn a_question_is_cancelled_with_its_call() {
    let (user, mut questions) = user_channel();
    let mut cx = ToolContext::new(RunId::new(), "call-1");
    cx.user = Arc::new(user);
    let cancellation = cx.cancellation.clone();
    let id = cx.question_id();
    let tool = user_input();
    let asking = call(&tool, json!({"question": "Who?"}), cx);
    let cancelling = async {
        questions.next().await.expect("it is asked");
        cancellation.cancel();
    };
    let (output, ()) = tokio::join!(asking, cancelling);
    assert_eq!(output.unwrap_err().kind(), ToolErrorKind::Cancelled);
    assert!(questions.answers().answer(&id, "me").is_err());
}
