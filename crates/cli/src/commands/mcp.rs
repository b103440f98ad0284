//! `cantle mcp`: a sandbox for an MCP client, or the servers of an `mcp.json`, tried.

mod agent;
mod handles;
mod over_http;
mod tools;

use std::fmt::Write as _;
use std::time::Instant;

use anyhow::Context as _;
use cantle::backends::local::LocalBackend;
use cantle::core::ids::RunId;
use cantle::core::tool::{OpenContext, ToolProvider as _};
use cantle::mcp::{McpServer, serve_stdio};
use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

pub(super) use self::over_http::McpExtension;
use self::tools::SandboxTools;
use super::print;
use crate::config;
use crate::exit::{Code, Failure, FailureExt as _, sandbox_failure};
use crate::mcp::{self, McpArgs, McpCommand, ServerPackages};
use crate::settings::AllowedHost;
use crate::text::{clean, plural};

/// Exit code if a server fails.
const FAILED: u8 = 1;

/// Serves the tools of a sandbox, or tries servers, and returns the exit code.
pub(crate) async fn perform(args: McpArgs, cancellation: CancellationToken) -> Result<u8, Failure> {
    match &args.command {
        Some(command) => try_servers(command, cancellation).await,
        None => serve(&args, cancellation).await,
    }
}

/// Serves the tools until standard input ends or the command is cancelled.
async fn serve(args: &McpArgs, cancellation: CancellationToken) -> Result<u8, Failure> {
    let (backend, mut policy) = config::resolve_sandbox(&args.sandbox)?;
    policy.environment = args.variables.resolve(&[]).usage()?;
    let backend = backend.open(LocalBackend::new()).usage()?;
    let tools = SandboxTools::new(backend, policy, None, None);
    let mut offered = tools.list();
    if args.allow_agent {
        offered.push(agent::run_agent(args).usage()?);
    }
    let served = serve_stdio(offered, cancellation).await;
    let closed = tools.close().await;
    served.context("failed to serve MCP").internal()?;
    closed.map_err(|error| sandbox_failure(FAILED, &error))?;
    Ok(0)
}

/// Connects to every server, prints what it found, and returns the exit code.
async fn try_servers(command: &McpCommand, cancellation: CancellationToken) -> Result<u8, Failure> {
    let (servers, lists_tools) = match command {
        McpCommand::List(servers) => (servers, true),
        McpCommand::Test(servers) => (servers, false),
    };
    let packages = ServerPackages {
        hosts: AllowedHost::patterns(servers.package_host.clone()).usage()?,
        refresh: false,
    };
    let servers = mcp::read(&servers.file).usage()?;
    let tried = servers
        .into_iter()
        .map(|server| try_server(server, packages.clone(), lists_tools));
    let Some(tried) = cancellation.run_until_cancelled(join_all(tried)).await else {
        return Ok(Code::Cancelled as u8);
    };
    let mut code = 0;
    for result in tried {
        let text = result.unwrap_or_else(|problem| {
            code = FAILED;
            problem
        });
        print(clean(&text))?;
    }
    Ok(code)
}

/// Returns a report on a server, or on its failure.
async fn try_server(
    server: McpServer,
    packages: ServerPackages,
    lists_tools: bool,
) -> Result<String, String> {
    let title = format!("{} ({})", server.name(), server.place());
    let prefix = format!("{}__", server.name());
    let started = Instant::now();
    let tools = mcp::tools(vec![server], packages).max_offered_bytes(usize::MAX);
    let opened = tools.open(OpenContext::new(RunId::new())).await;
    let set = opened.map_err(|error| format!("{title}: failed: {error}\n"))?;
    let elapsed = started.elapsed().as_secs_f64();
    let mut tools = set.tools();
    // Not those that find tools which a server adds later.
    tools.retain(|tool| tool.name().starts_with(&prefix));
    let mut text = format!(
        "{title}: {}, connected in {elapsed:.1} s\n",
        plural(tools.len() as u64, "tool", "tools")
    );
    for tool in tools.iter().filter(|_| lists_tools) {
        let description = tool.spec().description().lines().next().unwrap_or_default();
        let _ = writeln!(text, "  {}: {description}", tool.name());
    }
    set.close()
        .await
        .map_err(|error| format!("{text}{title}: {error}\n"))?;
    Ok(text)
}
