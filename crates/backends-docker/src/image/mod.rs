//! Images: pulled or built once, however many sandboxes request one at the same time.

mod context;
mod ignore;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::Metadata;
use std::path::{Path, PathBuf};

use bollard::auth::DockerCredentials;
use bollard::models::ImageInspect;
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;
use cantle_core::tool::Progress;
use futures_util::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio::sync::Mutex;
use tokio_util::io::ReaderStream;

use crate::engine::Engine;
use crate::engine::failure::{engine_message, request_failed, status};

/// The default registry's name in Docker's configuration.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Prefix of the names of built images.
const BUILT: &str = "cantle-build:";

/// Last lines of a build's output that an error shows.
const BUILD_LINES: usize = 20;

/// An image on the engine.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Its digest; containers are created by it because a tag may move.
    pub(crate) id: String,
    /// The variables of its `ENV` instructions, each `NAME=value`.
    pub(crate) environment: Vec<String>,
    /// The absolute paths of its `VOLUME` instructions.
    pub(crate) volumes: Vec<String>,
    /// Whether the supervisor can run in it.
    pub(crate) fits_supervisor: bool,
}

/// The inputs of an image build.
#[derive(Clone, Debug)]
pub(crate) struct BuildSpec {
    pub(crate) dockerfile: PathBuf,
    pub(crate) context: PathBuf,
    pub(crate) arguments: BTreeMap<String, SecretText>,
    /// The network of `RUN` instructions: `none`, `host`, or a network of the engine.
    pub(crate) network: Option<String>,
    /// The digest that the Dockerfile and its context must have.
    pub(crate) digest: Option<String>,
}

/// Returns the SHA-256, in hexadecimal, of a Dockerfile and the directory that it builds from.
///
/// It covers names, contents, modes and link targets, without files that `.dockerignore` excludes. Calls `on_file` for
/// each file and each link that it covers. Blocks while it reads the files.
///
/// # Errors
/// If a file can't be read.
pub fn build_digest(
    dockerfile: &Path,
    context: &Path,
    mut on_file: impl FnMut(&Path, &Metadata),
) -> Result<String, SandboxError> {
    Ok(context::pack(dockerfile, context, &mut on_file)?.digest)
}

/// Returns the image of this name; pulls it if the engine doesn't have it.
pub(crate) async fn pull_if_missing(
    engine: &Engine,
    name: &str,
    progress: &dyn Progress,
) -> Result<Image, SandboxError> {
    if let Some(image) = inspect(engine, name).await? {
        return Ok(image);
    }
    pull(engine, name, progress).await?;
    inspect(engine, name).await?.ok_or_else(|| {
        SandboxError::unavailable(format!("the image `{name}` was pulled but is missing"))
    })
}

/// Returns the image of a build; builds it if the engine doesn't have it.
pub(crate) async fn build_if_missing(
    engine: &Engine,
    spec: &BuildSpec,
    progress: &dyn Progress,
) -> Result<Image, SandboxError> {
    let (dockerfile, directory) = (spec.dockerfile.clone(), spec.context.clone());
    let packing = move || context::pack(&dockerfile, &directory, &mut |_, _| {});
    let packing = tokio::task::spawn_blocking(packing);
    let packed = packing.await.map_err(|error| {
        SandboxError::new(
            SandboxErrorKind::Io,
            "packing the build context was interrupted",
        )
        .with_source(error)
    })??;
    if spec
        .digest
        .as_ref()
        .is_some_and(|digest| *digest != packed.digest)
    {
        let message = format!(
            "`{}` or its context has changed since its digest was taken",
            spec.dockerfile.display()
        );
        return Err(SandboxError::unavailable(message));
    }
    let name = format!("{BUILT}{}", tag(spec, &packed));
    if let Some(image) = inspect(engine, &name).await? {
        return Ok(image);
    }
    build(engine, spec, packed, &name, progress).await?;
    inspect(engine, &name).await?.ok_or_else(|| {
        SandboxError::unavailable(format!("the image `{name}` was built but is missing"))
    })
}

async fn inspect(engine: &Engine, name: &str) -> Result<Option<Image>, SandboxError> {
    match engine.api().inspect_image(name).await {
        Ok(found) => Ok(Some(Image::new(engine, found))),
        Err(error) if status(&error) == Some(404) => Ok(None),
        Err(error) if status(&error) == Some(400) => {
            let why = engine_message(&error);
            Err(
                SandboxError::unavailable(format!("`{name}` is not a valid image name: {why}"))
                    .with_advice("Write it like `python:3.12-slim`."),
            )
        }
        Err(error) => {
            let doing = format!("failed to inspect the image `{name}`");
            Err(request_failed(&doing, &error))
        }
    }
}

