//! Servers to connect to, from code or from `mcp.json`.

mod file;

use std::collections::BTreeMap;
use std::time::Duration;

use cantle_core::policy::{Access, Network, Policy};
use cantle_core::secret::SecretText;
use serde_json::{Value, json};

/// Default time limit of a handshake, and of listing the tools.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Default time limit of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(300);

/// An MCP server: how it is reached, and what it may do.
///
/// ```
/// use cantle_core::policy::Policy;
/// use cantle_mcp::McpServer;
///
/// let tickets = McpServer::http("tickets", "https://mcp.example.com/mcp")
///     .with_header("Authorization", format!("Bearer {}", "a-token"));
/// let weather = McpServer::command("weather", ["uvx", "weather-server"])
///     .with_policy(Policy::network(["api.example.org".parse()?]));
/// # Ok::<(), cantle_core::policy::InvalidPolicy>(())
/// ```
#[must_use]
#[derive(Clone, Debug)]
pub struct McpServer {
    pub(crate) name: String,
    pub(crate) transport: Transport,
    /// The tools to offer, by the server's names; all if `None`.
    pub(crate) tools: Option<Vec<String>>,
    pub(crate) connect_timeout: Duration,
    pub(crate) call_timeout: Duration,
}

/// How a server is reached.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Stdio(StdioServer),
    Http(HttpServer),
}

/// A server that is started, and speaks over its standard streams.
#[derive(Clone, Debug)]
pub(crate) struct StdioServer {
    /// The program and its arguments as they were written, for the identity.
    written: Vec<String>,
    pub(crate) argv: Vec<SecretText>,
    pub(crate) directory: Option<String>,
    pub(crate) environment: BTreeMap<String, SecretText>,
    /// The values of variables that are part of the arguments or the environment.
    pub(crate) inserted: Vec<SecretText>,
    pub(crate) place: Place,
}

impl StdioServer {
    pub(crate) fn has_network(&self) -> bool {
        match &self.place {
            Place::Sandbox { policy, .. } => policy.network != Some(Network::Off),
            Place::Host => true,
        }
    }
}

/// The place where a server is started.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    Sandbox {
        policy: Box<Policy>,
        /// Access to the program's workspace.
        workspace: Option<Access>,
    },
    Host,
}

/// A server that listens for streamable HTTP.
#[derive(Clone, Debug)]
pub(crate) struct HttpServer {
    written: String,
    pub(crate) url: SecretText,
    pub(crate) headers: BTreeMap<String, SecretText>,
}

impl McpServer {
    fn new(name: impl Into<String>, transport: Transport) -> Self {
        Self {
            name: name.into(),
            transport,
            tools: None,
            connect_timeout: CONNECT_TIMEOUT,
            call_timeout: CALL_TIMEOUT,
        }
    }

    /// A server to start: a program and its arguments. It gets a sandbox of its own under
    /// [`Policy::workspace`], without a network.
    ///
    /// The name is 1 to 32 of `a-z A-Z 0-9 _ -`; the server's tools are called `name__tool`.
    pub fn command<A: Into<String>>(
        name: impl Into<String>,
        argv: impl IntoIterator<Item = A>,
    ) -> Self {
        let written: Vec<String> = argv.into_iter().map(Into::into).collect();
        let stdio = StdioServer {
            argv: written.iter().map(|it| it.as_str().into()).collect(),
            written,
            directory: None,
            environment: BTreeMap::new(),
            inserted: Vec::new(),
            place: Place::Sandbox {
                policy: Box::new(Policy::workspace()),
                workspace: None,
            },
        };
        Self::new(name, Transport::Stdio(stdio))
    }

    /// A server at a URL, over streamable HTTP. Requests leave from this process.
    pub fn http(name: impl Into<String>, url: impl Into<String>) -> Self {
        let written = url.into();
        let http = HttpServer {
            url: written.as_str().into(),
            written,
            headers: BTreeMap::new(),
        };
        Self::new(name, Transport::Http(http))
    }

