//! `/mcp` of `cantle serve`: a sandbox for each session of an MCP client, or for each handle of a client without sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::response::Response;
use cantle::core::policy::Policy;
use cantle::core::principal::PrincipalId;
use cantle::core::sandbox::Backend;
use cantle::mcp::HttpToolServer;
use cantle_server::{Body, Extension, ExtensionClient};
use http::Request;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::handles;
use super::tools::{SandboxTools, ServedClient};

/// The time without a call after which the sandbox of a session is closed.
const IDLE: Duration = Duration::from_secs(600);
/// How long a stopping server waits for sandboxes to be closed.
const STOP_DEADLINE: Duration = Duration::from_secs(30);

/// Serves the tools of sandboxes. Each principal has sessions of its own, which no other can use.
pub(crate) struct McpExtension {
    backend: Arc<dyn Backend>,
    policy: Policy,
    /// As many as there are keys.
    servers: Mutex<HashMap<PrincipalId, Arc<HttpToolServer>>>,
    cancellation: CancellationToken,
    sandboxes: TaskTracker,
}

impl McpExtension {
    pub(crate) fn new(backend: Arc<dyn Backend>, policy: Policy) -> Self {
        Self {
            backend,
            policy,
            servers: Mutex::default(),
            cancellation: CancellationToken::new(),
            sandboxes: TaskTracker::new(),
        }
    }

    fn server(&self, client: ExtensionClient) -> Arc<HttpToolServer> {
        let mut servers = self.servers.lock();
        let server = servers
            .entry(client.principal().clone())
            .or_insert_with(|| {
                let (backend, policy) = (Arc::clone(&self.backend), self.policy.clone());
                let open = self.sandboxes.token();
                let create = move || {
                    let served = ServedClient {
                        client: client.clone(),
                        _open: open.clone(),
                    };
                    let (backend, policy) = (Arc::clone(&backend), policy.clone());
                    SandboxTools::new(backend, policy, Some(served), Some(IDLE))
                };
                let without_session = handles::tools(create.clone());
                let cancellation = self.cancellation.child_token();
                let tools = move || create().list();
                Arc::new(HttpToolServer::new(tools, without_session, cancellation))
            });
        Arc::clone(server)
    }
}

#[async_trait]
impl Extension for McpExtension {
    async fn answer(&self, client: ExtensionClient, request: Request<Body>) -> Response {
        let response = self.server(client).answer(request).await;
        response.map(Body::new)
    }

    async fn stop(&self) {
        self.cancellation.cancel();
        let servers = std::mem::take(&mut *self.servers.lock());
        drop(servers);
        self.sandboxes.close();
        // The others end with the process.
        let _ = tokio::time::timeout(STOP_DEADLINE, self.sandboxes.wait()).await;
    }
}
