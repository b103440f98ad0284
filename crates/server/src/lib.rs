//! Serves sandboxes of any backend over an E2B-compatible API.
//!
//! A [`Server`] wraps a [`Backend`](cantle_core::sandbox::Backend) and serves E2B's official SDKs on one
//! port: the *control plane* (REST: create, list, kill, pause, …) and, for each sandbox, *envd* (files
//! over HTTP, processes and directories over Connect RPC). A request's headers or host name select one
//! of the two. The only state is the fleet: each sandbox's owner, deadline, files and processes.
//!
//! Unsupported requests get errors in the API's own format; nothing that can't be enforced is silently
//! accepted. `docs/serve.md` lists the supported features and the differences.
//!
//! ```no_run
//! # async fn serve(backend: std::sync::Arc<dyn cantle_core::sandbox::Backend>)
//! # -> Result<(), Box<dyn std::error::Error>> {
//! use cantle_server::Server;
//! use tokio_util::sync::CancellationToken;
//!
//! let server = Server::builder(backend).bind("127.0.0.1:3010".parse()?).await?;
//! println!("E2B_API_URL=http://{}", server.address());
//! let shutdown = CancellationToken::new();
//! server.serve(shutdown).await?;
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod accounts;
mod address;
mod api_error;
mod body;
mod connections;
mod control;
mod envd;
mod error;
mod extension;
mod fleet;
mod gateway;
mod interpreter;
mod keys;
mod ports;
mod random;
mod server;
mod settings;
mod tasks;
mod tools;
mod unread_body;

pub use axum::body::Body;

pub use self::error::{ServeError, ServeErrorKind};
pub use self::extension::{Extension, ExtensionClient};
pub use self::fleet::SandboxPlace;
pub use self::server::{Server, ServerBuilder};
pub use self::settings::ServerLimits;
pub use self::tools::ToolService;

/// Compiles the Rust code in the guide.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/serve.md")]
mod guide {}
