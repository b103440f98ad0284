//! Suite for an [`LlmClient`] of OpenAI's Chat Completions or Responses, or Anthropic's Messages.
//!
//! The client talks to a [scripted server](crate::openai). The suite checks the trait's contract
//! (events, blocks, usage, error kinds) and the requests on the wire. A client may repeat failed calls,
//! but must report each attempt; test it with a period of at most two seconds for that.

mod bench;
mod errors;
mod prelude;
mod requests;
mod streams;
mod turns;

use std::sync::Arc;

use cantle_core::llm::LlmClient;

use self::bench::{ClientFactory, DEADLINE};
use super::report::Report;
use super::suite;

/// Dialect of a client under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dialect {
    /// OpenAI's Chat Completions.
    Chat,
    /// Anthropic's Messages.
    Messages,
    /// OpenAI's Responses.
    Responses,
}

/// Connection settings of a client under test.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The base URL, ending in `/v1`.
    pub url: String,
    /// The model's slug.
    pub model: String,
    /// The key to authenticate with.
    pub api_key: String,
    /// Whether to request streaming. A client with only one mode ignores it, which skips the case
    /// that compares both.
    pub stream: bool,
}

/// Runs every case against the clients of `dialect` created by `connect`. Only Chat Completions has
/// the cases that inspect the request format.
///
/// ```no_run
/// # use std::sync::Arc;
/// # async fn check(my_client: fn(&str, &str, &str) -> Arc<dyn cantle_core::llm::LlmClient>) {
/// use cantle_testkit::conformance::{Dialect, Endpoint, llm_client};
///
/// let connect = |to: &Endpoint| my_client(&to.url, &to.model, &to.api_key);
/// llm_client(Dialect::Chat, &connect).await.assert();
/// # }
/// ```
pub async fn llm_client(
    dialect: Dialect,
    connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
) -> Report {
    llm_client_cases(dialect, connect, &[]).await
}

/// Runs only the named cases, for work on one of them.
pub async fn llm_client_cases(
    dialect: Dialect,
    connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
    names: &[&str],
) -> Report {
    let chat = match dialect {
        Dialect::Chat => requests::chat_cases(),
        _ => Vec::new(),
    };
    let cases = [
        turns::cases(),
        errors::cases(),
        streams::cases(),
        requests::cases(),
        chat,
    ];
    let cases = cases
        .into_iter()
        .flatten()
        .map(|case| case.deadline(DEADLINE));
    suite::run(&ClientFactory { connect, dialect }, cases.collect(), names).await
}