    /// Sets a variable of a server that is started. Nothing is inherited in a sandbox.
    pub fn with_env(mut self, name: impl Into<String>, value: impl Into<SecretText>) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.environment.insert(name.into(), value.into());
        }
        self
    }

    /// Sets a header of a server at a URL, such as `Authorization`.
    pub fn with_header(mut self, name: impl Into<String>, value: impl Into<SecretText>) -> Self {
        if let Transport::Http(http) = &mut self.transport {
            http.headers.insert(name.into(), value.into());
        }
        self
    }

    /// Sets the policy of the sandbox of a server that is started.
    pub fn with_policy(mut self, policy: Policy) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.place = Place::Sandbox {
                policy: Box::new(policy),
                workspace: None,
            };
        }
        self
    }

    /// Starts the server on the host, with the user's permissions, instead of in a sandbox.
    pub fn on_host(mut self) -> Self {
        if let Transport::Stdio(stdio) = &mut self.transport {
            stdio.place = Place::Host;
        }
        self
    }

    /// Offers these tools only, by the server's names. A name that the server does not have is an error.
    pub fn with_tools<T: Into<String>>(mut self, tools: impl IntoIterator<Item = T>) -> Self {
        self.tools = Some(tools.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the time limit of the handshake, and of listing the tools; by default 30 s.
    pub fn with_connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// Sets the time limit of a call; by default 300 s. It does not run while the user answers a question.
    pub fn with_call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Returns the server if it is started.
    pub(crate) fn stdio(&self) -> Option<&StdioServer> {
        match &self.transport {
            Transport::Stdio(stdio) => Some(stdio),
            Transport::Http(_) => None,
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the program and the arguments of a server that is started, with the values of variables. They may be secrets.
    pub fn argv(&self) -> &[SecretText] {
        self.stdio().map_or(&[], |stdio| &stdio.argv)
    }

    /// Returns the program with its arguments, or the URL, as it was written: without the values of variables.
    pub fn written(&self) -> String {
        match &self.transport {
            Transport::Stdio(stdio) => stdio.written.join(" "),
            Transport::Http(http) => http.written.clone(),
        }
    }

    /// Returns the directory in which the server is started, if one is set.
    pub fn directory(&self) -> Option<&str> {
        self.stdio()?.directory.as_deref()
    }

    /// Returns whether the server is to see the program's workspace ([`McpTools::workspace`](crate::McpTools::workspace)).
    pub fn wants_workspace(&self) -> bool {
        let place = self.stdio().map(|stdio| &stdio.place);
        matches!(place, Some(Place::Sandbox { workspace, .. }) if workspace.is_some())
    }

    /// Returns where the server runs, for display: `sandbox`, `host` or `http`.
    pub fn place(&self) -> &'static str {
        match &self.transport {
            Transport::Http(_) => "http",
            Transport::Stdio(stdio) => match stdio.place {
                Place::Sandbox { .. } => "sandbox",
                Place::Host => "host",
            },
        }
    }

    /// Returns what determines the tools, without values of variables.
    pub(crate) fn identity(&self) -> Value {
        let mut identity = match &self.transport {
            Transport::Http(http) => json!({
                "url": http.written,
                "headers": http.headers.keys().collect::<Vec<_>>(),
            }),
            Transport::Stdio(stdio) => {
                let (policy, workspace) = match &stdio.place {
                    Place::Sandbox { policy, workspace } => (Some(policy), *workspace),
                    Place::Host => (None, None),
                };
                json!({
                    "command": stdio.written,
                    "cwd": stdio.directory,
                    "env": stdio.environment.keys().collect::<Vec<_>>(),
                    "policy": policy,
                    // A changed default does not prevent resuming, but a changed setting does.
                    "set": policy.map(|policy| policy.differing_fields()),
                    "workspace": workspace,
                    "where": self.place(),
                })
            }
        };
        if let (Some(tools), Some(fields)) = (&self.tools, identity.as_object_mut()) {
            fields.insert("tools".to_owned(), json!(tools));
        }
        identity
    }
}

/// An `mcp.json` that can't be used. The message names the entry and the key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidMcpConfig(String);

#[cfg(test)]
mod tests;
