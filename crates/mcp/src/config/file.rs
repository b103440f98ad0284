//! `mcp.json`, in the shape that other agents use.

use std::path::PathBuf;
use std::time::Duration;

use cantle_core::policy::{Access, HostPattern, Network, Policy};
use indexmap::IndexMap;
use serde::Deserialize;

use super::{InvalidMcpConfig, McpServer, Place, Transport};
use crate::names::check_server_name;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "mcpServers")]
    servers: IndexMap<String, Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "type")]
    kind: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<IndexMap<String, String>>,
    cwd: Option<String>,
    #[serde(rename = "where")]
    place: Option<PlaceName>,
    policy: Option<PolicyEntry>,
    url: Option<String>,
    headers: Option<IndexMap<String, String>>,
    tools: Option<Vec<String>>,
    connect_timeout_s: Option<u32>,
    call_timeout_s: Option<u32>,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum PlaceName {
    Sandbox,
    Host,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyEntry {
    #[serde(default)]
    hosts: Vec<HostPattern>,
    #[serde(default)]
    read_roots: Vec<PathBuf>,
    workspace: Option<WorkspaceAccess>,
}

#[derive(Deserialize)]
#[serde(rename_all = "lowercase")]
enum WorkspaceAccess {
    Ro,
    Rw,
}

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
        let mut reader = serde_json::Deserializer::from_str(text);
        let file: File = serde_path_to_error::deserialize(&mut reader)
            .map_err(|error| InvalidMcpConfig(error.to_string()))?;
        reader
            .end()
            .map_err(|error| InvalidMcpConfig(error.to_string()))?;
        let servers = file.servers.into_iter();
        servers
            .map(|(name, entry)| {
                let problem = |problem| InvalidMcpConfig(format!("mcpServers.{name}: {problem}"));
                check_server_name(&name).map_err(problem)?;
                entry.server(&name, &variable).map_err(problem)
            })
            .collect()
    }
}

impl Entry {
    fn server(
        self,
        name: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<McpServer, String> {
        let mut server = match (&self.command, &self.url) {
            (Some(_), None) => self.stdio(name, variable)?,
            (None, Some(_)) => self.http(name, variable)?,
            _ => return Err("give either `command` or `url`".to_owned()),
        };
        if let Some(seconds) = self.connect_timeout_s {
            server.connect_timeout = Duration::from_secs(seconds.into());
        }
        if let Some(seconds) = self.call_timeout_s {
            server.call_timeout = Duration::from_secs(seconds.into());
        }
        server.tools = self.tools;
        Ok(server)
    }

    fn stdio(
        &self,
        name: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<McpServer, String> {
        self.check_kind(&["stdio"])?;
        if self.headers.is_some() {
            return Err("`headers` are for a server with `url`".to_owned());
        }
        let args = self.args.iter().flatten();
        let mut server = McpServer::command(name, self.command.iter().chain(args));
        let Transport::Stdio(stdio) = &mut server.transport else {
            return Ok(server);
        };
        for argument in &mut stdio.argv {
            *argument = expand(argument.expose(), variable)?.into();
        }
        for (name, value) in self.env.iter().flatten() {
            let value = expand(value, variable)?.into();
            stdio.environment.insert(name.clone(), value);
        }
        stdio.directory.clone_from(&self.cwd);
        if self.place == Some(PlaceName::Host) {
            if self.policy.is_some() {
                return Err("a `policy` can't be enforced with `\"where\": \"host\"`".to_owned());
            }
            stdio.place = Place::Host;
        } else if let Some(entry) = &self.policy {
            stdio.place = entry.place();
        }
        Ok(server)
    }

    fn http(
        &self,
        name: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<McpServer, String> {
        self.check_kind(&["http", "streamable-http"])?;
        let given = [
            ("args", self.args.is_some()),
            ("env", self.env.is_some()),
            ("cwd", self.cwd.is_some()),
            ("where", self.place.is_some()),
            ("policy", self.policy.is_some()),
        ];
        if let Some((key, _)) = given.iter().find(|(_, given)| *given) {
            return Err(format!("`{key}` is for a server with `command`"));
        }
        let mut server = McpServer::http(name, self.url.clone().unwrap_or_default());
        if let Transport::Http(http) = &mut server.transport {
            http.url = expand(http.url.expose(), variable)?.into();
            for (name, value) in self.headers.iter().flatten() {
                let value = expand(value, variable)?.into();
                http.headers.insert(name.clone(), value);
            }
        }
        Ok(server)
    }

    fn check_kind(&self, supported: &[&str]) -> Result<(), String> {
        match self.kind.as_deref() {
            Some(kind) if !supported.contains(&kind) => Err(format!(
                "type `{kind}` is not supported here, only `{}`",
                supported.join("` and `")
            )),
            _ => Ok(()),
        }
    }
}

impl PolicyEntry {
    fn place(&self) -> Place {
        let mut policy = Policy::workspace();
        if !self.hosts.is_empty() {
            policy.network = Some(Network::Hosts(self.hosts.clone()));
        }
        if let Some(roots) = &mut policy.read_roots {
            roots.paths.clone_from(&self.read_roots);
        }
        let workspace = self.workspace.as_ref().map(|access| match access {
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
fn expand(value: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let is_name = |name: &str| {
        let mut bytes = name.bytes();
        bytes
            .next()
            .is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
            && bytes.all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    let mut expanded = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        expanded.push_str(before);
        let named = after.split_once('}');
        let named = named.map(|(name, after)| (name.strip_prefix("env:").unwrap_or(name), after));
        rest = match named {
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
