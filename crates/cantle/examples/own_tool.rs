//! A custom tool and a structured result. The model is a recording, so no set-up is needed.
//!
//! `cargo run -p cantle --example own_tool`

#![expect(clippy::print_stdout, reason = "the program prints its result")]

use cantle::agent::{Agent, SessionOptions};
use cantle::clients::replay::ReplayClient;
use cantle::core::message::{AssistantBlock, AssistantMessage, ToolCall};
use cantle::core::tool::ToolError;
use cantle::tools::finish_schema;
use serde_json::{Value, json};

/// Tells how many people live in a city.
#[cantle::tool(concurrency_safe)]
async fn population(
    /// The city's name, in English.
    city: String,
) -> Result<String, ToolError> {
    match city.as_str() {
        "Oslo" => Ok("717,710".to_owned()),
        "Bergen" => Ok("291,940".to_owned()),
        // The message for the model.
        other => Err(ToolError::failed(format!(
            "`{other}` is not listed. Try Oslo or Bergen."
        ))),
    }
}

/// Returns a recorded turn that calls these tools.
fn turn(calls: &[(&str, Value)]) -> AssistantMessage {
    let call = |(name, arguments): &(&str, Value)| {
        AssistantBlock::ToolCall(ToolCall::new(None, *name, arguments.to_string()))
    };
    AssistantMessage::new(calls.iter().map(call).collect())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let recording = vec![
        // Two calls in one turn run in parallel, because the tool is declared concurrency-safe.
        turn(&[
            ("population", json!({"city": "Oslo"})),
            ("population", json!({"city": "Bergen"})),
        ]),
        turn(&[("answer", json!({"larger": "Oslo", "difference": 425_770}))]),
    ];
    let schema = json!({
        "type": "object",
        "properties": {"larger": {"type": "string"}, "difference": {"type": "integer"}},
        "required": ["larger", "difference"],
    });
    let agent = Agent::builder("geographer", ReplayClient::new("recorded", recording))
        .tool(population())
        .finish(finish_schema(
            "answer",
            "Gives the answer and ends.",
            schema,
        ))
        .build()?;

    let session = agent.session(SessionOptions::default()).await?;
    let outcome = session
        .run("Which is larger, Oslo or Bergen, and by how much?")?
        .outcome()
        .await;
    session.close().await?;

    let answer: Value = outcome.finish_as()?;
    println!("{answer}");
    Ok(())
}
