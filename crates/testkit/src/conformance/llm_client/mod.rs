//! What an [`LlmClient`] that speaks OpenAI's Chat Completions or Responses, or Anthropic's Messages,
//! must do.
//!
//! The client talks to a [scripted server](crate::openai). What is asked for is what the trait
//! promises (events, blocks, counters, kinds of errors) and what the wire must not show (a key
//! where it doesn't belong). A client may retry or not; it must say so when it does.

mod bench;
mod errors;
mod requests;
mod streams;
mod turns;

use std::sync::Arc;

use cantle_core::llm::LlmClient;

use self::bench::Harness;
use super::report::Report;
use super::suite::{self, Case};

/// What a client under test speaks.
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

/// What a client under test is pointed at.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Endpoint {
    /// The base URL, ending in `/v1`.
    pub url: String,
    /// The model's slug.
    pub model: String,
    /// The key to authenticate with.
    pub api_key: String,
    /// Whether answers are to be asked for as streams. A client that knows only one way ignores it,
    /// and the case that compares both is skipped.
    pub stream: bool,
}

/// Runs every case against the clients of Chat Completions that `connect` makes.
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

/// The same for clients of another dialect. What depends on how Chat Completions write a request is
/// left out there.
pub async fn llm_client_of(
    dialect: Dialect,
    connect: &dyn Fn(&Endpoint) -> Arc<dyn LlmClient>,
) -> Report {
    run(dialect, connect, &[]).await
}

/// Runs the cases of these names: while one of them is being mended.
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
    let harness = Harness { connect, dialect };
    suite::run(&harness, cases(dialect), names).await
}

fn cases<'c>(dialect: Dialect) -> Vec<Case<Harness<'c>>> {
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
        $crate::conformance::suite::Case::new(stringify!($name), |harness: &Harness<'_>| {
            Box::pin($name(harness))
        })
        .deadline($crate::conformance::llm_client::bench::DEADLINE)
    };
}
use case;
