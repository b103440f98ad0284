//! Serves sandboxes of any backend over an E2B-compatible API.
//!
//! A [`Server`] is made from a [`Backend`](cantle_core::sandbox::Backend) and speaks to E2B's official
//! SDKs on one port: the *control plane* (REST: create, list, kill, pause, …) and, for each sandbox,
//! what is called *envd* there (files over HTTP, processes and directories over Connect RPC). Which of
//! the two a request means is told by its headers, or by its host name. There is no state but the fleet
//! of sandboxes: who owns each, how long it lives, and its files and processes, which the backend has.
//!
//! What a caller may not do is said in the API's own words; nothing that can't be enforced is silently
//! accepted. `docs/serve.md` lists what is supported and what differs.
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

mod address;
mod body;
mod control;
mod envd;
mod error;
mod fleet;
mod keys;
mod listening;
mod random;
mod refusal;
mod remains;
mod server;
mod settings;

pub use self::error::{ServeError, ServeErrorKind};
pub use self::server::Server;
pub use self::settings::{ServerBuilder, ServerLimits};
