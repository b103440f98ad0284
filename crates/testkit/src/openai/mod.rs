//! A scripted server that speaks OpenAI's Chat Completions and Responses, and Anthropic's Messages,
//! for tests and benches. The request's path selects the dialect; the script is the same for all.
//!
//! The server uses JSON, server-sent events and no type of this workspace, so a mistake in a client
//! can't hide in a shared type. A test writes a [`Script`] of [`Turn`]s and points its client at
//! [`ScriptedServer::url`].
//!
//! The number of assistant messages in a request selects the turn. A request repeated by a retry or
//! a resumed run gets the same turn, and the only state per run is the number of attempts. Failures
//! are scripted per turn and attempt, see [`Fault`].
//!
//! ```
//! use cantle_testkit::openai::{Fault, Reply, Script, ScriptedServer, ToolCall, Turn};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> std::io::Result<()> {
//! let busy = Reply::error(429).header("retry-after", "1");
//! let script = Script::new()
//!     .turn(Turn::tool(ToolCall::new("look", r#"{"at": "."}"#)).fault(Fault::Reply(busy)))
//!     .turn(Turn::text("There are two files."));
//! let server = ScriptedServer::start(script).await?;
//! // … run a client against `server.url()` …
//! assert_eq!(server.requests().len(), 0);
//! # Ok(())
//! # }
//! ```

mod chat;
mod delivery;
mod fault;
mod messages;
mod record;
mod request;
mod responses;
mod script;
mod server;
mod wire;

pub use fault::{Fault, Reply};
pub use request::Request;
pub use script::{Script, ToolCall, Turn, Usage};
pub use server::{ScriptedServer, ServerOptions, serve_until};
