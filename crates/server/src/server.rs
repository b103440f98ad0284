//! The server: one port for the control plane and for what is in the sandboxes.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use cantle_core::sandbox::{Backend, SandboxHandle};
use http::Request;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::address::{self, Address};
use crate::control;
use crate::envd;
use crate::error::{ServeError, ServeErrorKind};
use crate::fleet::Fleet;
use crate::listening;
use crate::refusal::Refusal;
use crate::settings::{ServerBuilder, Settings};

/// A server that listens, and serves once it is told to.
pub struct Server {
    listener: TcpListener,
    address: SocketAddr,
    fleet: Arc<Fleet>,
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Configures a server whose sandboxes are `backend`'s.
    ///
    /// Where SDKs expect `/home/user` as the home, the backend has to have its working directory there
    /// (`LocalBackend::workspace_at`); what the backend says is what callers are told.
    #[must_use]
    pub fn builder(backend: Arc<dyn Backend>) -> ServerBuilder {
        ServerBuilder::new(backend)
    }

    pub(crate) async fn bind(settings: Settings, address: SocketAddr) -> Result<Self, ServeError> {
        let failed = |error| {
            let doing = format!("failed to listen on {address}");
            ServeError::io(ServeErrorKind::Bind, doing, error)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self {
            listener,
            address,
            fleet: Fleet::open(settings).await?,
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What an earlier server paused and this one can go on with; `None` where a record of that could
    /// not be read. Whatever else a backend has kept for this server alone nobody will ask for: who is
    /// killed while it pauses a sandbox may not get to write that down.
    #[must_use]
    pub fn paused(&self) -> Option<Vec<SandboxHandle>> {
        self.fleet.paused()
    }

    /// Serves until `shutdown` is cancelled; then ends all sandboxes that are not to be kept, and
    /// returns.
    ///
    /// Dropping the future ends everything at once, as far as dropping a sandbox does.
    ///
    /// # Errors
    /// [`ServeErrorKind::LeftBehind`] where something could not be ended.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), ServeError> {
        let fleet = &self.fleet;
        let site = Arc::new(Site {
            control: control::Control::new(Arc::clone(fleet)),
            fleet: Arc::clone(fleet),
        });
        let limits = &fleet.settings.limits;
        let answer = move |request| {
            let site = Arc::clone(&site);
            async move { site.answer(request).await }
        };
        listening::serve(self.listener, limits, shutdown, answer, fleet.stop()).await
    }
}

/// What answers requests.
struct Site {
    control: control::Control,
    fleet: Arc<Fleet>,
}

impl Site {
    async fn answer(&self, request: Request<Body>) -> Response {
        match address::of(&request) {
            Address::Sandbox { id, port } => envd::serve(&self.fleet, &id, port, request).await,
            Address::Broken => {
                Refusal::bad_request("which sandbox is meant is not said right").into_response()
            }
            Address::Unnamed => envd::serve_unnamed(&self.fleet, request).await,
            Address::Control => self.control.answer(request).await,
        }
    }
}
