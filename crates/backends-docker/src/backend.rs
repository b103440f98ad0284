//! The backend: configuration from which sandboxes are opened.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::sandbox::{SandboxError, SandboxPath};
use cantle_core::secret::SecretText;
use cantle_core::tool::Progress;
use parking_lot::Mutex as SyncMutex;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinSet;

use crate::engine::{Engine, EngineReport};
use crate::image::{self, BuildSpec, Image, ImageCache};
use crate::options::Options;
use crate::reclaim::{self, Reclaimed};
use crate::volume;

/// Default working directory.
const WORKSPACE: &str = "/workspace";

/// Default user and group of commands: the first ordinary user of most images.
const USER: (u32, u32) = (1000, 1000);

/// Opens sandboxes in containers of a Docker or Podman engine.
///
/// See the [crate documentation](crate).
#[must_use]
#[derive(Clone, Debug)]
pub struct DockerBackend {
    source: Source,
    options: Options,
    shared: Arc<Shared>,
}

/// The source of a sandbox's container.
#[derive(Clone, Debug)]
enum Source {
    Image(String),
    Dockerfile(BuildSpec),
    Container(String),
}

/// State shared by all sandboxes of a backend.
#[derive(Debug, Default)]
struct Shared {
    engine: OnceCell<Engine>,
    image: ImageCache,
    /// Number of times the supervisor's volume was filled.
    volume_fills: Mutex<u64>,
    /// Held while remembered containers are removed in the background.
    removal: Arc<Mutex<()>>,
    /// Work that continues if its caller is dropped: opening sandboxes, and removing remembered containers.
    tasks: SyncMutex<JoinSet<()>>,
}

impl DockerBackend {
    fn new(source: Source) -> Self {
        // A constant valid path.
        let working_directory =
            SandboxPath::new(WORKSPACE).unwrap_or_else(|_| SandboxPath::working_directory());
        let (user, group) = USER;
        Self {
            source,
            options: Options {
                host: None,
                runtime: None,
                network: None,
                read_only_root: false,
                user: USER,
                user_text: format!("{user}:{group}"),
                working_directory,
                has_chosen_directory: false,
                inherited: Vec::new(),
                environment_file: None,
                supervised: true,
            },
            shared: Arc::default(),
        }
    }

    /// Uses containers of this image, e.g. `python:3.12-slim`.
    ///
    /// The image is pulled once if the engine doesn't have it.
    pub fn from_image(image: impl Into<String>) -> Self {
        Self::new(Source::Image(image.into()))
    }

    /// Uses containers of the image built from this Dockerfile, context directory and build arguments.
    ///
    /// The image is built once; its tag (`cantle-build:…`) is a digest of all inputs, without files excluded by
    /// `.dockerignore`. A base image that changes later doesn't cause a new build; `docker rmi` does.
    pub fn from_dockerfile<N: Into<String>, V: Into<SecretText>>(
        dockerfile: impl Into<PathBuf>,
        context: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let arguments = arguments.into_iter();
        Self::new(Source::Dockerfile(BuildSpec {
            dockerfile: dockerfile.into(),
            context: context.into(),
            arguments: arguments
                .map(|(name, value)| (name.into(), value.into()))
                .collect::<BTreeMap<_, _>>(),
            network: None,
            digest: None,
        }))
    }

    /// Builds only if [`build_digest`](crate::build_digest) of the Dockerfile and its context is this one;
    /// opening a sandbox fails otherwise. Does nothing without a Dockerfile.
    pub fn with_build_digest(mut self, digest: impl Into<String>) -> Self {
        if let Source::Dockerfile(spec) = &mut self.source {
            spec.digest = Some(digest.into());
        }
        self
    }

    /// Uses a running container, by name or id.
    ///
    /// It is never stopped, changed or removed. Commands run as its user in its working directory, unless
    /// [another one](Self::with_working_directory) is set.
    pub fn attach(container: impl Into<String>) -> Self {
        Self::new(Source::Container(container.into()))
    }

    /// Sets the engine's address (`unix:///PATH`, `tcp://HOST:PORT`).
    ///
    /// The default comes from `DOCKER_HOST`, the current Docker context, or the default sockets.
    pub fn with_host(mut self, address: impl Into<String>) -> Self {
        self.options.host = Some(address.into());
        self.shared = Arc::default();
        self
    }

    /// Sets the OCI runtime, e.g. `runsc` (gVisor).
    pub fn with_runtime(mut self, runtime: impl Into<String>) -> Self {
        self.options.runtime = Some(runtime.into());
        self
    }

    /// Sets the engine's network for policies that allow network access.
    pub fn with_network(mut self, network: impl Into<String>) -> Self {
        self.options.network = Some(network.into());
        self
    }

    /// Makes the image read-only.
    ///
    /// The working directory and `/tmp` are then in memory, so that such a sandbox can't be kept.
    pub fn with_read_only_root(mut self) -> Self {
        self.options.read_only_root = true;
        self
    }

    /// Sets the user and group of commands; 1000 and 1000 by default.
    pub fn with_user(mut self, user: u32, group: u32) -> Self {
        self.options.user = (user, group);
        self.options.user_text = format!("{user}:{group}");
        self
    }

