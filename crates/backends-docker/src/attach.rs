//! Sandboxes in running containers of the user, which are never stopped or removed.

use std::sync::Arc;
use std::time::Duration;

use bollard::models::ExecConfig;
use bollard::query_parameters::WaitContainerOptions;
use cantle_core::policy::Limits;
use cantle_core::sandbox::{Sandbox, SandboxContext, SandboxError, SandboxPath};
use cantle_proxy::ProxySettings;
use futures_util::StreamExt as _;
use tokio::time::timeout;

use crate::backend::DockerBackend;
use crate::container::facts::ContainerFacts;
use crate::container::{Container, ContainerStream, spec};
use crate::engine::failure::{engine_message, request_failed, status};
use crate::environment::{self, Variables};
use crate::options::Options;
use crate::program;
use crate::relay::{Relay, RelayOptions};
use crate::runner::CommandRunner;
use crate::sandbox::{DockerSandbox, Ownership};

/// Time limit for `rm` in the container.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens a sandbox in a running container.
pub(crate) async fn open(
    backend: &DockerBackend,
    name: &str,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let engine = backend.engine().await?;
    let found = match engine.api().inspect_container(name, None).await {
        Ok(found) => found,
        Err(error) if matches!(status(&error), Some(400 | 404)) => {
            let message = format!("there is no container `{name}`: {}", engine_message(&error));
            return Err(SandboxError::unavailable(message)
                .with_advice("`docker ps` lists the running containers."));
        }
        Err(error) => {
            let doing = format!("failed to inspect the container `{name}`");
            return Err(request_failed(&doing, &error));
        }
    };
    if found.state.as_ref().and_then(|state| state.running) != Some(true) {
        return Err(
            SandboxError::unavailable(format!("the container `{name}` isn't running"))
                .with_advice(format!("Start it: `docker start {name}`.")),
        );
    }
    let facts = ContainerFacts::inspected(engine, &found).await;
    let config = found.config.unwrap_or_default();
    let mut options = backend.options().clone();
    if !options.has_chosen_directory {
        let directory = config
            .working_dir
            .as_deref()
            .filter(|path| path.starts_with('/'));
        options.working_directory = SandboxPath::new(directory.unwrap_or("/"))?;
    }
    options.user_text = config.user.clone().unwrap_or_default();
    let enforcement = |supervised| {
        let supported = engine.supported_limits();
        let note = spec::EXISTING_CONTAINER;
        spec::enforcement(
            &facts,
            &cx.policy,
            // Its own limits are fixed.
            &Limits::default(),
            supported,
            supervised,
            note,
        )
    };
    let own = config.env.as_deref().unwrap_or_default();
    let variables = |proxy: Option<&_>| environment::variables(&options, own, proxy, &cx.policy);
    let container = Container {
        engine: engine.clone(),
        id: found.id.unwrap_or_else(|| name.to_owned()),
        sandbox: cantle_core::ids::unique_id(),
    };
    let mut supervised = None;
    if options.supervised && engine.runs_supervisor() && program::bytes().is_some() {
        let report = enforcement(true)?;
        let proxy = spec::proxy(&cx.policy, facts.is_offline);
        let variables = variables(proxy.as_ref())?;
        match start_relay(&container, &options, &variables, proxy, &cx.policy.limits).await {
            Ok(runner) => supervised = Some((runner, report)),
            Err(error) => {
                tracing::info!(%error, "the supervisor doesn't run in the container; commands are execs");
            }
        }
    }
    let (runner, report) = match supervised {
        Some(supervised) => supervised,
        None => {
            let limits = &cx.policy.limits;
            let end = end(container.clone());
            let variables = variables(None)?;
            let runner = CommandRunner::exec(&container, &options, variables, limits, end);
            (runner, enforcement(false)?)
        }
    };
    let mut mechanisms = vec![format!("the existing container `{name}`")];
    mechanisms.extend(facts.exceptions().map(|it| format!("weakened: {it}")));
    Ok(Arc::new(DockerSandbox::new(
        container,
        &options,
        &cx.policy,
        runner,
        mechanisms,
        report,
        Ownership::External,
    )))
}

