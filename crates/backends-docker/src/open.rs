//! Opening of sandboxes in new containers, and reattaching to kept ones.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bollard::models::ContainerInspectResponse;
use cantle_core::policy::Policy;
use cantle_core::sandbox::{
    Isolation, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxInfo,
    Survival,
};
use tokio::io::AsyncReadExt as _;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::backend::DockerBackend;
use crate::container::spec::{self, ContainerSpec};
use crate::container::{Container, ContainerStream};
use crate::engine::Engine;
use crate::engine::failure::request_failed;
use crate::environment::{self, Variables};
use crate::memory::MemoryLimit;
use crate::options::Options;
use crate::owner::{self, Claim, ContainerName, Owner};
use crate::plain::{self, ExecRunner};
use crate::program;
use crate::reclaim;
use crate::relay::{Relay, RelayOptions};
use crate::sandbox::{CommandRunner, DockerSandbox, HandleToken, Ownership};

/// How long a kept container may take to stop before it is considered in use.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long another process may take to start a container that it has claimed.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound of the time between an engine's lookup and change of a name.
const RENAME_RACE: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(30);

/// Opens a sandbox in a new container.
pub(crate) async fn open(
    backend: &DockerBackend,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    match open_once(backend, cx).await {
        // The cached image was removed from the engine.
        Err(error) if error.kind() == SandboxErrorKind::NotFound => {
            backend.forget_image();
            open_once(backend, cx).await
        }
        opened => opened,
    }
}

async fn open_once(
    backend: &DockerBackend,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let engine = backend.engine().await?;
    // Failures are reported by `DockerBackend::reclaim`.
    let _ = reclaim::remove_remembered(engine).await;
    let image = backend.image(&*cx.progress).await?;
    let options = backend.options();
    let is_supervised = options.supervised && image.fits_supervisor && program::bytes().is_some();
    let spec = ContainerSpec {
        options,
        policy: &cx.policy,
        durable: cx.durable,
        supervised: is_supervised,
    };
    let enforcement = spec.enforcement(engine)?;
    let variables = environment::variables(options, &image.environment, &cx.policy)?;
    let (provided, entry) = if is_supervised {
        let provided = backend.provide_program(&image.id).await?;
        let entry = vec![program::path(), "relay".to_owned()];
        (Some(provided), entry)
    } else {
        (None, plain::entry())
    };
    let start = async || {
        let entry = entry.clone();
        let container = Container::create(engine, &spec, &image.id, cx.run, entry).await?;
        let stream = container.or_remove(container.start().await).await?;
        Result::<_, SandboxError>::Ok((container, stream))
    };
    let mut started = start().await;
    if started.is_err()
        && let Some(provided) = provided
        && backend.is_provided_again(provided, &image.id).await
    {
        // The volume had been removed, and the engine created an empty one.
        started = start().await;
    }
    let (container, stream) = started?;
    let runner = if is_supervised {
        let mut relay = relay_options(options);
        relay.makes_directories = true;
        let connected = supervised(stream, relay, &variables, &cx.policy).await;
        container.or_remove(connected).await?
    } else {
        unsupervised(stream, &container, options, variables, &cx.policy)
    };
    let mut info = information(&container, options, &runner);
    info.enforcement = enforcement;
    let mut ownership = Ownership::AutoRemoved;
    if spec.survives() {
        info.survival = Survival::Workspace;
        ownership = Ownership::Owned;
    }
    Ok(Arc::new(DockerSandbox::new(
        info, container, runner, ownership,
    )))
}

fn information(container: &Container, options: &Options, runner: &CommandRunner) -> SandboxInfo {
    let directory = options.working_directory.clone();
    let mut info = SandboxInfo::new("docker", container.sandbox.clone(), directory);
    info.isolation = Isolation::Container;
    info.mechanisms = mechanisms(&container.engine, options, runner);
    info
}

