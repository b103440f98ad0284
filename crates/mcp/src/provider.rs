//! The provider of the servers' tools.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::sandbox::Backend;
use cantle_core::tool::{
    OpenContext, ProviderError, Requirements, ToolProvider, ToolSet, tool_set,
};
use futures_util::future::join_all;
use serde_json::Value;

use crate::config::McpServer;
use crate::connection::Server;
use crate::deferred::{deferred, spec_bytes};
use crate::names::check_server_name;
use crate::package::PackageInstaller;
use crate::surroundings::{Surroundings, Workspace};
use crate::tools::dyn_tools;

/// Default of [`McpTools::max_offered_bytes`]: about 6,000 tokens.
const MAX_OFFERED_BYTES: usize = 24 << 10;

/// Provides the tools of MCP servers, as `server__tool`.
///
/// Servers connect at the same time when a session opens; one that fails makes it fail. A server works on one call at a
/// time.
///
/// Tools that are too many to be sent with every request are found with `mcp_search` and called with `mcp_call`; see
/// [`max_offered_bytes`](Self::max_offered_bytes). So are those that a server adds later (`list_changed`), of which the
/// next result of one of its tools informs the model: the list that is sent with every request stays as it was, because
/// providers cache requests by their beginning.
///
/// A server that is started gets a sandbox of its own from the backend of [`sandboxes`](Self::sandboxes): never the
/// session's, since its variables are secrets.
#[must_use]
#[derive(Clone, Debug)]
pub struct McpTools {
    servers: Vec<McpServer>,
    surroundings: Surroundings,
    max_offered_bytes: usize,
}

impl McpTools {
    /// Creates the provider of these servers. Without further calls, it can reach URLs, but start nothing.
    pub fn new(servers: impl IntoIterator<Item = McpServer>) -> Self {
        Self {
            servers: servers.into_iter().collect(),
            surroundings: Surroundings::default(),
            max_offered_bytes: MAX_OFFERED_BYTES,
        }
    }

    /// Sets the backend that opens the servers' sandboxes.
    pub fn sandboxes(mut self, backend: impl Backend + 'static) -> Self {
        self.surroundings.sandboxes = Some(Arc::new(backend));
        self
    }

    /// Sets the backend for servers on the host, which opens sandboxes without confinement: such servers have the
    /// user's permissions, but end with the session.
    pub fn host(mut self, backend: impl Backend + 'static) -> Self {
        self.surroundings.host = Some(Arc::new(backend));
        self
    }

    /// Sets what installs the packages of servers that an entry starts with `npx` or `uvx` in a sandbox. Without, these
    /// programs have to find the package themselves.
    pub fn packages(mut self, installer: impl PackageInstaller + 'static) -> Self {
        self.surroundings.packages = Some(Arc::new(installer));
        self
    }

    /// Shows images to the model; for models that accept them. Without, they are files.
    pub fn images(mut self, shows: bool) -> Self {
        self.surroundings.images = shows;
        self
    }

    /// Calls no tool, for a replay of recorded results. Servers still start, to list their tools.
    pub fn offline(mut self) -> Self {
        self.surroundings.offline = true;
        self
    }

    /// Sets the maximum size of all names, descriptions and schemas together, which are sent with every request; by
    /// default 24 KiB. If the tools exceed it, `mcp_search` finds them and `mcp_call` calls them instead.
    pub fn max_offered_bytes(mut self, bytes: usize) -> Self {
        self.max_offered_bytes = bytes;
        self
    }

    /// Sets the directory of the host that servers see, and start in, if their entry has `"workspace"`. It is at its own
    /// path; those that may write there can't change the paths `read_only`, and none can read those of `hidden`.
    pub fn workspace(
        mut self,
        directory: impl Into<PathBuf>,
        read_only: Vec<PathBuf>,
        hidden: Vec<PathBuf>,
    ) -> Self {
        self.surroundings.workspace = Some(Workspace {
            directory: directory.into(),
            read_only,
            hidden,
        });
        self
    }
}

#[async_trait]
impl ToolProvider for McpTools {
    fn name(&self) -> &str {
        "mcp"
    }

    fn provides_sandbox(&self) -> bool {
        false
    }

    fn identity(&self) -> Value {
        let servers = self.servers.iter();
        servers.map(|it| (it.name.clone(), it.identity())).collect()
    }

    fn requirements(&self) -> Requirements {
        Requirements::new()
    }

    async fn open(&self, cx: OpenContext) -> Result<Box<dyn ToolSet>, ProviderError> {
        let mut names = HashSet::new();
        for server in &self.servers {
            check_server_name(&server.name).map_err(|problem| failure(&server.name, &problem))?;
            if !names.insert(&server.name) {
                return Err(failure(&server.name, "two servers have this name"));
            }
        }
        let open = self.servers.iter().map(|config| async {
            let server = Server::new(config.clone(), self.surroundings.clone(), &cx);
            let server = Arc::new(server);
            let opened = server.open().await;
            (server, opened)
        });
        let (mut tools, mut servers) = (Vec::new(), Vec::new());
        let mut problems = Vec::new();
        let mut may_add_tools = false;
        for (server, opened) in join_all(open).await {
            match opened {
                Ok(may_add) => {
                    may_add_tools |= may_add;
                    tools.extend(dyn_tools(&server));
                }
                Err(problem) => problems.push(failure(&server.config.name, &problem).to_string()),
            }
            servers.push(server);
        }
        if problems.is_empty() {
            let offered_bytes: usize = tools.iter().map(spec_bytes).sum();
            if offered_bytes > self.max_offered_bytes {
                tools = deferred(&servers).into();
            } else if may_add_tools {
                tools.extend(deferred(&servers));
            }
            let close = move || async move { close_all(&servers).await };
            return Ok(tool_set(tools, close));
        }
        // The first error is the one to report.
        let _ = close_all(&servers).await;
        Err(ProviderError::new(problems.join("\n")))
    }
}

fn failure(server: &str, problem: &str) -> ProviderError {
    ProviderError::new(format!("the MCP server `{server}` {}", problem.trim_end()))
}

async fn close_all(servers: &[Arc<Server>]) -> Result<(), ProviderError> {
    let closed = join_all(servers.iter().map(|server| server.close())).await;
    Ok(closed.into_iter().collect::<Result<(), _>>()?)
}
