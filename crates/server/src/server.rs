//! The server: one port for the control plane and all sandboxes.

mod builder;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fmt, io};

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use cantle_core::sandbox::{Backend, SandboxHandle};
use http::Request;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::builder::ServerBuilder;
use crate::address::{self, Destination};
use crate::api_error::ApiError;
use crate::connections;
use crate::control::Control;
use crate::error::ServeError;
use crate::fleet::Fleet;
use crate::gateway;
use crate::tools::{ToolRoutes, ToolService};

/// A bound server; [`Server::serve`] starts serving.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    dispatcher: Dispatcher,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Returns a builder for a server with sandboxes of `backend`.
    ///
    /// SDKs expect the home directory `/home/user`; configure the backend's working directory accordingly
    /// (`LocalBackend::workspace_at`). Responses contain the backend's actual paths.
    pub fn builder(backend: impl Backend + 'static) -> ServerBuilder {
        ServerBuilder::new(Arc::new(backend))
    }

    /// Serves tools, too: `/manifest`, `/execute`, `/files`, and `/health` with a body. The signed addresses of
    /// their files may begin with [`address`](Self::address).
    ///
    /// Must be called on a Tokio runtime.
    #[must_use]
    pub fn tools(mut self, service: ToolService) -> Self {
        self.dispatcher.tools = Some(ToolRoutes::new(service, self.fleet()));
        self
    }

    fn fleet(&self) -> &Arc<Fleet> {
        &self.dispatcher.control.fleet
    }

    /// Returns the local address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the handles of sandboxes that an earlier server paused, or `None` if a record is
    /// unreadable. Other kept sandboxes of this server's backend can be removed: a server killed while
    /// pausing a sandbox may have kept it without recording it.
    pub fn paused(&self) -> Option<Vec<SandboxHandle>> {
        self.fleet().paused()
    }

    /// Returns the records of paused sandboxes that could not be read, with the reasons. The files stay as
    /// they are, and so do all kept sandboxes.
    pub fn unreadable_records(&self) -> &[(PathBuf, io::Error)] {
        self.fleet().unreadable_records()
    }

    /// Returns the number of running sandboxes, each with one command, that the process's limit of open
    /// files allows.
    pub fn sandboxes_by_open_files(&self) -> usize {
        self.fleet().accounts.sandboxes_by_descriptors()
    }

    /// Serves until `shutdown` is cancelled, then closes or pauses all sandboxes and returns.
    ///
    /// Dropping the future drops all sandboxes.
    ///
    /// # Errors
    /// [`LeftBehind`](crate::ServeErrorKind::LeftBehind) if a sandbox could not be closed.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let dispatcher = Arc::new(self.dispatcher);
        let accounts = Arc::clone(&dispatcher.control.fleet.accounts);
        let answering = Arc::clone(&dispatcher);
        let answer = move |request| {
            let dispatcher = Arc::clone(&answering);
            async move { dispatcher.answer(request).await }
        };
        let stop = dispatcher.stop();
        connections::serve(self.listener, accounts, shutdown, answer, stop).await
    }
}

/// Dispatches requests to the control plane, to envd and to the service of tools.
struct Dispatcher {
    control: Control,
    tools: Option<ToolRoutes>,
}

impl Dispatcher {
    async fn answer(&self, request: Request<Body>) -> Response {
        let fleet = &self.control.fleet;
        match address::destination(&request) {
            Destination::Sandbox { id, port } => gateway::serve(fleet, &id, port, request).await,
            Destination::Malformed => ApiError::bad_request(
                "the headers e2b-sandbox-id and e2b-sandbox-port are incomplete or invalid",
            )
            .into_response(),
            Destination::ByCredential => gateway::serve_by_credential(fleet, request).await,
            Destination::ControlPlane => match &self.tools {
                Some(tools) if ToolRoutes::has(request.uri().path()) => tools.answer(request).await,
                _ => self.control.answer(request).await,
            },
        }
    }

    /// Ends all calls and sandboxes.
    async fn stop(&self) -> Result<(), ServeError> {
        if let Some(tools) = &self.tools {
            tools.stop().await;
        }
        for extension in self.control.extensions.values() {
            extension.stop().await;
        }
        self.control.fleet.stop().await
    }
}
