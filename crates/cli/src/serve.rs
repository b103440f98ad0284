//! `cantle serve`: sandboxes for everybody who speaks E2B's API.

use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use cantle::backends::local::LocalBackend;
use cantle::core::secret::SecretText;
use cantle_server::{ServeError, ServeErrorKind, Server, ServerLimits};
use tokio_util::sync::CancellationToken;

use crate::args::{PolicyArgs, parse_duration};
use crate::exit::{Code, Failure, FailureExt as _};
use crate::place::{self, Place};
use crate::settings::{self, variable};
use crate::state::State;

/// Where the keys are, separated by commas, unless a file has them.
const KEYS_VARIABLE: &str = "CANTLE_SERVE_KEYS";

/// Where SDKs expect a home.
const HOME: &str = "/home/user";

/// Serves sandboxes over an API that E2B's SDKs speak.
///
/// SDKs find it by two variables, which it prints. Each sandbox is confined by the policy given here; what
/// a client asks for can only make it less.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// Where to listen; an address that others can reach needs a key
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "CANTLE_SERVE_LISTEN",
        hide_env_values = true,
        default_value = "127.0.0.1:3010"
    )]
    listen: SocketAddr,

    /// A file of keys that clients may use, one a line; otherwise CANTLE_SERVE_KEYS says them, separated
    /// by commas
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// What the sandboxes are: `local`, `docker:IMAGE` or `dockerfile:PATH`
    #[arg(long, value_name = "WHAT", default_value = "local")]
    backend: Place,

    /// The domain that clients know it by (E2B_DOMAIN), behind something that ends TLS
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<String>,

    /// Sandboxes that may run at once [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Limits")]
    max_sandboxes: Option<u32>,

    /// Sandboxes that one key may have running at once [default: 1000]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Limits")]
    max_sandboxes_per_key: Option<u32>,

    /// How long a sandbox may live without being asked for again, such as 90m or 24h [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Limits")]
    max_lifetime: Option<Duration>,

    #[command(flatten)]
    pub(crate) policy: PolicyArgs,
}

/// Serves until it is interrupted.
pub(crate) async fn perform(
    args: ServeArgs,
    cancellation: CancellationToken,
) -> Result<u8, Failure> {
    let policy = settings::resolve_policy(&args.policy)?;
    let keys = keys(args.key_file.as_deref()).usage()?;
    let state = State::find().usage()?;
    let workspaces = state.served();
    make_open(&workspaces).internal()?;
    let local = LocalBackend::new().in_directory(&workspaces);
    let backend = args.backend.serving(local.clone(), HOME).usage()?;
    let mut limits = ServerLimits::default();
    let number = |asked: Option<u32>, usual| asked.map_or(usual, |asked| asked as usize);
    limits.sandboxes = number(args.max_sandboxes, limits.sandboxes);
    limits.sandboxes_per_key = number(args.max_sandboxes_per_key, limits.sandboxes_per_key);
    limits.lifetime = args.max_lifetime.unwrap_or(limits.lifetime);
    let mut builder = Server::builder(backend)
        .policy(policy)
        .limits(limits)
        .state_directory(state.server());
    for key in &keys {
        builder = builder.key(key);
    }
    if let Some(domain) = &args.domain {
        builder = builder.domain(domain);
    }
    let server = builder
        .bind(args.listen)
        .await
        .map_err(|error| not_started(&error))?;
    // What an earlier server left that was killed; nobody else makes any here.
    let reclaimed = match server.paused() {
        Some(paused) => local.reclaim_all_but(&paused, Duration::ZERO).await,
        None => local.reclaim(Duration::ZERO).await,
    };
    if !args.backend.is_local()
        && let Err(error) = place::containers().reclaim().await
    {
        let _ = writeln!(std::io::stderr(), "cantle: {error}");
    }
    for (path, error) in &reclaimed.failed {
        let _ = writeln!(std::io::stderr(), "cantle: {}: {error}", path.display());
    }
    say(server.address(), keys.is_empty()).internal()?;
    server.serve(cancellation).await.internal()?;
    Ok(0)
}

/// Says where it is, in one line.
fn say(address: SocketAddr, takes_any_key: bool) -> anyhow::Result<()> {
    let reached: IpAddr = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => [127, 0, 0, 1].into(),
        IpAddr::V6(ip) if ip.is_unspecified() => std::net::Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let url = format!("http://{}", SocketAddr::new(reached, address.port()));
    let key = if takes_any_key {
        // Some SDKs look at its form.
        format!(" E2B_API_KEY=e2b_{:040}", 0)
    } else {
        String::new()
    };
    let line = format!("listening on {address}: E2B_API_URL={url} E2B_SANDBOX_URL={url}{key}\n");
    let mut out = std::io::stdout();
    out.write_all(line.as_bytes())
        .and_then(|()| out.flush())
        .context("failed to say where it listens")
}

/// The keys of the file, or those of the variable.
fn keys(file: Option<&Path>) -> anyhow::Result<Vec<SecretText>> {
    let (text, separator) = match file {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .with_context(|| format!("failed to read the keys in {}", path.display()))?;
            (text, '\n')
        }
        None => (variable(KEYS_VARIABLE).unwrap_or_default(), ','),
    };
    let keys = text
        .split(separator)
        .map(str::trim)
        .filter(|key| !key.is_empty() && !key.starts_with('#'));
    let keys: Vec<SecretText> = keys.map(SecretText::from).collect();
    match file {
        Some(path) if keys.is_empty() => Err(anyhow!("{} has no key in it", path.display())),
        _ => Ok(keys),
    }
}

/// Makes a directory that everybody may go through: commands of root's sandboxes run as another user.
fn make_open(directory: &Path) -> anyhow::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;

    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o711);
    builder
        .create(directory)
        .with_context(|| format!("failed to make {}", directory.display()))
}

fn not_started(error: &ServeError) -> Failure {
    let hint = match error.kind() {
        ServeErrorKind::KeyNeeded => {
            format!(": give it one with --key-file, or in {KEYS_VARIABLE}")
        }
        _ => String::new(),
    };
    let code = match error.kind() {
        ServeErrorKind::KeyNeeded => Code::Usage,
        _ => Code::Internal,
    };
    Failure::new(code, anyhow!("{error}{hint}"))
}
