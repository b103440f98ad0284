//! A scripted server that speaks OpenAI's Chat Completions and Responses, and Anthropic's Messages,
//! for tests and benches. Which of them is the path of the request; the script is the same.
//!
//! It owns the model's side of the wire and nothing else: it knows JSON, server-sent events and the
//! ways in which they break, and no type of this workspace, so that a mistake in a client can't hide
//! in a type both of them use. A test writes a [`Script`] of [`Turn`]s and points its client at
//! [`ScriptedServer::url`].
//!
//! Which turn answers a request is a property of the request: the number of assistant messages in
//! it. A request that is sent again, by a retry or by a resumed run, gets the same turn again, and
//! the server keeps nothing per run but the count of attempts. What goes wrong is scripted per turn
//! and per attempt, see [`Fault`].
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

mod delivery;
mod fault;
mod messages;
mod record;
mod responses;
mod script;
mod server;
mod wire;

pub use fault::{Fault, Reply};
pub use record::Request;
pub use script::{Script, ToolCall, Turn, Usage};
pub use server::{ScriptedServer, ServerOptions, serve_until};
