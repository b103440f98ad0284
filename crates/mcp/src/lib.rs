//! Tools of MCP servers: [`McpTools`] is their provider, [`McpServer`] one server.
//!
//! Servers that are started run in sandboxes, without a network unless their entry names hosts. What a server sends is
//! bounded, and its text is marked as data for the model. It is asked for tools only: prompts and resources are not read,
//! sampling is refused, and questions of a server (elicitation) go to the user of the session.
//!
//! Calls are never repeated unless the request did not reach the server: a call whose connection is lost ends with the
//! message that its outcome is unknown, and the next call connects again.
//!
//! In the other direction, [`serve_stdio`] offers tools to an MCP client.

#![forbid(unsafe_code)]

mod call_error;
mod config;
mod connection;
mod deferred;
mod handler;
mod http;
mod http_client;
mod http_server;
mod limits;
mod listing;
mod names;
mod package;
mod provider;
mod result;
mod schema;
mod server;
mod stdio;
mod surroundings;
mod tools;

pub use self::config::{InvalidMcpConfig, McpServer};
pub use self::http_server::HttpToolServer;
pub use self::package::{Ecosystem, InstalledPackage, PackageInstaller, ServerPackage};
pub use self::provider::McpTools;
pub use self::server::serve_stdio;