impl Image {
    fn new(engine: &Engine, found: ImageInspect) -> Self {
        let config = found.config.unwrap_or_default();
        let volumes = config.volumes.unwrap_or_default();
        let architecture = found.architecture.unwrap_or_default();
        Self {
            id: found.id.unwrap_or_default(),
            environment: config.env.unwrap_or_default(),
            // As the engine uses them for mounts.
            volumes: volumes
                .iter()
                .map(|path| format!("/{}", normalized(path)))
                .collect(),
            // The engine may emulate other processors, which must not concern the supervisor.
            fits_supervisor: engine.runs_supervisor()
                && matches!(&*architecture, "amd64" | "x86_64" | ""),
        }
    }
}

/// Returns the path without a leading slash, `.`, `..` and empty names.
fn normalized(path: &str) -> String {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names.join("/")
}

async fn pull(engine: &Engine, name: &str, progress: &dyn Progress) -> Result<(), SandboxError> {
    let (registry, repository, tag) = parse_name(name);
    let login = Engine::registry_login(registry)?.map(|auth| DockerCredentials {
        auth: Some(auth),
        serveraddress: Some(registry.to_owned()),
        ..DockerCredentials::default()
    });
    let mut options = CreateImageOptionsBuilder::default().from_image(repository);
    if let Some(tag) = tag {
        options = options.tag(tag);
    }
    tracing::info!(image = name, "pulling an image");
    progress.output(&format!("pulling the image {name}"));
    let mut steps = engine
        .api()
        .create_image(Some(options.build()), None, login);
    let mut layers = LayerProgress::default();
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| pull_error(name, registry, &error))?;
        if let Some(detail) = step.error_detail {
            let error = detail.message.unwrap_or_default();
            let error = bollard::errors::Error::DockerStreamError { error };
            return Err(pull_error(name, registry, &error));
        }
        let status = step.status.unwrap_or_default();
        if layers.update(step.id, &status) {
            let LayerProgress { all, done } = &layers;
            let (all, done) = (all.len(), done.len());
            tracing::info!(image = name, done, all, "pulling an image");
            progress.output(&format!("pulling the image {name}: {done} of {all} layers"));
        }
    }
    tracing::info!(image = name, "image pulled");
    Ok(())
}

/// Layers of an image during a pull.
#[derive(Debug, Default)]
struct LayerProgress {
    all: HashSet<String>,
    done: HashSet<String>,
}

impl LayerProgress {
    /// Records the status of a layer; returns whether one more is complete.
    fn update(&mut self, layer: Option<String>, status: &str) -> bool {
        // The first message has the tag as its id.
        let Some(layer) = layer.filter(|_| !status.starts_with("Pulling from")) else {
            return false;
        };
        self.all.insert(layer.clone());
        matches!(status, "Pull complete" | "Already exists") && self.done.insert(layer)
    }
}

/// Explains why a pull failed.
fn pull_error(name: &str, registry: &str, error: &bollard::errors::Error) -> SandboxError {
    let cause = engine_message(error);
    let lower = cause.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let advice = if has(&[
        "no such host",
        "dial tcp",
        "i/o timeout",
        "connection refused",
        "lookup ",
    ]) {
        format!(
            "The engine can't reach the registry `{registry}`: load the image manually (`docker load`, \
             `docker import`), or use one of `docker images`."
        )
    } else if has(&[
        "unauthorized",
        "authentication required",
        "no basic auth",
        "denied",
        "forbidden",
    ]) {
        format!(
            "There is no such image, or it needs a login: `docker login {registry}`. Credential helpers \
             aren't supported; pull the image manually then (`docker pull {name}`)."
        )
    } else if has(&["not found", "manifest unknown", "does not exist"]) {
        "Check the name and the tag; `docker images` lists those on the engine.".to_owned()
    } else {
        format!("Check the output of `docker pull {name}`.")
    };
    let message = format!("failed to pull the image `{name}`: {cause}");
    SandboxError::unavailable(message).with_advice(advice)
}

/// Splits an image name into registry, name without tag, and tag.
///
/// The tag defaults to `latest`, because a pull without one would fetch all tags.
fn parse_name(name: &str) -> (&str, &str, Option<&str>) {
    let registry = match name.split_once('/') {
        Some((first, _)) if first.contains(['.', ':']) || first == "localhost" => first,
        _ => DEFAULT_REGISTRY,
    };
    if name.contains('@') {
        return (registry, name, None);
    }
    match name.rsplit_once(':') {
        Some((repository, tag)) if !tag.contains('/') => (registry, repository, Some(tag)),
        _ => (registry, name, Some("latest")),
    }
}

/// Returns whether the name is one of an image that was built here. Podman prepends a registry.
pub(crate) fn is_built(name: &str) -> bool {
    name.rsplit('/')
        .next()
        .is_some_and(|name| name.starts_with(BUILT))
}

/// Returns the tag of a build: a digest of all its inputs.
fn tag(spec: &BuildSpec, packed: &context::PackedContext) -> String {
    let mut digest = Sha256::new();
    digest.update(&packed.digest);
    for (name, value) in &spec.arguments {
        for part in [name, value.expose()] {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        }
    }
    let mut text = format!("{:x}", digest.finalize());
    text.truncate(32);
    text
}

