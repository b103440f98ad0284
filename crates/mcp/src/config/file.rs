//! `mcp.json`, in the shape that other agents use.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use cantle_core::policy::{Access, HostPattern, Network, Policy};
use cantle_core::secret::SecretText;
use indexmap::IndexMap;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{InvalidMcpConfig, McpServer, Place, Transport};
use crate::names::check_server_name;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "mcpServers")]
    servers: IndexMap<String, Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StdioEntry {
    #[serde(rename = "type")]
    _kind: Option<StdioKind>,
    command: String,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: IndexMap<String, String>,
    cwd: Option<String>,
    #[serde(rename = "where")]
    place: Option<PlaceName>,
    policy: Option<PolicyEntry>,
    tools: Option<Vec<String>>,
    connect_timeout_s: Option<u32>,
    call_timeout_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HttpEntry {
    #[serde(rename = "type")]
    _kind: Option<HttpKind>,
    url: String,
    #[serde(default)]
    headers: IndexMap<String, String>,
    tools: Option<Vec<String>>,
    connect_timeout_s: Option<u32>,
    call_timeout_s: Option<u32>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum StdioKind {
    Stdio,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum HttpKind {
    Http,
    StreamableHttp,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum PlaceName {
    Sandbox,
    Host,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PolicyEntry {
    hosts: Vec<HostPattern>,
    read_roots: Vec<PathBuf>,
    workspace: Option<WorkspaceAccess>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkspaceAccess {
    Ro,
    Rw,
}

type Variable<'v> = &'v dyn Fn(&str) -> Option<String>;

impl McpServer {
    /// Parses the text of an `mcp.json`: `{"mcpServers": {"NAME": {…}}}`.
    ///
    /// An entry has `command` and optionally `args`, `env`, `cwd`, `where` (`"sandbox"`, the default, or `"host"`) and
    /// `policy` (`hosts`, `read_roots`, `workspace`: `"ro"` or `"rw"`); or `url` and optionally `headers`. Both may
    /// have `type`, `tools`, `connect_timeout_s` and `call_timeout_s`. In the values, `${NAME}` stands for what
    /// `variable` returns.
    ///
    /// # Errors
    /// If the text is not such a file, has other keys, or names a variable that is not set.
    pub fn from_json(
        text: &str,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Vec<Self>, InvalidMcpConfig> {
        let file: Value =
            serde_json::from_str(text).map_err(|error| InvalidMcpConfig(error.to_string()))?;
        let file: File = parse(file).map_err(InvalidMcpConfig)?;
        let servers = file.servers.into_iter();
        servers
            .map(|(name, entry)| {
                let server = Self::from_entry(&name, entry, &variable);
                server.map_err(|problem| InvalidMcpConfig(format!("mcpServers.{name}: {problem}")))
            })
            .collect()
    }

    fn from_entry(
        name: &str,
        entry: Map<String, Value>,
        variable: Variable<'_>,
    ) -> Result<Self, String> {
        check_server_name(name)?;
        let is_http = entry.contains_key("url");
        let entry = Value::Object(entry);
        match is_http {
            true => parse::<HttpEntry>(entry)?.server(name, variable),
            false => parse::<StdioEntry>(entry)?.server(name, variable),
        }
    }

    fn with_limits(
        mut self,
        tools: Option<Vec<String>>,
        connect_timeout_s: Option<u32>,
        call_timeout_s: Option<u32>,
    ) -> Self {
        let seconds = |seconds: u32| Duration::from_secs(seconds.into());
        self.tools = tools;
        self.connect_timeout = connect_timeout_s.map_or(self.connect_timeout, seconds);
        self.call_timeout = call_timeout_s.map_or(self.call_timeout, seconds);
        self
    }
}

/// Deserializes a value; errors name the path to the problem.
fn parse<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_path_to_error::deserialize(value).map_err(|error| error.to_string())
}

impl HttpEntry {
    fn server(self, name: &str, variable: Variable<'_>) -> Result<McpServer, String> {
        let mut server = McpServer::http(name, self.url);
        if let Transport::Http(http) = &mut server.transport {
            http.url = expand(http.url.expose(), variable)?.into();
        }
        for (name, value) in self.headers {
            server = server.with_header(name, expand(&value, variable)?);
        }
        Ok(server.with_limits(self.tools, self.connect_timeout_s, self.call_timeout_s))
    }
}

impl StdioEntry {
    fn server(self, name: &str, variable: Variable<'_>) -> Result<McpServer, String> {
        let inserted = RefCell::new(Vec::new());
        let variable: Variable<'_> = &|name: &str| {
            let value = variable(name)?;
            inserted.borrow_mut().push(SecretText::new(value.as_str()));
            Some(value)
        };
        let mut server = McpServer::command(name, [self.command].into_iter().chain(self.args));
        if let Transport::Stdio(stdio) = &mut server.transport {
            for argument in &mut stdio.argv {
                *argument = expand(argument.expose(), variable)?.into();
            }
            stdio.directory = self.cwd;
            stdio.place = match (self.place, self.policy) {
                (Some(PlaceName::Host), None) => Place::Host,
                (Some(PlaceName::Host), Some(_)) => {
                    let problem = "a `policy` can't be enforced with `\"where\": \"host\"`";
                    return Err(problem.to_owned());
                }
                (_, policy) => policy.unwrap_or_default().place(),
            };
            for (name, value) in self.env {
                let value = expand(&value, variable)?;
                stdio.environment.insert(name, value.into());
            }
            stdio.inserted = inserted.take();
        }
        Ok(server.with_limits(self.tools, self.connect_timeout_s, self.call_timeout_s))
    }
}

impl PolicyEntry {
    fn place(self) -> Place {
        let mut policy = Policy::workspace();
        if !self.hosts.is_empty() {
            policy.network = Some(Network::Hosts(self.hosts));
        }
        if let Some(roots) = &mut policy.read_roots {
            roots.paths = self.read_roots;
        }
        let workspace = self.workspace.map(|access| match access {
            WorkspaceAccess::Ro => Access::ReadOnly,
            WorkspaceAccess::Rw => Access::ReadWrite,
        });
        Place::Sandbox {
            policy: Box::new(policy),
            workspace,
        }
    }
}

/// Replaces each `${NAME}` and `${env:NAME}` in a value. Other text in braces is for a shell.
fn expand(value: &str, variable: Variable<'_>) -> Result<String, String> {
    let is_name = |name: &str| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        let has_digit_first = name.starts_with(|first: char| first.is_ascii_digit());
        !name.is_empty() && !has_digit_first && name.bytes().all(is_allowed)
    };
    let mut expanded = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let named = after.strip_prefix("env:").unwrap_or(after);
        rest = match named.split_once('}') {
            Some((name, after)) if is_name(name) => {
                // The value itself may be a secret, and is not part of the message.
                let missing = || format!("the variable `{name}` is not set");
                expanded.push_str(&variable(name).ok_or_else(missing)?);
                after
            }
            _ => {
                expanded.push_str("${");
                after
            }
        };
    }
    expanded.push_str(rest);
    Ok(expanded)
}