/// Lists the isolation mechanisms, for display.
pub(crate) fn mechanisms(
    engine: &Engine,
    options: &Options,
    runner: &CommandRunner,
) -> Vec<String> {
    let mut mechanisms = vec![format!("container of {}", engine.report().version)];
    if let Some(runtime) = &options.runtime {
        mechanisms.push(format!("runtime {runtime}"));
    }
    mechanisms.push("no capabilities".to_owned());
    mechanisms.push("no new privileges".to_owned());
    if options.read_only_root {
        mechanisms.push("read-only image".to_owned());
    }
    if matches!(runner, CommandRunner::Exec { .. }) {
        mechanisms.push("without supervisor: each command is an exec of the engine".to_owned());
    }
    mechanisms
}

fn relay_options(options: &Options) -> RelayOptions {
    let mut relay = RelayOptions::new(options.working_directory.clone());
    relay.identity = Some(options.user);
    relay
}

/// Connects to the supervisor.
async fn supervised(
    stream: ContainerStream,
    options: RelayOptions,
    variables: &Variables,
    policy: &Policy,
) -> Result<CommandRunner, SandboxError> {
    let relay = connect(stream, options, variables, policy).await?;
    let memory = policy
        .limits
        .memory_bytes
        .map(|limit| Arc::new(MemoryLimit::new(limit)));
    Ok(CommandRunner::Supervised { relay, memory })
}

pub(crate) async fn connect(
    stream: ContainerStream,
    mut options: RelayOptions,
    variables: &Variables,
    policy: &Policy,
) -> Result<Relay, SandboxError> {
    let pairs = variables.iter();
    options.environment = pairs
        .map(|(name, value)| (OsString::from(name), OsString::from(value.expose())))
        .collect::<BTreeMap<_, _>>();
    options.limits = policy.limits.clone();
    let ContainerStream {
        reader,
        writer,
        stderr,
    } = stream;
    Relay::connect(reader, writer, options)
        .await
        .map_err(|error| {
            let stderr = stderr.text();
            if stderr.is_empty() {
                return error;
            }
            let message = format!("{error}: {stderr}");
            SandboxError::new(SandboxErrorKind::Unavailable, message).with_source(error)
        })
}

/// Runs commands as execs for as long as the stream is open.
fn unsupervised(
    stream: ContainerStream,
    container: &Container,
    options: &Options,
    variables: Variables,
    policy: &Policy,
) -> CommandRunner {
    let gone = CancellationToken::new();
    let runner = ExecRunner::new(
        container.clone(),
        options.user_text.clone(),
        options.working_directory.clone(),
        variables,
        policy.limits.clone(),
        gone.clone(),
    );
    let watch = tokio::spawn(async move {
        let _guard = gone.drop_guard();
        // Dropping it ends the container.
        let _writer = stream.writer;
        let mut reader = stream.reader;
        let mut bytes = [0; 1024];
        while reader.read(&mut bytes).await.is_ok_and(|length| length > 0) {}
    });
    CommandRunner::Exec {
        runner,
        watch: Mutex::new(Some(AbortOnDropHandle::new(watch))),
    }
}

/// Reattaches to a kept sandbox.
pub(crate) async fn reattach(
    backend: &DockerBackend,
    handle: &SandboxHandle,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let gone = || SandboxError::gone("the container of this handle no longer exists");
    let token: HandleToken =
        serde_json::from_str(&handle.token).map_err(|error| gone().with_source(error))?;
    if !owner::is_id(&token.sandbox) {
        return Err(gone());
    }
    let engine = backend.engine().await?;
    let container = claim(engine, &token.sandbox).await?;
    match reopen(backend, &container, cx).await {
        Ok(sandbox) => Ok(Arc::new(sandbox)),
        Err(error) => {
            // Releases the claim. Some engines fail to rename a running container that has a network and
            // was started more than once; then the claim ends by its timeout.
            let kept = ContainerName::Kept { id: token.sandbox };
            if let Err(error) = container.rename(&container.id, &kept).await {
                tracing::debug!(%error, "failed to release a claim");
            }
            Err(error)
        }
    }
}

async fn inspect(engine: &Engine, id: &str) -> Result<ContainerInspectResponse, SandboxError> {
    let looked = engine.api().inspect_container(id, None).await;
    looked.map_err(|error| request_failed("failed to inspect a container", error))
}