/// Completes when the container or the connection to the engine ends.
async fn end(container: Container) {
    let api = container.engine.api();
    let mut end = api.wait_container(&container.id, None::<WaitContainerOptions>);
    let _ = end.next().await;
}

/// Copies the supervisor into the container and starts it.
async fn start_relay(
    container: &Container,
    options: &Options,
    variables: &Variables,
    proxy: Option<ProxySettings>,
    limits: &Limits,
) -> Result<CommandRunner, SandboxError> {
    let program = program::bytes().unwrap_or_default();
    let name = format!(".cantle-{}", container.sandbox);
    let archive = program::archive(&[(&name, program)])
        .map_err(|error| SandboxError::io("failed to pack the supervisor", error))?;
    // The root directory is never hidden by a mount.
    container.unpack("/", archive).await?;
    let path = SandboxPath::new(format!("/{name}"))?;
    let mut relay = RelayOptions::new(options.working_directory.clone());
    relay.proxy = proxy;
    let mut limits = limits.clone();
    // The container's memory limit is not the policy's.
    limits.memory_bytes = None;
    let connected = match exec_supervisor(container, &path, None).await {
        Ok(stream) => CommandRunner::supervised(stream, relay, variables, &limits).await,
        Err(error) => Err(error),
    };
    // A running supervisor doesn't need its file, and nothing can remove it later if this process is killed.
    let removed = match &connected {
        Ok(CommandRunner::Supervised(relay)) => match relay.remove(&path).await {
            Ok(()) => Ok(()),
            Err(_) => remove_as_root(container, &path).await,
        },
        _ => remove_by_exec(container, &path).await,
    };
    if let Err(error) = removed {
        tracing::debug!(%error, "failed to remove the supervisor's file from the container");
    }
    connected
}

/// Starts the supervisor at `path` as a user of the container; by default as the container's own.
async fn exec_supervisor(
    container: &Container,
    path: &SandboxPath,
    user: Option<&str>,
) -> Result<ContainerStream, SandboxError> {
    let config = ExecConfig {
        cmd: Some(vec![path.to_string(), "relay".to_owned()]),
        user: user.map(str::to_owned),
        attach_stdin: Some(true),
        ..ExecConfig::default()
    };
    let doing = "failed to start the supervisor in the container";
    let started = container.exec(config).await;
    let (_, output, input) = started.map_err(|error| request_failed(doing, &error))?;
    Ok(ContainerStream::new(output, input))
}

/// Removes the supervisor's file by another supervisor: other users can't change the root directory.
async fn remove_as_root(container: &Container, path: &SandboxPath) -> Result<(), SandboxError> {
    let stream = exec_supervisor(container, path, Some("0")).await?;
    let options = RelayOptions::new(SandboxPath::new("/")?);
    let relay = Relay::connect_chunks(stream.stdout, stream.stdin, options).await?;
    relay.remove(path).await
}

/// Removes the supervisor's file by the container's own program: the supervisor can't be started.
async fn remove_by_exec(container: &Container, path: &SandboxPath) -> Result<(), SandboxError> {
    let path = path.to_string();
    let config = ExecConfig {
        // Ordinary users may have changed what is found in `PATH`.
        cmd: Some(
            ["/bin/rm", "-f", "--", path.as_str()]
                .map(str::to_owned)
                .into(),
        ),
        user: Some("0".to_owned()),
        ..ExecConfig::default()
    };
    let doing = "failed to start `rm` in the container";
    let started = container.exec(config).await;
    let (_, mut output, _input) = started.map_err(|error| request_failed(doing, &error))?;
    match timeout(REMOVE_TIMEOUT, output.next()).await {
        // It writes only errors.
        Ok(None) => Ok(()),
        _ => Err(SandboxError::unavailable("`rm` failed in the container")),
    }
}
