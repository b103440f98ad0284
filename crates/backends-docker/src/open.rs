//! Opening a sandbox: its image, its container, and who runs commands in it.

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
use crate::container::plan::{self, Wanted};
use crate::container::{Container, Stream};
use crate::engine::Engine;
use crate::engine::failure::failed;
use crate::environment::{self, Variables};
use crate::memory::MemoryLimit;
use crate::options::Options;
use crate::owner::{self, Claim, Name, Owner};
use crate::plain::{self, Plain};
use crate::program;
use crate::reclaim;
use crate::relay::{Relay, RelayOptions};
use crate::sandbox::{DockerSandbox, End, Means, Token};

/// How long a sandbox that was let go may take to end before it can be had again.
const END_DEADLINE: Duration = Duration::from_secs(10);
/// How long somebody may take to start a kept sandbox that he has claimed.
const CLAIM_DEADLINE: Duration = Duration::from_secs(10);
/// How long the engine may take from looking a name up to changing it.
const CLAIM_SETTLES: Duration = Duration::from_millis(100);
const LOOK_EVERY: Duration = Duration::from_millis(30);

/// Opens a sandbox in a new container.
pub(crate) async fn open(
    backend: &DockerBackend,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    match open_once(backend, cx).await {
        // An image that was there a while ago.
        Err(error) if error.kind() == SandboxErrorKind::NotFound => {
            backend.forget();
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
    // Who asks for that himself is told what can't be removed.
    let _ = reclaim::remove_let_go(engine).await;
    let image = backend.image(&*cx.progress).await?;
    let options = backend.options();
    let is_supervised = options.supervised && image.fits_supervisor && program::bytes().is_some();
    let wanted = Wanted {
        options,
        policy: &cx.policy,
        durable: cx.durable,
        means: if is_supervised {
            plan::Means::Supervisor
        } else {
            plan::Means::Exec
        },
    };
    let enforcement = wanted.enforcement(engine)?;
    let variables = environment::variables(options, &image.environment, &cx.policy)?;
    let (provided, entry) = if is_supervised {
        let provided = backend.provide_program(&image.id).await?;
        let entry = vec![program::path(), "relay".to_owned()];
        (Some(provided), entry)
    } else {
        (None, plain::entry())
    };
    let begin = async || {
        let entry = entry.clone();
        let container = Container::create(engine, &wanted, &image.id, cx.run, entry).await?;
        let started = container.start().await;
        let stream = container.or_remove(started).await?;
        Result::<_, SandboxError>::Ok((container, stream))
    };
    let mut begun = begin().await;
    if begun.is_err()
        && let Some(provided) = provided
        && backend.is_provided_again(provided, &image.id).await
    {
        // Somebody had removed the volume, and the engine made an empty one.
        begun = begin().await;
    }
    let (container, stream) = begun?;
    let means = if is_supervised {
        let mut relay = relay_options(options);
        relay.makes_directories = true;
        if !wanted.is_read_only() {
            relay.staging = Some(Arc::new(container.clone()));
        }
        let connected = supervised(stream, relay, &variables, &cx.policy).await;
        container.or_remove(connected).await?
    } else {
        unsupervised(stream, &container, options, variables, &cx.policy)
    };
    let mut info = information(&container, options, &means);
    info.enforcement = enforcement;
    let mut end = End::Itself;
    if wanted.keeps() {
        info.survival = Survival::Workspace;
        end = End::Ours;
    }
    Ok(Arc::new(DockerSandbox::new(info, container, means, end)))
}

fn information(container: &Container, options: &Options, means: &Means) -> SandboxInfo {
    let directory = options.working_directory.clone();
    let mut info = SandboxInfo::new("docker", container.sandbox.clone(), directory);
    info.isolation = Isolation::Container;
    info.walls = walls(&container.engine, options, means);
    info
}

/// What keeps the code in, for people.
pub(crate) fn walls(engine: &Engine, options: &Options, means: &Means) -> Vec<String> {
    let mut walls = vec![format!("container of {}", engine.report().version)];
    if let Some(runtime) = &options.runtime {
        walls.push(format!("runtime {runtime}"));
    }
    walls.push("no capabilities".to_owned());
    walls.push("no new privileges".to_owned());
    if options.read_only_root {
        walls.push("read-only image".to_owned());
    }
    if matches!(means, Means::Plain { .. }) {
        walls.push("without supervisor: each command is an exec of the engine's".to_owned());
    }
    walls
}

fn relay_options(options: &Options) -> RelayOptions {
    let mut relay = RelayOptions::new(options.working_directory.clone());
    relay.identity = Some(options.user);
    relay
}

/// Speaks to the supervisor at the other end.
async fn supervised(
    stream: Stream,
    options: RelayOptions,
    variables: &Variables,
    policy: &Policy,
) -> Result<Means, SandboxError> {
    let relay = connect(stream, options, variables, policy).await?;
    let memory = policy
        .limits
        .memory_bytes
        .map(|limit| Arc::new(MemoryLimit::new(limit)));
    Ok(Means::Supervised { relay, memory })
}

pub(crate) async fn connect(
    stream: Stream,
    mut options: RelayOptions,
    variables: &Variables,
    policy: &Policy,
) -> Result<Relay, SandboxError> {
    let pairs = variables.iter();
    options.environment = pairs
        .map(|(name, value)| (OsString::from(name), OsString::from(value.expose())))
        .collect::<BTreeMap<_, _>>();
    options.limits = policy.limits.clone();
    let Stream {
        reader,
        writer,
        complaints,
    } = stream;
    Relay::connect(reader, writer, options)
        .await
        .map_err(|error| {
            let said = complaints.text();
            if said.is_empty() {
                return error;
            }
            let message = format!("{error}: {said}");
            SandboxError::new(SandboxErrorKind::Unavailable, message).with_source(error)
        })
}

/// Has the engine start commands.
fn unsupervised(
    stream: Stream,
    container: &Container,
    options: &Options,
    variables: Variables,
    policy: &Policy,
) -> Means {
    let gone = CancellationToken::new();
    let plain = Plain::new(
        container.clone(),
        options.user_text.clone(),
        options.working_directory.clone(),
        variables,
        policy.limits.clone(),
        gone.clone(),
    );
    let watch = tokio::spawn(async move {
        let _guard = gone.drop_guard();
        // Dropped with this task, it ends the container.
        let _writer = stream.writer;
        let mut reader = stream.reader;
        let mut bytes = [0; 1024];
        while reader.read(&mut bytes).await.is_ok_and(|length| length > 0) {}
    });
    Means::Plain {
        plain,
        watch: Mutex::new(Some(AbortOnDropHandle::new(watch))),
    }
}

/// Opens a sandbox that was kept.
pub(crate) async fn reattach(
    backend: &DockerBackend,
    handle: &SandboxHandle,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    let gone = || SandboxError::gone("there is no container of this handle any more");
    let token: Token =
        serde_json::from_str(&handle.token).map_err(|error| gone().with_source(error))?;
    if !owner::is_id(&token.sandbox) {
        return Err(gone());
    }
    let engine = backend.engine().await?;
    let container = claim(engine, &token.sandbox).await?;
    match reopen(backend, &container, cx).await {
        Ok(sandbox) => Ok(Arc::new(sandbox)),
        Err(error) => {
            // Free for others at once. The name of one that runs can't always be changed: some
            // engines fail to where it has a network and was started more than once.
            let kept = Name::Kept { id: token.sandbox };
            if let Err(error) = container.rename(&container.id, &kept).await {
                tracing::debug!(%error, "a claim stays until it is over");
            }
            Err(error)
        }
    }
}

async fn inspect(engine: &Engine, id: &str) -> Result<ContainerInspectResponse, SandboxError> {
    let looked = engine.api().inspect_container(id, None).await;
    looked.map_err(|error| failed("failed to look at a container", error))
}

/// Makes a kept sandbox ours; one that runs is somebody's.
async fn claim(engine: &Engine, sandbox: &str) -> Result<Container, SandboxError> {
    let began = Instant::now();
    let mut seen: Option<(Name, Instant)> = None;
    loop {
        let label = format!("{}={sandbox}", owner::SANDBOX);
        let found = reclaim::list(engine, label).await?.into_iter().next();
        let found =
            found.ok_or_else(|| SandboxError::gone("the container of this handle was removed"))?;
        let state = inspect(engine, &found.id).await?.state.unwrap_or_default();
        let is_running = state.running.unwrap_or(false);
        let ended_at = state.finished_at.unwrap_or_default();
        let is_free = match &found.name {
            Name::Owned { .. } | Name::Kept { .. } | Name::Filling { .. } => true,
            Name::Claimed { by, claim, .. } => {
                let since = match &seen {
                    Some((name, since)) if *name == found.name => *since,
                    _ => Instant::now(),
                };
                seen = Some((found.name.clone(), since));
                claim.is_over(&ended_at) || by.is_dead() || since.elapsed() > CLAIM_DEADLINE
            }
        };
        if !is_running && is_free {
            let claimed = Name::Claimed {
                id: sandbox.to_owned(),
                by: Owner::own(),
                claim: Claim::new(&ended_at),
            };
            let container = Container {
                engine: engine.clone(),
                id: found.id,
                sandbox: sandbox.to_owned(),
            };
            // By its name, which mostly only one of those who try finds. Engines look it up before they
            // lock it, so that two may; then the last one has it, and the others see that.
            let renamed = container.rename(&found.name.to_string(), &claimed).await;
            if renamed.is_ok() {
                sleep(CLAIM_SETTLES).await;
                let name = inspect(engine, &container.id).await?.name;
                if name.and_then(|name| Name::parse(&name)).as_ref() == Some(&claimed) {
                    return Ok(container);
                }
            }
        } else if began.elapsed() > END_DEADLINE + CLAIM_DEADLINE
            || (is_running && began.elapsed() > END_DEADLINE)
        {
            let message = "the sandbox is in use: its container runs, or is being started";
            return Err(
                SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(
                    "End the run that uses it, or use a sandbox of its own for each run.",
                ),
            );
        }
        sleep(LOOK_EVERY).await;
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
    let has_our_program = mounts
        .iter()
        .any(|mount| mount.name == Some(program::volume_name()));
    if is_supervised && !has_our_program {
        let message =
            "the sandbox was made by another version of this program, whose supervisor it has";
        return Err(
            SandboxError::new(SandboxErrorKind::Unavailable, message).with_advice(
                "Use that version to go on with it; its files can be had with `docker cp`.",
            ),
        );
    }
    // What is fixed since it was made is as it was made.
    let mut options = backend.options().clone();
    if let Some(directory) = &config.working_dir {
        options.working_directory = cantle_core::sandbox::SandboxPath::new(directory)?;
    }
    let host = found.host_config.unwrap_or_default();
    let enforcement = plan::enforcement_of(&host, &cx.policy, &options, engine.limiting())?;
    let pairs: Vec<_> = config
        .env
        .iter()
        .flatten()
        .filter_map(|line| line.split_once('='))
        .collect();
    let image: Vec<_> = pairs
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let variables = environment::variables(&options, &image, &cx.policy)?;
    let stream = container.start().await?;
    let means = if is_supervised {
        let mut relay = relay_options(&options);
        if host.readonly_rootfs != Some(true) {
            relay.staging = Some(Arc::new(container.clone()));
        }
        supervised(stream, relay, &variables, &cx.policy).await?
    } else {
        unsupervised(stream, container, &options, variables, &cx.policy)
    };
    let mut info = information(container, &options, &means);
    info.enforcement = enforcement;
    info.survival = Survival::Workspace;
    Ok(DockerSandbox::new(info, container.clone(), means, End::Ours).kept())
}