async fn build(
    engine: &Engine,
    spec: &BuildSpec,
    packed: context::PackedContext,
    name: &str,
    progress: &dyn Progress,
) -> Result<(), SandboxError> {
    let arguments: HashMap<_, _> = spec
        .arguments
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    let mut options = BuildImageOptionsBuilder::default()
        .dockerfile(packed.dockerfile)
        .t(name)
        .rm(true)
        .forcerm(true)
        .buildargs(&arguments);
    if let Some(network) = &spec.network {
        options = options.networkmode(network);
    }
    let archive = ReaderStream::with_capacity(tokio::fs::File::from_std(packed.archive), 1 << 16);
    let body = bollard::body_try_stream(archive);
    let dockerfile = spec.dockerfile.display();
    tracing::info!(%dockerfile, image = name, "building an image");
    progress.output(&format!("building {dockerfile}"));
    let mut steps = engine.api().build_image(options.build(), None, Some(body));
    let mut lines: Vec<String> = Vec::new();
    while let Some(step) = steps.next().await {
        match step {
            Ok(step) => {
                let text = step.stream.or(step.status).unwrap_or_default();
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    tracing::info!(image = name, line, "building an image");
                    // Docker's and Podman's spelling.
                    if line.starts_with("Step ") || line.starts_with("STEP ") {
                        progress.output(&format!("building {dockerfile}: {line}"));
                    }
                    lines.push(line.to_owned());
                }
                let old = lines.len().saturating_sub(BUILD_LINES);
                lines.drain(..old);
            }
            Err(error) => return Err(build_error(&spec.dockerfile, &lines, &error)),
        }
    }
    Ok(())
}

fn build_error(
    dockerfile: &Path,
    lines: &[String],
    error: &bollard::errors::Error,
) -> SandboxError {
    let mut text = format!(
        "failed to build `{}`: {}",
        dockerfile.display(),
        engine_message(error)
    );
    if !lines.is_empty() {
        text = format!("{text}\n{}", lines.join("\n"));
    }
    SandboxError::unavailable(text)
        .with_advice("Fix the Dockerfile or its context; `docker build` reports the same.")
}

/// Cache of a backend's image, which is obtained once, by one request at a time.
#[derive(Debug, Default)]
pub(crate) struct ImageCache(Mutex<Option<Image>>);

impl ImageCache {
    /// Returns the image; the first caller obtains it with `init`.
    pub(crate) async fn get_or_init(
        &self,
        init: impl AsyncFnOnce() -> Result<Image, SandboxError>,
    ) -> Result<Image, SandboxError> {
        let mut image = self.0.lock().await;
        if let Some(image) = &*image {
            return Ok(image.clone());
        }
        Ok(image.insert(init().await?).clone())
    }

    /// Drops an image that was removed from the engine.
    pub(crate) async fn clear(&self) {
        *self.0.lock().await = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layer_progress_counts_completed_layers() {
        let mut layers = LayerProgress::default();
        let mut update = |layer: Option<&str>, status| {
            let changed = layers.update(layer.map(str::to_owned), status);
            (changed, layers.done.len(), layers.all.len())
        };
        assert_eq!(
            update(Some("3.12"), "Pulling from library/python"),
            (false, 0, 0)
        );
        assert_eq!(update(Some("a1"), "Pulling fs layer"), (false, 0, 1));
        assert_eq!(update(Some("b2"), "Already exists"), (true, 1, 2));
        assert_eq!(update(Some("a1"), "Downloading"), (false, 1, 2));
        assert_eq!(update(Some("a1"), "Pull complete"), (true, 2, 2));
        assert_eq!(update(None, "Digest: sha256:00"), (false, 2, 2));
    }

    #[test]
    fn name_is_split_into_registry_and_tag() {
        let cases = [
            ("python", ("index.docker.io", "python", Some("latest"))),
            ("python:3.12", ("index.docker.io", "python", Some("3.12"))),
            ("me/app", ("index.docker.io", "me/app", Some("latest"))),
            (
                "localhost/app",
                ("localhost", "localhost/app", Some("latest")),
            ),
            (
                "r.example.com:5000/app",
                (
                    "r.example.com:5000",
                    "r.example.com:5000/app",
                    Some("latest"),
                ),
            ),
            (
                "r.example.com:5000/app:1",
                ("r.example.com:5000", "r.example.com:5000/app", Some("1")),
            ),
            ("app@sha256:00", ("index.docker.io", "app@sha256:00", None)),
        ];
        for (name, expected) in cases {
            assert_eq!(parse_name(name), expected);
        }
    }

    #[tokio::test]
    async fn concurrent_requests_obtain_an_image_once() {
        let images = ImageCache::default();
        let count = std::sync::atomic::AtomicU32::new(0);
        let ask = || {
            images.get_or_init(async || {
                tokio::task::yield_now().await;
                count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(Image {
                    id: "id".to_owned(),
                    environment: Vec::new(),
                    volumes: Vec::new(),
                    fits_supervisor: true,
                })
            })
        };
        let images = futures_util::future::join_all([ask(), ask(), ask()]).await;
        assert!(images.iter().all(Result::is_ok));
        assert_eq!(count.into_inner(), 1);
    }
}