    /// Sets the working directory; `/workspace` by default.
    ///
    /// # Errors
    /// [`InvalidInput`](cantle_core::sandbox::SandboxErrorKind::InvalidInput) if it is not an absolute path below the root.
    pub fn with_working_directory(mut self, directory: &str) -> Result<Self, SandboxError> {
        let path = SandboxPath::new(directory)?;
        if !path.is_absolute() || path.is_base() {
            let message = format!(
                "`{directory}` can't be a working directory: it is not absolute, or the root"
            );
            return Err(SandboxError::invalid_input(message));
        }
        self.options.working_directory = path;
        self.options.has_chosen_directory = true;
        Ok(self)
    }

    /// Adds variables that commands inherit from this process's environment.
    ///
    /// Unset ones are read from the file of [`with_environment_file`](Self::with_environment_file).
    pub fn pass_environment<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.options
            .inherited
            .extend(names.into_iter().map(Into::into));
        self
    }

    /// Sets the file of variables (`NAME=value` lines); `.env` in the current directory by default.
    ///
    /// Only the default file may be missing.
    pub fn with_environment_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.environment_file = Some(file.into());
        self
    }

    /// Sets the network for `RUN` instructions: `none`, `host`, or a network of the engine.
    pub fn with_build_network(mut self, network: impl Into<String>) -> Self {
        if let Source::Dockerfile(spec) = &mut self.source {
            spec.network = Some(network.into());
            // A clone may have built its image with another network.
            self.shared = Arc::default();
        }
        self
    }

    /// Disables the supervisor, as on engines where it can't run; for tests and comparisons.
    pub fn without_supervisor(mut self) -> Self {
        self.options.supervised = false;
        self
    }

    /// Connects to the engine and returns its description.
    ///
    /// # Errors
    /// [`Unavailable`](cantle_core::sandbox::SandboxErrorKind::Unavailable) with advice, if no engine answers.
    pub async fn probe(&self) -> Result<EngineReport, SandboxError> {
        Ok(self.engine().await?.report().clone())
    }

    /// Removes containers of this host whose owner has died, except [kept](cantle_core::sandbox::Sandbox::persist) ones.
    ///
    /// Containers of other hosts, and those without Cantle's labels, are left alone. Containers that this process
    /// could not remove when it closed them are removed here and whenever a sandbox is opened.
    ///
    /// # Errors
    /// [`Unavailable`](cantle_core::sandbox::SandboxErrorKind::Unavailable) if no engine answers.
    pub async fn reclaim(&self) -> Result<Reclaimed, SandboxError> {
        reclaim::reclaim(self.engine().await?).await
    }

    /// Removes built images with the label `cantle.purpose=PURPOSE` that were built longer ago than `age`, if no container
    /// is of them.
    ///
    /// # Errors
    /// [`Unavailable`](cantle_core::sandbox::SandboxErrorKind::Unavailable) if no engine answers.
    pub async fn remove_images(
        &self,
        purpose: &str,
        age: Duration,
    ) -> Result<Reclaimed, SandboxError> {
        reclaim::remove_images(self.engine().await?, purpose, age).await
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Returns the name or id of the container to use instead of an image.
    pub(crate) fn container(&self) -> Option<&str> {
        match &self.source {
            Source::Container(container) => Some(container),
            Source::Image(_) | Source::Dockerfile(_) => None,
        }
    }

    pub(crate) async fn engine(&self) -> Result<&Engine, SandboxError> {
        let connect = || Engine::connect(self.options.host.as_deref());
        self.shared.engine.get_or_try_init(connect).await
    }

    /// Returns the image; pulls or builds it if necessary.
    pub(crate) async fn image(&self, progress: &dyn Progress) -> Result<Image, SandboxError> {
        let engine = self.engine().await?;
        let obtain = async || match &self.source {
            Source::Image(name) => image::pull_if_missing(engine, name, progress).await,
            Source::Dockerfile(spec) => image::build_if_missing(engine, spec, progress).await,
            Source::Container(_) => Err(SandboxError::unsupported("a container is not an image")),
        };
        self.shared.image.get_or_init(obtain).await
    }

    /// Spawns a task that continues if its caller is dropped.
    pub(crate) fn spawn_task(&self, task: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.shared.tasks.lock();
        while tasks.try_join_next().is_some() {}
        tasks.spawn(task);
    }

    /// Retries in the background to remove the closed containers that could not be removed: one that is stuck must not
    /// delay others.
    pub(crate) fn remove_remembered(&self, engine: &Engine) {
        if engine.unremoved().is_empty() {
            return;
        }
        let Ok(removal) = Arc::clone(&self.shared.removal).try_lock_owned() else {
            return;
        };
        let engine = engine.clone();
        self.spawn_task(async move {
            // Failures are reported by `reclaim`.
            let _ = reclaim::remove_remembered(&engine).await;
            drop(removal);
        });
    }

    /// Drops the cached image after it was removed from the engine.
    pub(crate) async fn forget_image(&self) {
        self.shared.image.clear().await;
    }

    /// Fills the supervisor's volume if necessary; returns how often it was filled.
    pub(crate) async fn provide_program(&self, image: &str) -> Result<u64, SandboxError> {
        let mut fills = self.shared.volume_fills.lock().await;
        if *fills == 0 {
            volume::provide(self.engine().await?, image).await?;
            *fills = 1;
        }
        Ok(*fills)
    }

    /// Fills a lost volume again; returns whether it was filled since `before`.
    pub(crate) async fn is_provided_again(&self, before: u64, image: &str) -> bool {
        let mut fills = self.shared.volume_fills.lock().await;
        // A concurrent caller may have filled it already.
        if *fills == before
            && let Ok(engine) = self.engine().await
            && let Ok(true) = volume::provide(engine, image).await
        {
            *fills += 1;
        }
        *fills != before
    }
}
