//! The command line of `cantle serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::Context as _;
use url::Url;

use crate::backend::BackendArg;
use crate::files::FilesArgs;
use crate::settings::layers::with_variable;
use crate::settings::{Given, ServeSettings, Size, parse_duration};

/// Serve sandboxes to E2B's SDKs and to MCP clients
///
/// It prints the variables by which SDKs find it; MCP clients use the path /mcp. The policy given here applies to every
/// sandbox; a client can only restrict it further.
#[derive(Debug, clap::Args)]
#[command(mut_arg("serve_listen", with_variable))]
pub(crate) struct ServeArgs {
    /// Address to listen on; keys are required unless it is a loopback address
    #[arg(
        id = "serve_listen",
        long = "listen",
        value_name = "ADDRESS",
        value_parser = parse_address,
        default_value = "127.0.0.1:3010"
    )]
    pub(crate) listen: SocketAddr,

    /// File of client keys, one per line [default: the comma-separated keys in CANTLE_SERVE_KEYS]
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,

    /// File of keys that are bound to principals, in lines of `KEY ID [LEVEL]`
    ///
    /// A client with such a key acts on behalf of its principal. Levels are guest, which is the default, user,
    /// admin and owner.
    #[arg(long, value_name = "FILE")]
    pub(crate) principals: Option<PathBuf>,

    /// Where sandboxes run: `local`, `docker:IMAGE` or `dockerfile:PATH`
    #[arg(long, value_name = "WHERE", default_value = "local")]
    pub(crate) backend: BackendArg,

    /// Another template, and where its sandboxes run, as in tools=docker:python:3.12; can be repeated
    ///
    /// The templates `base` and `code-interpreter-v1` run where --backend says, unless they are named here.
    #[arg(long, value_name = "NAME=WHERE")]
    pub(crate) template: Vec<TemplateArg>,

    /// Install the packages of the code interpreter of local sandboxes, and exit: numpy, pandas, matplotlib, e2b-charts
    #[arg(long, value_name = "code-interpreter", hide_possible_values = true)]
    pub(crate) prepare: Option<Preparation>,

    /// Domain under which clients reach it (E2B_DOMAIN), behind a proxy that terminates TLS
    #[arg(long, value_name = "DOMAIN", value_parser = parse_domain)]
    pub(crate) domain: Option<String>,

    /// Maximum number of running sandboxes [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Limits")]
    pub(crate) max_sandboxes: Option<u32>,

    /// Maximum number of running sandboxes per key [default: all]
    ///
    /// With several keys, half of all sandboxes, connections and memory is divided into shares reserved for
    /// each key, so that none can take the last places of the others. The other half is first come, first
    /// served. A single key may use everything.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Limits")]
    pub(crate) max_sandboxes_per_key: Option<u32>,

    /// Maximum number of connections; if it is reached, idle unauthenticated ones are closed [default: 16384]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..),
        help_heading = "Limits")]
    pub(crate) max_connections: Option<u32>,

    /// Maximum lifetime of a sandbox whose client does not extend it, such as 90m or 24h [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    pub(crate) max_lifetime: Option<Duration>,

    #[command(flatten)]
    pub(crate) tools: ServedToolsArgs,

    #[command(flatten)]
    pub(crate) settings: Given<ServeSettings>,
}

/// A target of `cantle serve --prepare`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Preparation {
    CodeInterpreter,
}

/// A template of the server: its name, and where its sandboxes run.
#[derive(Clone, Debug)]
pub(crate) struct TemplateArg {
    pub(crate) name: String,
    pub(crate) backend: BackendArg,
}

impl FromStr for TemplateArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let named = text.split_once('=').filter(|(name, _)| !name.is_empty());
        let (name, backend) =
            named.context("expected NAME=WHERE, as in tools=docker:python:3.12")?;
        Ok(Self {
            name: name.to_owned(),
            backend: backend.parse()?,
        })
    }
}

/// The service of tools of `cantle serve`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ServedToolsArgs {
    /// Serve the tools of code_executor, too: /manifest, /execute and /files
    ///
    /// A client's key is a service token. Its calls name the `user_id` that they are for, unless --principals binds
    /// the key to one. Each principal has a sandbox and files of its own.
    #[arg(long = "tools")]
    pub(crate) is_enabled: bool,

    #[command(flatten)]
    pub(crate) files: FilesArgs,

    /// Address under which clients reach stored files [default: that of this server, presigned ones of a bucket]
    #[arg(
        long,
        value_name = "URL",
        requires = "is_enabled",
        help_heading = "Stored files"
    )]
    pub(crate) files_url: Option<Url>,

    /// Maximum number of files that a principal stores [default: 10000]
    #[arg(
        long,
        value_name = "N",
        requires = "is_enabled",
        help_heading = "Limits"
    )]
    pub(crate) max_stored_files: Option<u64>,

    /// Maximum size of the files that a principal stores, such as 500M [default: 10G]
    #[arg(
        long,
        value_name = "SIZE",
        requires = "is_enabled",
        help_heading = "Limits"
    )]
    pub(crate) max_stored_bytes: Option<Size>,

    /// Maximum number of tool calls of a principal in a minute [default: 120]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        requires = "is_enabled", help_heading = "Limits")]
    pub(crate) max_calls_per_minute: Option<u32>,
}

fn parse_address(text: &str) -> Result<SocketAddr, &'static str> {
    let expected = "expected an IP address and a port, such as 127.0.0.1:3010 or 0.0.0.0:3010";
    text.parse().map_err(|_| expected)
}

/// Checks that a domain is a name, with or without a port.
fn parse_domain(text: &str) -> Result<String, &'static str> {
    let name = match text.split_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok() => name,
        _ => text,
    };
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_allowed);
    let is_name = name.split('.').all(is_label);
    is_name
        .then(|| text.to_owned())
        .ok_or("expected a domain name, such as sbx.example.com")
}
