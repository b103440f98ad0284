//! An agent that works on files: `cargo run -p cantle --features client-replay --example analyst -- data/ "Summarise it"`.
//!
//! It needs a model: set `OPENAI_API_KEY` for OpenAI, or `OPENAI_BASE_URL` for another server.
//! `ANALYST_RECORD=FILE` records the model calls, and `ANALYST_REPLAY=FILE` replays them without a model.

#![expect(clippy::print_stdout, reason = "the program prints its result")]

use std::env;
use std::error::Error;
use std::fs::{self, File};
use std::sync::Arc;

use cantle::agent::{Agent, SessionOptions};
use cantle::backends::local::LocalBackend;
use cantle::clients::chat::ChatClient;
use cantle::clients::record::Recorder;
use cantle::clients::replay::ReplayClient;
use cantle::core::llm::LlmClient;
use cantle::tools::{CodeExec, Finish};

/// Returns a client over HTTP, or one that replays a recording.
fn model() -> Result<Arc<dyn LlmClient>, Box<dyn Error>> {
    let key = env::var("OPENAI_API_KEY").unwrap_or_default();
    let mut client: Arc<dyn LlmClient> = match env::var_os("ANALYST_REPLAY") {
        Some(path) => Arc::new(ReplayClient::from_jsonl(&fs::read(path)?)?),
        None => {
            let mut client = ChatClient::builder("gpt-5").api_key(key.as_str());
            if let Ok(url) = env::var("OPENAI_BASE_URL") {
                client = client.base_url(url);
            }
            Arc::new(client.build()?)
        }
    };
    if let Some(path) = env::var_os("ANALYST_RECORD") {
        // Requests do not contain the key, but the model might repeat it.
        let secrets = vec![key.into()];
        client = Arc::new(Recorder::new(client, File::create(path)?, secrets)?);
    }
    Ok(client)
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let (Some(input), Some(task)) = (arguments.next(), arguments.next()) else {
        return Err("usage: analyst PATH TASK".into());
    };
    let agent = Agent::builder("analyst", model()?)
        .provider(CodeExec::new(LocalBackend::new()))
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
