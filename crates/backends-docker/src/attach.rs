//! Sandboxes in a container that somebody else runs. It is looked at, used, and left as it is.

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
use crate::container::plan;
use crate::container::{Container, Stream};
use crate::engine::failure::{failed, message, status};
use crate::environment::{self, Variables};
use crate::open::{connect, walls};
use crate::options::Options;
use crate::plain::Plain;
use crate::program;
use crate::relay::{Relay, RelayOptions};
use crate::sandbox::{DockerSandbox, End, Means};

/// Opens a sandbox in a container that runs.
pub(crate) async fn open(
    backend: &DockerBackend,
    name: &str,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let engine = backend.engine().await?;
    let found = match engine.api().inspect_container(name, None).await {
        Ok(found) => found,
        Err(error) if matches!(status(&error), Some(400 | 404)) => {
            let message = format!("there is no container `{name}`: {}", message(&error));
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_source(error)
                .with_advice("`docker ps` lists those that run."));
        }
        Err(error) => {
            return Err(failed(
                &format!("failed to look at the container `{name}`"),
                error,
            ));
        }
    };
    if found.state.and_then(|state| state.running) != Some(true) {
        let message = format!("the container `{name}` doesn't run");
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
    // As the container's own user.
    options.user_text = config.user.clone().unwrap_or_default();
    let host = found.host_config.unwrap_or_default();
    let enforcement = plan::enforcement_of(&host, &cx.policy, &options, engine.limiting())?;
    let lines = config.env.iter().flatten();
    let pairs: Vec<_> = lines
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let variables = environment::variables(&options, &pairs, &cx.policy)?;
    let container = Container {
        engine: engine.clone(),
        id: found.id.unwrap_or_else(|| name.to_owned()),
        sandbox: cantle_core::ids::fresh_id(),
    };
    let fits = engine.runs_supervisor() && program::bytes().is_some();
    let supervised = if options.supervised && fits {
        match start_relay(&container, &options, &variables, cx).await {
            Ok(relay) => Some(relay),
            Err(error) => {
                tracing::info!(%error, "the supervisor doesn't run in the container; commands are execs");
                None
            }
        }
    } else {
        None
    };
    let means = match supervised {
        Some(relay) => Means::Supervised {
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
    info.walls = match walls(engine, &options, &means).pop() {
        Some(wall) if matches!(means, Means::Plain { .. }) => vec![the_container(name), wall],
        _ => vec![the_container(name)],
    };
    info.enforcement = enforcement;
    let sandbox = DockerSandbox::new(info, container, means, End::Theirs);
    Ok(Arc::new(sandbox))
}

fn the_container(name: &str) -> String {
    format!("the container `{name}`, as somebody else made it")
}

/// Puts our program into the container and starts it there.
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
    // Where no mount hides it.
    container.unpack("/", archive).await?;
    let path = format!("/{name}");
    let started = exec(container, vec![path.clone(), "relay".to_owned()]).await?;
    let relay = RelayOptions::new(options.working_directory.clone());
    let connected = connect(started, relay, variables, &cx.policy).await;
    // It runs, and needs its file no more: nothing of it is left, however we end.
    if let Ok(relay) = &connected
        && let Err(error) = relay.remove(&SandboxPath::new(path)?).await
    {
        tracing::debug!(%error, "our program stays in the container");
    }
    connected
}

/// Starts a program in the container, its streams attached.
async fn exec(container: &Container, command: Vec<String>) -> Result<Stream, SandboxError> {
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
    let created = created.map_err(|error| failed(doing, error))?;
    let started = api
        .start_exec(&created.id, Some(StartExecOptions::default()))
        .await;
    match started.map_err(|error| failed(doing, error))? {
        StartExecResults::Attached { output, input } => Ok(Stream::new(output, input)),
        StartExecResults::Detached => Err(SandboxError::new(SandboxErrorKind::Io, doing)),
    }
}

fn unsupervised(
    container: &Container,
    options: &Options,
    variables: Variables,
    cx: &SandboxContext,
) -> Means {
    let gone = CancellationToken::new();
    let plain = Plain::new(
        container.clone(),
        options.user_text.clone(),
        options.working_directory.clone(),
        variables,
        cx.policy.limits.clone(),
        gone.clone(),
    );
    let waited = container.clone();
    let watch = tokio::spawn(async move {
        let _guard = gone.drop_guard();
        let api = waited.engine.api();
        let mut end = api.wait_container(&waited.id, None::<WaitContainerOptions>);
        // Its end, or that of the engine's answer: either way there is nobody there.
        let _ = end.next().await;
    });
    Means::Plain {
        plain,
        watch: Mutex::new(Some(AbortOnDropHandle::new(watch))),
    }
}
