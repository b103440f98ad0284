//! Opening of sandboxes in new containers, and reattaching to kept ones.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use cantle_core::policy::{Policy, Strictness};
use cantle_core::sandbox::{
    Backend, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxPath,
};
use cantle_proxy::ProxySettings;
use futures_util::StreamExt as _;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep};

use crate::backend::DockerBackend;
use crate::container::facts::ContainerFacts;
use crate::container::spec::{self, ContainerSpec};
use crate::container::{Container, ContainerStream, inspect};
use crate::engine::Engine;
use crate::environment::{self, Variables};
use crate::options::Options;
use crate::owner::{self, Claim, ContainerName, Owner};
use crate::relay::RelayOptions;
use crate::runner::CommandRunner;
use crate::sandbox::{DockerSandbox, HandleToken, Ownership};
use crate::{attach, plain, program, reclaim};

/// How long a kept container may take to stop before it is considered in use.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long another process may take to start a container that it has claimed.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(10);
/// Upper bound of the time between an engine's lookup and change of a name.
const RENAME_RACE: Duration = Duration::from_millis(100);
const POLL_INTERVAL: Duration = Duration::from_millis(30);

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &str {
        "docker"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        if self.container().is_none() {
            // Unlike the rest, a pull or a build ends if the caller is dropped.
            self.image(&*cx.progress).await?;
        }
        let backend = self.clone();
        let (done, opened) = oneshot::channel();
        // If it was interrupted, a container could remain that was created but not started, or the supervisor's file in
        // a running one.
        self.spawn_task(async move {
            let opened = match backend.container() {
                Some(container) => attach::open(&backend, container, &cx).await,
                None => open_with_retry(&backend, &cx).await,
            };
            if let Err(Ok(sandbox)) = done.send(opened)
                && let Err(error) = sandbox.close().await
            {
                tracing::warn!(%error, "failed to close a sandbox whose opening was abandoned");
            }
        });
        opened.await.unwrap_or_else(|_| {
            let message = "no sandbox was opened: the runtime was shut down";
            Err(SandboxError::new(SandboxErrorKind::Io, message))
        })
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let gone = || SandboxError::gone("the container of this handle no longer exists");
        let token: HandleToken =
            serde_json::from_str(&handle.token).map_err(|error| gone().with_source(error))?;
        if !owner::is_id(&token.sandbox) {
            return Err(gone());
        }
        let container = claim(self.engine().await?, &token.sandbox).await?;
        match reopen(self, &container, &cx).await {
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
}

async fn open_with_retry(
    backend: &DockerBackend,
    cx: &SandboxContext,
) -> Result<Arc<dyn Sandbox>, SandboxError> {
    match open_once(backend, cx).await {
        // The cached image was removed from the engine.
        Err(error) if error.kind() == SandboxErrorKind::NotFound => {
            backend.forget_image().await;
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
    backend.remove_remembered(engine);
    let image = backend.image(&*cx.progress).await?;
    let options = backend.options();
    let is_supervised = options.supervised && image.fits_supervisor && program::bytes().is_some();
    let spec = ContainerSpec {
        options,
        policy: &cx.policy,
        defaults: &engine.default_limits(),
        durable: cx.durable,
        supervised: is_supervised,
        image_volumes: &image.volumes,
    };
    let enforcement = spec.enforcement(engine)?;
    let proxy = spec::proxy(&cx.policy, is_supervised);
    let variables =
        environment::variables(options, &image.environment, proxy.as_ref(), &cx.policy)?;
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
        if spec.is_read_only() && !image.volumes.is_empty() {
            let checked = check_read_only(&container).await;
            container.or_remove(checked).await?;
        }
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
    let relay = is_supervised.then(|| RelayOptions {
        makes_directories: true,
        ..relay_options(options, proxy)
    });
    let runner = run(&container, stream, options, variables, &cx.policy, relay).await;
    let runner = container.or_remove(runner).await?;
    let ownership = match spec.survives() {
        true => Ownership::Owned { kept: false },
        false => Ownership::AutoRemoved,
    };
    let mechanisms = mechanisms(engine, options, &runner);
    Ok(Arc::new(DockerSandbox::new(
        container,
        options,
        &cx.policy,
        runner,
        mechanisms,
        enforcement,
        ownership,
    )))
}

/// Checks that the image's volumes are covered.
async fn check_read_only(container: &Container) -> Result<(), SandboxError> {
    let found = inspect(&container.engine, &container.id).await?;
    let facts = ContainerFacts::inspected(&container.engine, &found).await;
    if facts.has_writable_mounts {
        let message = "the image declares a volume that the engine leaves writable";
        return Err(SandboxError::unavailable(message).with_advice(
            "Use an image without `VOLUME`, or no limit of disk and a writable root.",
        ));
    }
    Ok(())
}

/// Returns the setup of a supervisor that is a container's first process.
fn relay_options(options: &Options, proxy: Option<ProxySettings>) -> RelayOptions {
    let mut relay = RelayOptions::new(options.working_directory.clone());
    relay.identity = Some(options.user);
    relay.filters_calls = true;
    relay.proxy = proxy;
    relay
}

/// Runs commands by the supervisor that is to be set up like `relay`, or as execs beside a shell, for as long as the
/// stream is open.
async fn run(
    container: &Container,
    mut stream: ContainerStream,
    options: &Options,
    variables: Variables,
    policy: &Policy,
    relay: Option<RelayOptions>,
) -> Result<CommandRunner, SandboxError> {
    let limits = &policy
        .limits
        .with_defaults(&container.engine.default_limits());
    let Some(relay) = relay else {
        let end = async move {
            // Dropping it ends the container.
            let _stdin = stream.stdin;
            while let Some(Ok(_)) = stream.stdout.next().await {}
        };
        return Ok(CommandRunner::exec(
            container, options, variables, limits, end,
        ));
    };
    let runner = CommandRunner::supervised(stream, relay, &variables, limits).await?;
    if policy.strictness == Strictness::Strict && !runner.has_filter() {
        let message = "the engine's kernel did not install the system call filter, which a strict policy needs";
        return Err(SandboxError::unavailable(message).with_advice(
            "Use a kernel with seccomp, or accept that it is missing (best effort).",
        ));
    }
    Ok(runner)
}

/// Lists the isolation mechanisms, for display.
fn mechanisms(engine: &Engine, options: &Options, runner: &CommandRunner) -> Vec<String> {
    let filter = runner.has_filter().then(|| "system call filter".to_owned());
    let runtime = options.runtime.iter();
    let read_only = options.read_only_root.then(|| "read-only image".to_owned());
    std::iter::once(format!("container of {}", engine.report().version))
        .chain(runtime.map(|runtime| format!("runtime {runtime}")))
        .chain(["no capabilities", "no new privileges"].map(str::to_owned))
        .chain(filter)
        .chain(read_only)
        .collect()
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
            ContainerName::Claimed { by, claim, .. } => {
                let since = match &first_seen {
                    Some((name, since)) if *name == found.name => *since,
                    _ => Instant::now(),
                };
                first_seen = Some((found.name.clone(), since));
                claim.is_over(&ended_at) || by.is_dead() || since.elapsed() > CLAIM_TIMEOUT
            }
            _ => true,
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
            return Err(SandboxError::unavailable(message)
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
    let facts = ContainerFacts::inspected(engine, &found).await;
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
        return Err(SandboxError::unavailable(message)
            .with_advice("Use that version to continue it, or copy its files with `docker cp`."));
    }
    // The container's own settings win over the backend's.
    let mut options = backend.options().clone();
    if let Some(directory) = &config.working_dir {
        options.working_directory = SandboxPath::new(directory)?;
    }
    let enforcement = spec::enforcement(
        &facts,
        &cx.policy,
        &engine.default_limits(),
        engine.supported_limits(),
        is_supervised,
        spec::EXISTING_CONTAINER,
    )?;
    let image = config.env.as_deref().unwrap_or_default();
    let proxy = spec::proxy(&cx.policy, facts.is_offline && is_supervised);
    let variables = environment::variables(&options, image, proxy.as_ref(), &cx.policy)?;
    let stream = container.start().await?;
    let relay = is_supervised.then(|| relay_options(&options, proxy));
    let runner = run(container, stream, &options, variables, &cx.policy, relay).await?;
    let mut mechanisms = mechanisms(engine, &options, &runner);
    mechanisms.extend(facts.exceptions().map(|it| format!("weakened: {it}")));
    Ok(DockerSandbox::new(
        container.clone(),
        &options,
        &cx.policy,
        runner,
        mechanisms,
        enforcement,
        Ownership::Owned { kept: true },
    ))
}
