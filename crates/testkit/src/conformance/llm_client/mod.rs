//! Suite for an [`LlmClient`] of OpenAI's Chat Completions or Responses, or Anthropic's Messages.
//!
//! The client talks to a [scripted server](crate::openai). The suite checks the trait's contract
//! (events, blocks, usage, error kinds) and the requests on the wire. A client may retry, but must
//! report it.

mod bench;
mod errors;
mod requests;
mod streams;
mod turns;

use std::sync::Arc;

use cantle_core::llm::LlmClient;

use self::bench::ClientFactory;
use super::report::Report;
use super::suite::{self, Case};

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

/// Runs every case against the Chat Completions clients created by `connect`.
///
/// ```no_run
/// # use std::sync::Arc;
/// # async fn check(my_client: fn(&str, &str, &str) -> Arc<dyn cantle_core::llm::LlmClient>) {
/// use cantle_testkit::conformance;
///
/// let report = conformance::llm_client(&|to| my_client(&to.url, &to.model, &to.api_key)).await;
/// report.assert();
/// # }
/// ```
pub async fn llm_client(connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>) -> Report {
    llm_client_cases(connect, &[]).await
}

/// Runs the cases against clients of another dialect, without those that inspect the request format
/// of Chat Completions.
pub async fn llm_client_of(
    dialect: Dialect,
    connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
) -> Report {
    run(dialect, connect, &[]).await
}

/// Runs only the named cases, for work on one of them.
pub async fn llm_client_cases(
    connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
    names: &[&str],
) -> Report {
    run(Dialect::Chat, connect, names).await
}

async fn run(
    dialect: Dialect,
    connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
    names: &[&str],
) -> Report {
    let factory = ClientFactory { connect, dialect };
    suite::run(&factory, cases(dialect), names).await
}

fn cases<'c>(dialect: Dialect) -> Vec<Case<ClientFactory<'c>>> {
    [
        turns::cases(),
        errors::cases(),
        streams::cases(),
        requests::cases(dialect),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// A case named after its function.
macro_rules! case {
    ($name:ident) => {
        $crate::conformance::suite::Case::new(stringify!($name), |factory: &ClientFactory<'_>| {
            Box::pin($name(factory))
        })
        .deadline($crate::conformance::llm_client::bench::DEADLINE)
    };
}
use case;
