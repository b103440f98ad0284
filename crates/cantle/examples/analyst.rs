//! An agent that works on files: `cargo run -p cantle --example analyst -- data/ "Summarise it"`.
//!
//! Needs a model: `OPENAI_API_KEY` for OpenAI's, or `OPENAI_BASE_URL` for a server of your own.

#![expect(clippy::print_stdout, reason = "a program that shows its result")]

use std::sync::Arc;

use cantle::agent::{Agent, SessionOptions};
use cantle::backends::local::LocalBackend;
use cantle::clients::chat::ChatClient;
use cantle::tools::{CodeExec, Finish};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(input), Some(task)) = (arguments.next(), arguments.next()) else {
        return Err("usage: analyst PATH TASK".into());
    };
    let mut client = ChatClient::builder("gpt-5");
    if let Ok(key) = std::env::var("OPENAI_API_KEY") {
        client = client.api_key(key);
    }
    if let Ok(url) = std::env::var("OPENAI_BASE_URL") {
        client = client.base_url(url);
    }

    let agent = Agent::builder("analyst", client.build()?)
        .provider(CodeExec::new(Arc::new(LocalBackend::new())))
        .finish(Finish)
        .build()?;
    let options = SessionOptions::default()
        .input_file(input)
        .output_dir("out");
    let session = agent.session(options).await?;
    let outcome = session.run(task)?.outcome().await;
    session.close().await?;

    match (&outcome.finish, &outcome.error) {
        (Some(finish), None) => println!("{}", finish.params),
        (_, Some(error)) => println!("not finished: {error}"),
        _ => {}
    }
    for file in &outcome.outputs.saved {
        println!("{}", file.path.display());
    }
    println!("{} tokens", outcome.ledger.reported_usage().total());
    Ok(())
}
