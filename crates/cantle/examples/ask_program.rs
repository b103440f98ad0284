//! A program that answers the model's questions. The model is a recording, so no set-up is needed.
//!
//! `cargo run -p cantle --features client-replay --example ask_program`

#![expect(clippy::print_stdout, reason = "the program prints its result")]

use cantle::agent::{Agent, SessionOptions};
use cantle::clients::replay::ReplayClient;
use cantle::core::message::{AssistantBlock, AssistantMessage, ToolCall};
use cantle::core::tool::{QuestionKind, user_channel};
use cantle::tools::{Finish, calculator, user_input};
use serde_json::{Value, json};

/// Returns a recorded turn that calls one tool.
fn turn(name: &str, arguments: &Value) -> AssistantMessage {
    let call = ToolCall::new(None, name, arguments.to_string());
    AssistantMessage::new(vec![AssistantBlock::ToolCall(call)])
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let question = json!({
        "question": "Which unit shall I use?",
        "question_type": "choice",
        "choices": ["metres", "feet"],
        "default": "metres",
    });
    let recording = vec![
        turn("user_input", &question),
        turn(
            "calculator",
            &json!({"expression": "round(8848.86 / 0.3048)"}),
        ),
        turn("finish", &json!({"reason": "29032 feet"})),
    ];
    let (user, mut questions) = user_channel();
    let agent = Agent::builder("surveyor", ReplayClient::new("recorded", recording))
        .user(user)
        .tool(user_input())
        .tool(calculator())
        .finish(Finish)
        .build()?;

    // Answers questions concurrently with the run.
    let answering = tokio::spawn(async move {
        let answers = questions.answers();
        while let Some(question) = questions.next().await {
            println!("{} asks: {}", question.id, question.text);
            let answered = match &question.kind {
                QuestionKind::Choice { .. } => answers.answer(&question.id, "feet").map(drop),
                _ => answers.decline(&question.id, "This program answers only choices."),
            };
            if let Err(error) = answered {
                println!("{error}");
            }
        }
    });

    let session = agent.session(SessionOptions::default()).await?;
    let outcome = session.run("How high is Everest?")?.outcome().await;
    session.close().await?;
    answering.abort();

    let finish = outcome.finish.ok_or("the run did not finish")?;
    println!("{}", finish.params);
    Ok(())
}
