//! Language-model agents that work by executing code.
//!
//! This crate re-exports the crates that an application with agents needs, and contains no code of its
//! own but the choice of default tools. An extension crate (a backend, a client, a tool) depends on `cantle-core` alone, which is
//! [`core`] here.
//!
//! ```no_run
//! use cantle::agent::{Agent, SessionOptions};
//! use cantle::backends::local::LocalBackend;
//! use cantle::clients::chat::ChatClient;
//! use cantle::tools::{CodeExec, Finish};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = ChatClient::builder("gpt-5").api_key(std::env::var("OPENAI_API_KEY")?).build()?;
//! let agent = Agent::builder("analyst", client)
//!     .provider(CodeExec::new(LocalBackend::new()))
//!     .finish(Finish)
//!     .build()?;
//!
//! let options = SessionOptions::default().input_file("data/").output_dir("out");
//! let session = agent.session(options).await?;
//! let outcome = session.run("Summarise data.csv in summary.md")?.outcome().await;
//! println!("{:?}: {} tokens", outcome.status(), outcome.ledger.reported_usage().total());
//! session.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! | feature | adds | default |
//! |---|---|---|
//! | `agent` | [`agent`]: the agent loop: `Agent`, `Session` and `Run` | yes |
//! | `backend-docker` | `backends::docker`: commands in containers of a Docker engine | no |
//! | `backend-local` | [`backends::local`]: commands on this machine | yes |
//! | `backend-remote` | `backends::remote`: commands in sandboxes of an E2B-compatible service | no |
//! | `browser` | `browser`: Chromium in the sandbox | no |
//! | `client-anthropic` | `clients::anthropic`: models over Anthropic Messages | no |
//! | `client-chat` | [`clients::chat`]: models over OpenAI Chat Completions | yes |
//! | `client-replay` | `clients::replay`: recorded turns in place of a model | no |
//! | `client-responses` | [`clients::responses`]: models over OpenAI Responses | yes |
//! | `client-retry` | `clients::retry`: retries and a shared rate limit for any model; clients over HTTP have them | no |
//! | `macros` | [`tool`]: the attribute that turns a function into a tool | yes |
//! | `mcp` | `mcp`: tools of MCP servers, which run in sandboxes or are reached over HTTP | no |
//! | `python` | `python`: Python in a sandbox: source facts, one-shot runs, sessions that keep variables | no |
//! | `tools` | [`tools`]: `code_exec`, `finish`, `view_image`, `user_input`, `calculator` | yes |
//! | `web` | `web`: `fetch_web_page`, `web_search` | no |
//!
//! Without features, there is only [`core`]: messages, traits, events and errors.

#![forbid(unsafe_code)]

#[cfg(feature = "agent")]
pub use cantle_agent as agent;
#[cfg(feature = "browser")]
pub use cantle_browser as browser;
#[cfg(any(
    feature = "client-anthropic",
    feature = "client-chat",
    feature = "client-replay",
    feature = "client-responses",
    feature = "client-retry"
))]
pub use cantle_clients as clients;
pub use cantle_core as core;
/// Turns a function into a tool; see [`core::tool`](macro@core::tool).
#[cfg(feature = "macros")]
pub use cantle_macros::tool_for_facade as tool;
#[cfg(feature = "mcp")]
pub use cantle_mcp as mcp;
#[cfg(feature = "python")]
pub use cantle_python as python;
#[cfg(feature = "tools")]
pub use cantle_tools as tools;
#[cfg(feature = "web")]
pub use cantle_web as web;

/// The execution backends.
#[cfg(any(
    feature = "backend-docker",
    feature = "backend-local",
    feature = "backend-remote"
))]
pub mod backends {
    #[cfg(feature = "backend-docker")]
    pub use cantle_backends_docker as docker;
    #[cfg(feature = "backend-local")]
    pub use cantle_backends_local as local;
    #[cfg(feature = "backend-remote")]
    pub use cantle_backends_remote as remote;
}

/// Returns the tools that most agents have: `code_exec` with sandboxes on this machine, and `fetch_web_page`.
///
/// `web_search` is there only with a search service and its key.
///
/// ```no_run
/// # fn agent(client: cantle::clients::chat::ChatClient, key: String) -> Result<(), Box<dyn std::error::Error>> {
/// use cantle::agent::Agent;
/// use cantle::tools::Finish;
/// use cantle::web::SearchService;
///
/// let (commands, web) = cantle::default_tools();
/// let agent = Agent::builder("helper", client)
///     .provider(commands)
///     .provider(web.search(SearchService::brave(key)))
///     .finish(Finish)
///     .build()?;
/// # Ok(())
/// # }
/// ```
#[cfg(all(feature = "backend-local", feature = "tools", feature = "web"))]
pub fn default_tools() -> (tools::CodeExec, web::WebTools) {
    let backend = backends::local::LocalBackend::new();
    (tools::CodeExec::new(backend), web::WebTools::new())
}

/// Compiles the Rust code in the guides.
#[cfg(doctest)]
mod guides {
    #[doc = include_str!("../../../README.md")]
    mod readme {}
    #[doc = include_str!("../../../docs/extending.md")]
    mod extending {}
    #[doc = include_str!("../../../docs/library.md")]
    mod library {}
    #[cfg(feature = "browser")]
    #[doc = include_str!("../../../docs/browser.md")]
    mod browser {}
    #[cfg(feature = "mcp")]
    #[doc = include_str!("../../../docs/mcp.md")]
    mod mcp {}
    #[cfg(all(feature = "python", feature = "backend-docker"))]
    #[doc = include_str!("../../../docs/python.md")]
    mod python {}
    #[cfg(feature = "web")]
    #[doc = include_str!("../../../docs/tools.md")]
    mod tools {}
}
