//! Sandboxes in running containers of the user, which are never stopped or removed.

use std::sync::{Arc, Mutex};

use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::ExecConfig;
use bollard::query_parameters::WaitContainerOptions;
use cantle_core::sandbox::{
    Isolation, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxInfo, SandboxPath,
};
use futures_util::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::DockerBackend;
use crate::container::spec;
use crate::container::{Container, ContainerStream};
use crate::engine::failure::{engine_message, request_failed, status};
use crate::environment::{self, Variables};
use crate::open::{connect, mechanisms};
use crate::options::Options;
use crate::plain::ExecRunner;
use crate::program;
use crate::relay::{Relay, RelayOptions};
use crate::sandbox::{CommandRunner, DockerSandbox, Ownership};

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
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_source(error)
                .with_advice("`docker ps` lists the running containers."));
        }
        Err(error) => {
            return Err(request_failed(
                &format!("failed to inspect the container `{name}`"),
                error,
            ));
        }
    };
    if found.state.and_then(|state| state.running) != Some(true) {
        let message = format!("the container `{name}` isn't running");
        return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
            .with_advice(format!("Start it: `docker start {name}`.")));
    }
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
    let host = found.host_config.unwrap_or_default();
    let supported = engine.supported_limits();
    let enforcement = |supervised| {
        spec::enforcement(
            &host,
            &cx.policy,
            supported,
            supervised,
            spec::EXISTING_CONTAINER,
        )
    };
    let may_supervise =
        options.supervised && engine.runs_supervisor() && program::bytes().is_some();
    let mut report = enforcement(may_supervise)?;
    let own = environment::parse_pairs(config.env.as_deref().unwrap_or_default());
    let variables = environment::variables(&options, &own, &cx.policy)?;
    let container = Container {
        engine: engine.clone(),
        id: found.id.unwrap_or_else(|| name.to_owned()),
        sandbox: cantle_core::ids::unique_id(),
    };
    let relay = if may_supervise {
        match start_relay(&container, &options, &variables, cx).await {
            Ok(relay) => Some(relay),
            Err(error) => {
                tracing::info!(%error, "the supervisor doesn't run in the container; commands are execs");
                report = enforcement(false)?;
                None
            }
        }
    } else {
        None
    };
    let runner = match relay {
        Some(relay) => CommandRunner::Supervised {
            relay,
            memory: None,
        },
        None => unsupervised(&container, &options, variables, cx),
    };
    let mut info = SandboxInfo::new(
        "docker",
        container.sandbox.clone(),
        options.working_directory.clone(),
    );
    info.isolation = Isolation::Container;
    info.mechanisms = match mechanisms(engine, &options, &runner).pop() {
        Some(last) if matches!(runner, CommandRunner::Exec { .. }) => vec![description(name), last],
        _ => vec![description(name)],
    };
    info.enforcement = report;
    let sandbox = DockerSandbox::new(info, container, runner, Ownership::External);
    Ok(Arc::new(sandbox))
}

fn description(name: &str) -> String {
    format!("the existing container `{name}`")
}

/// Copies the supervisor into the container and starts it.
async fn start_relay(
    container: &Container,
    options: &Options,
    variables: &Variables,
    cx: &SandboxContext,
) -> Result<Relay, SandboxError> {
    let program = program::bytes().unwrap_or_default();
    let name = format!(".cantle-{}", container.sandbox);
    let archive = program::archive(&[(&name, program)])
        .map_err(|error| SandboxError::io("failed to pack the supervisor", error))?;
    // The root directory is never hidden by a mount.
    container.unpack("/", archive).await?;
    let path = format!("/{name}");
    let started = exec(container, vec![path.clone(), "relay".to_owned()]).await?;
    let relay = RelayOptions::new(options.working_directory.clone());
    let connected = connect(started, relay, variables, &cx.policy).await;
    // A running supervisor doesn't need its file, and nothing can remove it later if this process is killed.
    if let Ok(relay) = &connected
        && let Err(error) = relay.remove(&SandboxPath::new(path)?).await
    {
        tracing::debug!(%error, "failed to remove the supervisor's file from the container");
    }
    connected
}

/// Starts a program in the container with attached streams.
async fn exec(
    container: &Container,
    command: Vec<String>,
) -> Result<ContainerStream, SandboxError> {
    let doing = "failed to start the supervisor in the container";
    let config = ExecConfig {
        cmd: Some(command),
        attach_stdin: Some(true),
        attach_stdout: Some(true),
        attach_stderr: Some(true),
        ..ExecConfig::default()
    };
    let api = container.engine.api();
    let created = api.create_exec(&container.id, config).await;
    let created = created.map_err(|error| request_failed(doing, error))?;
    let started = api
        .start_exec(&created.id, Some(StartExecOptions::default()))
        .await;
    match started.map_err(|error| request_failed(doing, error))? {
        StartExecResults::Attached { output, input } => Ok(ContainerStream::new(output, input)),
        StartExecResults::Detached => Err(SandboxError::new(SandboxErrorKind::Io, doing)),
    }
}

fn unsupervised(
    container: &Container,
    options: &Options,
    variables: Variables,
    cx: &SandboxContext,
) -> CommandRunner {
    let gone = CancellationToken::new();
    let runner = ExecRunner::new(
        container.clone(),
        options.user_text.clone(),
        options.working_directory.clone(),
        variables,
        cx.policy.limits.clone(),
        gone.clone(),
    );
    let container = container.clone();
    let watch = tokio::spawn(async move {
        let _guard = gone.drop_guard();
        let api = container.engine.api();
        let mut end = api.wait_container(&container.id, None::<WaitContainerOptions>);
        // Resolves when the container or the connection ends.
        let _ = end.next().await;
    });
    CommandRunner::Exec {
        runner,
        watch: Mutex::new(Some(AbortOnDropHandle::new(watch))),
    }
}
