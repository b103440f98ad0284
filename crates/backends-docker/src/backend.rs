//! The configuration from which sandboxes are opened.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use cantle_core::sandbox::{
    Backend, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle, SandboxPath,
};
use cantle_core::secret::SecretText;
use cantle_core::tool::Progress;
use tokio::sync::{Mutex, OnceCell};

use crate::engine::{Engine, EngineReport};
use crate::image::{Image, Images, Recipe, built, pulled};
use crate::options::Options;
use crate::reclaim::{self, Reclaimed};
use crate::{attach, open, program};

/// Where commands run unless another directory is chosen.
const WORKSPACE: &str = "/workspace";

/// As whom commands run unless somebody else is chosen: the first ordinary user of most images.
const USER: (u32, u32) = (1000, 1000);

/// Opens sandboxes in containers of a Docker or Podman engine.
///
/// See the [crate's documentation](crate) for what that means.
#[derive(Clone, Debug)]
pub struct DockerBackend {
    source: Source,
    options: Options,
    shared: Arc<Shared>,
}

/// What a sandbox's container is.
#[derive(Clone, Debug)]
enum Source {
    Image(String),
    Dockerfile(Recipe),
    Container(String),
}

/// What is found out once for all sandboxes of a backend.
#[derive(Debug, Default)]
struct Shared {
    engine: OnceCell<Engine>,
    images: Images,
    /// How many times the engine was given our program.
    program: Mutex<u64>,
}

impl DockerBackend {
    fn new(source: Source) -> Self {
        // It is a path: there is nothing in it that could be refused.
        let working_directory =
            SandboxPath::new(WORKSPACE).unwrap_or_else(|_| SandboxPath::working_directory());
        let (user, group) = USER;
        Self {
            source,
            options: Options {
                host: None,
                runtime: None,
                network: None,
                cpus: None,
                read_only_root: false,
                user: USER,
                user_text: format!("{user}:{group}"),
                working_directory,
                has_chosen_directory: false,
                passed: Vec::new(),
                environment_file: None,
                supervised: true,
            },
            shared: Arc::default(),
        }
    }

    /// Containers of this image, e.g. `python:3.12-slim`; pulled where the engine doesn't have it, once
    /// however many sandboxes wait for it.
    pub fn from_image(image: impl Into<String>) -> Self {
        Self::new(Source::Image(image.into()))
    }

    /// Containers of the image that this Dockerfile makes from `context`, the directory of its `COPY`
    /// lines, with these build arguments. Built where the engine doesn't have it: its tag
    /// (`cantle-build:…`) names the content of all of them. `.dockerignore` is heeded. An image that it
    /// is `FROM` and that changes later is no reason to build again; `docker rmi` is.
    pub fn from_dockerfile<N: Into<String>, V: Into<SecretText>>(
        dockerfile: impl Into<PathBuf>,
        context: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        let arguments = arguments.into_iter();
        Self::new(Source::Dockerfile(Recipe {
            dockerfile: dockerfile.into(),
            context: context.into(),
            arguments: arguments
                .map(|(name, value)| (name.into(), value.into()))
                .collect::<BTreeMap<_, _>>(),
            network: None,
        }))
    }

    /// A container that runs already, by name or id. It is somebody else's: it is never stopped or
    /// removed, its limits stay what they are, and commands run as its own user in its own working
    /// directory unless [another one](Self::with_working_directory) is chosen.
    pub fn attach(container: impl Into<String>) -> Self {
        Self::new(Source::Container(container.into()))
    }

    /// The same with the engine at this address (`unix:///PATH`, `tcp://HOST:PORT`) instead of the one
    /// that `DOCKER_HOST`, the Docker context in use or the usual places lead to.
    #[must_use]
    pub fn with_host(mut self, address: impl Into<String>) -> Self {
        self.options.host = Some(address.into());
        self.shared = Arc::default();
        self
    }

    /// The same with another of the engine's runtimes, e.g. `runsc` (gVisor).
    #[must_use]
    pub fn with_runtime(mut self, runtime: impl Into<String>) -> Self {
        self.options.runtime = Some(runtime.into());
        self
    }

    /// The same with this network of the engine's where the policy leaves the network open.
    #[must_use]
    pub fn with_network(mut self, network: impl Into<String>) -> Self {
        self.options.network = Some(network.into());
        self
    }

    /// The same with so many processors' time, e.g. `1.5`.
    #[must_use]
    pub fn with_cpus(mut self, cpus: f64) -> Self {
        self.options.cpus = Some(cpus);
        self
    }

    /// The same with an image that can't be written: only the working directory and `/tmp` can, which
    /// are in memory, so that nothing of such a sandbox can be kept.
    #[must_use]
    pub fn with_read_only_root(mut self) -> Self {
        self.options.read_only_root = true;
        self
    }

