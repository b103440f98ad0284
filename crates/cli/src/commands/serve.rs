//! `cantle serve`: sandboxes for clients of the E2B API.

mod interpreter;
mod keys;
mod tools;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use cantle::backends::local::LocalBackend;
use cantle_server::{ServeError, ServeErrorKind, Server, ServerLimits};
use tokio_util::sync::CancellationToken;

use self::interpreter::ServedInterpreter;
use self::keys::KEYS_VARIABLE;
use super::mcp::McpExtension;
use super::print;
use crate::args::{Preparation, ServeArgs, TemplateArg};
use crate::backend::{self, BackendArg};
use crate::config;
use crate::exit::{Code, Failure, FailureExt as _};
use crate::files::FilesArgs;
use crate::messages::warn;
use crate::settings::layers::Layers;
use crate::state_dir::{StateDir, VARIABLE as STATE_VARIABLE, create_traversable};

/// The home directory that E2B's SDKs expect.
const HOME: &str = "/home/user";

/// Serves until interrupted, and returns the exit code.
pub(crate) async fn perform(
    args: ServeArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    if let (false, Some(flag)) = (args.tools.is_enabled, FilesArgs::given_flag()) {
        return Err(anyhow!("{flag} has no effect without --tools")).usage();
    }
    let layers = Layers::with_files(&args.settings).usage()?;
    let is_any_local = args.backends().any(BackendArg::is_local);
    let policy = config::policy_of(&layers, is_any_local)?;
    if let Some(Preparation::CodeInterpreter) = args.prepare {
        return interpreter::prepare(&layers, &policy).await;
    }
    let keys = keys::keys(args.key_file.as_deref()).usage()?;
    let principals = args.principals.as_deref().map(keys::principals);
    let principals = principals.transpose().usage()?.unwrap_or_default();
    let state = StateDir::find().usage()?;
    let workspaces = state.served();
    create_traversable(&workspaces)
        .with_context(|| format!("failed to create {}", workspaces.display()))
        .internal()?;
    let local = LocalBackend::new().in_directory(&workspaces);
    let backend = args.backend.open_served(local.clone(), HOME).usage()?;
    let interpreter = ServedInterpreter::new(local.clone()).await?;
    let backend = interpreter.show_packages(backend);
    let mcp = McpExtension::new(Arc::clone(&backend), policy.clone());
    let mut builder = Server::builder(backend)
        .policy(policy)
        .extension("/mcp", mcp)
        .limits(args.limits())
        .state_directory(state.server());
    for TemplateArg { name, backend } in &args.template {
        let opened = backend.open_served(local.clone(), HOME);
        let named = || format!("--template {name}");
        let opened = opened.with_context(named).usage()?;
        builder = builder.template(name, interpreter.show_packages(opened));
    }
    builder = builder.interpreter(interpreter);
    for key in &keys {
        builder = builder.key(key);
    }
    for (key, principal) in &principals {
        builder = builder.principal(key, principal);
    }
    if let Some(domain) = &args.domain {
        builder = builder.domain(domain);
    }
    let bound = builder.bind(args.listen).await;
    let mut server = bound.map_err(|error| not_started(&error))?;
    let url = url(server.address());
    if args.tools.is_enabled {
        let base = match &args.domain {
            Some(domain) => format!("https://api.{domain}"),
            None => url.clone(),
        };
        let service = tools::service(&args.tools, &state, &base).await;
        server = server.tools(service.usage()?);
    }
    warn_about(&server, &args);
    reclaim(&server, &args, &local).await;
    let accepts_any_key = keys.is_empty() && principals.is_empty();
    announce(server.address(), &url, accepts_any_key)?;
    server.serve(cancellation).await.internal()?;
    Ok(0)
}

impl ServeArgs {
    /// Returns the backends of all templates.
    fn backends(&self) -> impl Iterator<Item = &BackendArg> {
        let templates = self.template.iter().map(|it| &it.backend);
        templates.chain([&self.backend])
    }

    fn limits(&self) -> ServerLimits {
        let mut limits = ServerLimits::default();
        let number = |given: Option<u32>, default| given.map_or(default, |given| given as usize);
        limits.sandboxes = number(self.max_sandboxes, limits.sandboxes);
        limits.sandboxes_per_key = number(self.max_sandboxes_per_key, limits.sandboxes);
        limits.connections = number(self.max_connections, limits.connections);
        limits.lifetime = self.max_lifetime.unwrap_or(limits.lifetime);
        limits
    }
}

/// Warns about open files that do not suffice, and about records that are unreadable.
fn warn_about(server: &Server, args: &ServeArgs) {
    let by_open_files = server.sandboxes_by_open_files();
    let max_sandboxes = args.limits().sandboxes;
    if by_open_files < max_sandboxes {
        warn(&format!(
            "the limit of open files allows {by_open_files} sandboxes with a command each, fewer than the \
             maximum of {max_sandboxes}: raise it with `ulimit -n`"
        ));
    }
    for (path, error) in server.unreadable_records() {
        warn(&format!(
            "the record of a paused sandbox is unreadable and ignored, and no kept sandbox is removed while \
             it exists: {}: {error}",
            path.display()
        ));
    }
}

/// Removes what servers that were killed have left.
async fn reclaim(server: &Server, args: &ServeArgs, local: &LocalBackend) {
    // Only servers use these directories, so what exists was left by a killed one.
    let reclaimed = match server.paused() {
        Some(paused) => local.reclaim_all_but(&paused, Duration::ZERO).await,
        None => local.reclaim(Duration::ZERO).await,
    };
    if args.backends().any(|it| !it.is_local())
        && let Err(error) = backend::containers().reclaim().await
    {
        warn(&error.to_string());
    }
    for (path, error) in &reclaimed.failed {
        warn(&format!("{}: {error}", path.display()));
    }
}

/// Returns the address for clients on this machine.
fn url(address: SocketAddr) -> String {
    let reachable: IpAddr = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => [127, 0, 0, 1].into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    format!("http://{}", SocketAddr::new(reachable, address.port()))
}

/// Prints the address and the variables for SDKs, in one line.
fn announce(address: SocketAddr, url: &str, accepts_any_key: bool) -> Result<(), Failure> {
    // Some SDKs check its format.
    let key = accepts_any_key.then(|| format!(" E2B_API_KEY=e2b_{:040}", 0));
    let key = key.unwrap_or_default();
    let line = format!("listening on {address}: E2B_API_URL={url} E2B_SANDBOX_URL={url}{key}\n");
    print(&line)
}

fn not_started(error: &ServeError) -> Failure {
    let (code, hint) = match error.kind() {
        ServeErrorKind::KeyNeeded => {
            let hint = format!(": provide one with --key-file or in {KEYS_VARIABLE}");
            (Code::Usage, hint)
        }
        ServeErrorKind::Bind => (
            Code::Internal,
            ". Choose another address with --listen".to_owned(),
        ),
        ServeErrorKind::State => (
            Code::Internal,
            format!(". Choose another state directory with {STATE_VARIABLE}"),
        ),
        _ => (Code::Internal, String::new()),
    };
    Failure::new(code, anyhow!("{error}{hint}"))
}
