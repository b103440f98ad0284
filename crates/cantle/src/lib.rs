//! Language-model agents that work by executing code.
//!
//! This is the crate for people who build agents: it re-exports the parts, and has nothing of its
//! own. Who writes a backend, a client or a tool for others depends on [`core`] alone, as
//! `cantle-core`.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use cantle::agent::{Agent, SessionOptions};
//! use cantle::backends::local::LocalBackend;
//! use cantle::clients::chat::ChatClient;
//! use cantle::tools::{CodeExec, Finish};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = ChatClient::builder("gpt-5").api_key(std::env::var("OPENAI_API_KEY")?).build()?;
//! let agent = Agent::builder("analyst", client)
//!     .provider(CodeExec::new(Arc::new(LocalBackend::new())))
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
//! | feature | brings | default |
//! |---|---|---|
//! | `agent` | [`agent`]: the loop, as `Agent`, `Session` and `Run` | yes |
//! | `backend-docker` | `backends::docker`: commands in containers of a Docker engine | no |
//! | `backend-local` | [`backends::local`]: commands on this machine | yes |
//! | `backend-remote` | `backends::remote`: commands in sandboxes behind an E2B-style API | no |
//! | `client-anthropic` | `clients::anthropic`: models over Anthropic Messages | no |
//! | `client-chat` | [`clients::chat`]: models over OpenAI Chat Completions | yes |
//! | `client-limit` | `clients::limit`: one rate limit for all models of an account | no |
//! | `client-replay` | `clients::replay`: a model whose turns come from a recording | no |
//! | `client-responses` | `clients::responses`: models over OpenAI Responses | no |
//! | `macros` | [`tool`]: the attribute that makes a tool of a function | yes |
//! | `tools` | [`tools`]: `code_exec`, `finish`, `view_image`, `user_input`, `calculator` | yes |
//!
//! Without any of them there is [`core`]: messages, traits, events and errors.

#![forbid(unsafe_code)]

#[cfg(feature = "agent")]
pub use cantle_agent as agent;
#[cfg(any(
    feature = "client-anthropic",
    feature = "client-chat",
    feature = "client-limit",
    feature = "client-replay",
    feature = "client-responses"
))]
pub use cantle_clients as clients;
pub use cantle_core as core;
/// Makes a tool of a function; documented at [`core::tool`](macro@core::tool).
#[cfg(feature = "macros")]
pub use cantle_macros::tool_for_facade as tool;
#[cfg(feature = "tools")]
pub use cantle_tools as tools;

/// Where code is executed.
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