    /// The same with commands run as this user and group instead of 1000 and 1000.
    #[must_use]
    pub fn with_user(mut self, user: u32, group: u32) -> Self {
        self.options.user = (user, group);
        self.options.user_text = format!("{user}:{group}");
        self
    }

    /// The same with another working directory than `/workspace`.
    ///
    /// # Errors
    /// [`SandboxErrorKind::InvalidInput`] where it is not an absolute path below the root.
    pub fn with_working_directory(mut self, directory: &str) -> Result<Self, SandboxError> {
        let path = SandboxPath::new(directory)?;
        if !path.is_absolute() || path.is_start() {
            let message = format!(
                "`{directory}` can't be a working directory: it is not absolute, or the root"
            );
            return Err(SandboxError::new(SandboxErrorKind::InvalidInput, message));
        }
        self.options.working_directory = path;
        self.options.has_chosen_directory = true;
        Ok(self)
    }

    /// The same with these variables passed on to commands: from our own environment, or else from the
    /// file of [`with_environment_file`](Self::with_environment_file).
    #[must_use]
    pub fn pass_environment<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.options
            .passed
            .extend(names.into_iter().map(Into::into));
        self
    }

    /// The same with this file of variables (`NAME=value` lines) instead of `.env` in the current
    /// directory, which need not exist.
    #[must_use]
    pub fn with_environment_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.options.environment_file = Some(file.into());
        self
    }

    /// The same with this network for the `RUN` lines of a Dockerfile: `none`, `host`, or one of the
    /// engine's.
    #[must_use]
    pub fn with_build_network(mut self, network: impl Into<String>) -> Self {
        if let Source::Dockerfile(recipe) = &mut self.source {
            recipe.network = Some(network.into());
        }
        self
    }

    /// The same without our supervisor in the container, as where it can't run: to see what it
    /// contributes, and what is left where it is missing.
    #[must_use]
    pub fn without_supervisor(mut self) -> Self {
        self.options.supervised = false;
        self
    }

    /// What the engine says of itself.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unavailable`] where none answers, with advice on what to do.
    pub async fn probe(&self) -> Result<EngineReport, SandboxError> {
        Ok(self.engine().await?.report().clone())
    }

    /// Removes the containers that processes of this host left on the engine who were killed and so
    /// could not: those whose owner has ended, and that are not [kept](Sandbox::persist). Another
    /// host's are left alone, and so is whatever has no labels of ours. What this process has closed
    /// while the engine was away is removed as well, here and whenever a sandbox is opened.
    ///
    /// # Errors
    /// [`SandboxErrorKind::Unavailable`] where no engine answers.
    pub async fn reclaim(&self) -> Result<Reclaimed, SandboxError> {
        reclaim::reclaim(self.engine().await?).await
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    pub(crate) async fn engine(&self) -> Result<&Engine, SandboxError> {
        let connect = || Engine::connect(self.options.host.as_deref());
        self.shared.engine.get_or_try_init(connect).await
    }

    /// The image of the containers, on the engine.
    pub(crate) async fn image(&self, progress: &dyn Progress) -> Result<Image, SandboxError> {
        let engine = self.engine().await?;
        let images = &self.shared.images;
        match &self.source {
            Source::Image(name) => images.once(name, pulled(engine, name, progress)).await,
            Source::Dockerfile(recipe) => images.once("", built(engine, recipe, progress)).await,
            Source::Container(_) => Err(SandboxError::unsupported("a container is no image")),
        }
    }

    /// Forgets what it knows of the engine: somebody has removed an image.
    pub(crate) fn forget(&self) {
        self.shared.images.forget(match &self.source {
            Source::Image(name) => name,
            _ => "",
        });
    }

    /// Puts our program on the engine, unless it is there; how many times it was given to it.
    pub(crate) async fn provide_program(&self, image: &str) -> Result<u64, SandboxError> {
        let mut provided = self.shared.program.lock().await;
        if *provided == 0 {
            program::provide(self.engine().await?, image).await?;
            *provided = 1;
        }
        Ok(*provided)
    }

    /// Provides it again where it was lost; whether the engine was given it once more than `before`.
    pub(crate) async fn is_provided_again(&self, before: u64, image: &str) -> bool {
        let mut provided = self.shared.program.lock().await;
        // Another one of ours may have found out first.
        if *provided == before
            && let Ok(engine) = self.engine().await
            && let Ok(true) = program::provide(engine, image).await
        {
            *provided += 1;
        }
        *provided != before
    }
}

#[async_trait]
impl Backend for DockerBackend {
    fn name(&self) -> &str {
        "docker"
    }

    async fn open(&self, cx: SandboxContext) -> Result<Arc<dyn Sandbox>, SandboxError> {
        match &self.source {
            Source::Container(container) => attach::open(self, container, &cx).await,
            _ => open::open(self, &cx).await,
        }
    }

    async fn reattach(
        &self,
        handle: &SandboxHandle,
        cx: SandboxContext,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        open::reattach(self, handle, &cx).await
    }
}