/// Claims a kept sandbox by renaming its container; a running one is in use.
async fn claim(engine: &Engine, sandbox: &str) -> Result<Container, SandboxError> {
    let began = Instant::now();
    let mut first_seen: Option<(ContainerName, Instant)> = None;
    loop {
        let label = format!("{}={sandbox}", owner::SANDBOX);
        let found = reclaim::list(engine, label).await?.into_iter().next();
        let found =
            found.ok_or_else(|| SandboxError::gone("the container of this handle was removed"))?;
        let state = inspect(engine, &found.id).await?.state.unwrap_or_default();
        let is_running = state.running.unwrap_or(false);
        let ended_at = state.finished_at.unwrap_or_default();
        let is_free = match &found.name {
            ContainerName::Owned { .. }
            | ContainerName::Kept { .. }
            | ContainerName::Filling { .. } => true,
            ContainerName::Claimed { by, claim, .. } => {
                let since = match &first_seen {
                    Some((name, since)) if *name == found.name => *since,
                    _ => Instant::now(),
                };
                first_seen = Some((found.name.clone(), since));
                claim.is_over(&ended_at) || by.is_dead() || since.elapsed() > CLAIM_TIMEOUT
            }
        };
        if !is_running && is_free {
            let claimed = ContainerName::Claimed {
                id: sandbox.to_owned(),
                by: Owner::own(),
                claim: Claim::new(&ended_at),
            };
            let container = Container {
                engine: engine.clone(),
                id: found.id,
                sandbox: sandbox.to_owned(),
            };
            // Renaming by the current name usually succeeds for only one process. Engines look the name up
            // before locking it, so two may succeed: then the last one holds the claim.
            let renamed = container.rename(&found.name.to_string(), &claimed).await;
            if renamed.is_ok() {
                sleep(RENAME_RACE).await;
                let name = inspect(engine, &container.id).await?.name;
                if name.and_then(|name| ContainerName::parse(&name)).as_ref() == Some(&claimed) {
                    return Ok(container);
                }
            }
        } else if began.elapsed() > STOP_TIMEOUT + CLAIM_TIMEOUT
            || (is_running && began.elapsed() > STOP_TIMEOUT)
        {
            let message = "the sandbox is in use: its container is running or being started";
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("End the run that uses it, or use a separate sandbox for each run."));
        }
        sleep(POLL_INTERVAL).await;
    }
}

async fn reopen(
    backend: &DockerBackend,
    container: &Container,
    cx: &SandboxContext,
) -> Result<DockerSandbox, SandboxError> {
    let engine = &container.engine;
    let found = inspect(engine, &container.id).await?;
    let config = found.config.unwrap_or_default();
    let is_supervised =
        config.entrypoint.as_deref().unwrap_or_default().first() == Some(&program::path());
    let mounts = found.mounts.unwrap_or_default();
    let has_program = mounts
        .iter()
        .any(|mount| mount.name == Some(program::volume_name()));
    if is_supervised && !has_program {
        let message =
            "the sandbox was created by another version of this program, with its supervisor";
        return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
            .with_advice("Use that version to continue it, or copy its files with `docker cp`."));
    }
    // The container's own settings win over the backend's.
    let mut options = backend.options().clone();
    if let Some(directory) = &config.working_dir {
        options.working_directory = cantle_core::sandbox::SandboxPath::new(directory)?;
    }
    let host = found.host_config.unwrap_or_default();
    let enforcement = spec::enforcement(
        &host,
        &cx.policy,
        engine.supported_limits(),
        is_supervised,
        spec::EXISTING_CONTAINER,
    )?;
    let image = environment::parse_pairs(config.env.as_deref().unwrap_or_default());
    let variables = environment::variables(&options, &image, &cx.policy)?;
    let stream = container.start().await?;
    let runner = if is_supervised {
        let relay = relay_options(&options);
        supervised(stream, relay, &variables, &cx.policy).await?
    } else {
        unsupervised(stream, container, &options, variables, &cx.policy)
    };
    let mut info = information(container, &options, &runner);
    info.enforcement = enforcement;
    info.survival = Survival::Workspace;
    Ok(DockerSandbox::new(info, container.clone(), runner, Ownership::Owned).into_kept())
}
