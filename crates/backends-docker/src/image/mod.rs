//! Images: pulled or built once, however many sandboxes ask for one at the same time.

mod context;
mod ignore;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bollard::auth::DockerCredentials;
use bollard::models::ImageInspect;
use bollard::query_parameters::{BuildImageOptionsBuilder, CreateImageOptionsBuilder};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};
use cantle_core::secret::SecretText;
use cantle_core::tool::Progress;
use futures_util::StreamExt as _;
use sha2::{Digest as _, Sha256};
use tokio_util::io::ReaderStream;

use crate::engine::Engine;
use crate::engine::address::hex;
use crate::engine::failure::{failed, message, status};

/// Where images of no registry come from, as Docker's configuration names it.
const DEFAULT_REGISTRY: &str = "index.docker.io";

/// Lines of a build's output that an error shows.
const BUILD_LINES: usize = 20;

/// An image that the engine has.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    /// Its digest, by which containers are made: a tag may move on.
    pub(crate) id: String,
    /// What its `ENV` lines say.
    pub(crate) environment: Vec<(String, String)>,
    /// Whether our supervisor can run in it.
    pub(crate) fits_supervisor: bool,
}

/// How an image is built.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) dockerfile: PathBuf,
    pub(crate) context: PathBuf,
    pub(crate) arguments: BTreeMap<String, SecretText>,
    /// The network of its `RUN` lines: `none`, `host`, or what the engine has.
    pub(crate) network: Option<String>,
}

/// The image of this name; pulled where the engine doesn't have it.
pub(crate) async fn pulled(
    engine: &Engine,
    name: &str,
    progress: &dyn Progress,
) -> Result<Image, SandboxError> {
    if let Some(image) = existing(engine, name).await? {
        return Ok(image);
    }
    pull(engine, name, progress).await?;
    existing(engine, name).await?.ok_or_else(|| {
        let message = format!("the image `{name}` was pulled and is not there");
        SandboxError::new(SandboxErrorKind::Unavailable, message)
    })
}

/// The image that this recipe makes; built where the engine doesn't have it.
pub(crate) async fn built(
    engine: &Engine,
    recipe: &Recipe,
    progress: &dyn Progress,
) -> Result<Image, SandboxError> {
    let (dockerfile, directory) = (recipe.dockerfile.clone(), recipe.context.clone());
    let packing = tokio::task::spawn_blocking(move || context::pack(&dockerfile, &directory));
    let packed = packing.await.map_err(|error| {
        SandboxError::new(
            SandboxErrorKind::Io,
            "packing the build's context was interrupted",
        )
        .with_source(error)
    })??;
    let name = format!("cantle-build:{}", digest(recipe, &packed));
    if let Some(image) = existing(engine, &name).await? {
        return Ok(image);
    }
    build(engine, recipe, packed, &name, progress).await?;
    existing(engine, &name).await?.ok_or_else(|| {
        let message = format!("the image `{name}` was built and is not there");
        SandboxError::new(SandboxErrorKind::Unavailable, message)
    })
}

async fn existing(engine: &Engine, name: &str) -> Result<Option<Image>, SandboxError> {
    match engine.api().inspect_image(name).await {
        Ok(found) => Ok(Some(Image::new(engine, found))),
        Err(error) if status(&error) == Some(404) => Ok(None),
        Err(error) if status(&error) == Some(400) => {
            let why = message(&error);
            let message = format!("`{name}` is no image's name: {why}");
            Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Write it as in `python:3.12-slim`.")
                .with_source(error))
        }
        Err(error) => Err(failed(
            &format!("failed to look for the image `{name}`"),
            error,
        )),
    }
}

impl Image {
    fn new(engine: &Engine, found: ImageInspect) -> Self {
        let variables = found
            .config
            .and_then(|config| config.env)
            .unwrap_or_default();
        let pairs = variables.iter().filter_map(|line| line.split_once('='));
        let architecture = found.architecture.unwrap_or_default();
        Self {
            id: found.id.unwrap_or_default(),
            environment: pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            // An engine may run another processor's images by emulation, and ours with them.
            fits_supervisor: engine.runs_supervisor()
                && matches!(&*architecture, "amd64" | "x86_64" | ""),
        }
    }
}

async fn pull(engine: &Engine, name: &str, progress: &dyn Progress) -> Result<(), SandboxError> {
    let (registry, repository, tag) = parts(name);
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
    let mut layers = Layers::default();
    while let Some(step) = steps.next().await {
        let step = step.map_err(|error| not_pulled(name, registry, error))?;
        if let Some(detail) = step.error_detail {
            let error = detail.message.unwrap_or_default();
            let error = bollard::errors::Error::DockerStreamError { error };
            return Err(not_pulled(name, registry, error));
        }
        let status = step.status.unwrap_or_default();
        if layers.changed(step.id, &status) {
            let Layers { all, done } = &layers;
            let (all, done) = (all.len(), done.len());
            tracing::info!(image = name, done, all, "pulling an image");
            progress.output(&format!("pulling the image {name}: {done} of {all} layers"));
        }
    }
    tracing::info!(image = name, "pulled an image");
    Ok(())
}

/// The layers of an image that is pulled.
#[derive(Debug, Default)]
struct Layers {
    all: HashSet<String>,
    done: HashSet<String>,
}

impl Layers {
    /// Takes what the engine says of a layer; whether one more is there.
    fn changed(&mut self, layer: Option<String>, status: &str) -> bool {
        // The first line has the tag as its id.
        let Some(layer) = layer.filter(|_| !status.starts_with("Pulling from")) else {
            return false;
        };
        self.all.insert(layer.clone());
        matches!(status, "Pull complete" | "Already exists") && self.done.insert(layer)
    }
}

/// Says why an image didn't come.
fn not_pulled(name: &str, registry: &str, error: bollard::errors::Error) -> SandboxError {
    let said = message(&error);
    let lower = said.to_lowercase();
    let has = |words: &[&str]| words.iter().any(|word| lower.contains(word));
    let advice = if has(&[
        "no such host",
        "dial tcp",
        "i/o timeout",
        "connection refused",
        "lookup ",
    ]) {
        format!(
            "The engine can't reach the registry `{registry}`: load the image by hand (`docker load`, \
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
            "There is no such image, or it needs a login: `docker login {registry}`. Logins kept by a \
             credential helper aren't read; pull the image by hand then (`docker pull {name}`)."
        )
    } else if has(&["not found", "manifest unknown", "does not exist"]) {
        "See whether the name and the tag are right; `docker images` lists those the engine has."
            .to_owned()
    } else {
        format!("See what `docker pull {name}` says.")
    };
    let message = format!("failed to pull the image `{name}`: {said}");
    SandboxError::new(SandboxErrorKind::Unavailable, message)
        .with_advice(advice)
        .with_source(error)
}

/// The registry of an image's name, the name without tag, and the tag. Without one it is `latest`:
/// a pull without would fetch all there are.
fn parts(name: &str) -> (&str, &str, Option<&str>) {
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

/// Names what a recipe makes.
fn digest(recipe: &Recipe, packed: &context::Packed) -> String {
    let mut digest = Sha256::new();
    digest.update(&packed.digest);
    for (name, value) in &recipe.arguments {
        for part in [name, value.expose()] {
            digest.update(part.len().to_le_bytes());
            digest.update(part);
        }
    }
    let mut text = hex(&digest.finalize());
    text.truncate(32);
    text
}

async fn build(
    engine: &Engine,
    recipe: &Recipe,
    packed: context::Packed,
    name: &str,
    progress: &dyn Progress,
) -> Result<(), SandboxError> {
    let arguments: HashMap<_, _> = recipe
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
    if let Some(network) = &recipe.network {
        options = options.networkmode(network);
    }
    let archive = ReaderStream::with_capacity(tokio::fs::File::from_std(packed.archive), 1 << 16);
    let body = bollard::body_try_stream(archive);
    let what = recipe.dockerfile.display();
    tracing::info!(dockerfile = %what, image = name, "building an image");
    progress.output(&format!("building {what}"));
    let mut steps = engine.api().build_image(options.build(), None, Some(body));
    let mut lines: Vec<String> = Vec::new();
    while let Some(step) = steps.next().await {
        match step {
            Ok(step) => {
                let text = step.stream.or(step.status).unwrap_or_default();
                for line in text.lines().filter(|line| !line.trim().is_empty()) {
                    tracing::info!(image = name, line, "building an image");
                    // Docker's, or Podman's.
                    if line.starts_with("Step ") || line.starts_with("STEP ") {
                        progress.output(&format!("building {what}: {line}"));
                    }
                    lines.push(line.to_owned());
                }
                let old = lines.len().saturating_sub(BUILD_LINES);
                lines.drain(..old);
            }
            Err(error) => return Err(not_built(&recipe.dockerfile, &lines, error)),
        }
    }
    Ok(())
}

fn not_built(dockerfile: &Path, lines: &[String], error: bollard::errors::Error) -> SandboxError {
    let mut text = format!(
        "failed to build `{}`: {}",
        dockerfile.display(),
        message(&error)
    );
    if !lines.is_empty() {
        text = format!("{text}\n{}", lines.join("\n"));
    }
    SandboxError::new(SandboxErrorKind::Unavailable, text)
        .with_advice("Mend the Dockerfile, or what it needs; `docker build` shows the same.")
        .with_source(error)
}

/// Images that a backend has asked for: each once, and one request at a time for each.
#[derive(Debug, Default)]
pub(crate) struct Images {
    known: std::sync::Mutex<HashMap<String, Arc<tokio::sync::OnceCell<Image>>>>,
}

impl Images {
    /// The image of this key, which `make` makes where nobody has.
    pub(crate) async fn once(
        &self,
        key: &str,
        make: impl Future<Output = Result<Image, SandboxError>>,
    ) -> Result<Image, SandboxError> {
        let cell = {
            let mut known = self
                .known
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            Arc::clone(known.entry(key.to_owned()).or_default())
        };
        cell.get_or_try_init(|| make).await.cloned()
    }

    /// Forgets an image: somebody has removed it.
    pub(crate) fn forget(&self, key: &str) {
        let mut known = self
            .known
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        known.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_counted_as_they_come() {
        let mut layers = Layers::default();
        let mut told = |layer: Option<&str>, status| {
            let changed = layers.changed(layer.map(str::to_owned), status);
            (changed, layers.done.len(), layers.all.len())
        };
        assert_eq!(
            told(Some("3.12"), "Pulling from library/python"),
            (false, 0, 0)
        );
        assert_eq!(told(Some("a1"), "Pulling fs layer"), (false, 0, 1));
        assert_eq!(told(Some("b2"), "Already exists"), (true, 1, 2));
        assert_eq!(told(Some("a1"), "Downloading"), (false, 1, 2));
        assert_eq!(told(Some("a1"), "Pull complete"), (true, 2, 2));
        assert_eq!(told(None, "Digest: sha256:00"), (false, 2, 2));
    }

    #[test]
    fn a_name_has_a_registry_and_a_tag() {
        let cases = [
            ("python", ("index.docker.io", "python", Some("latest"))),
            ("python:3.12", ("index.docker.io", "python", Some("3.12"))),
            ("me/app", ("index.docker.io", "me/app", Some("latest"))),
            (
                "localhost/app",
                ("localhost", "localhost/app", Some("latest")),
            ),
            (
                "r.io:5000/app",
                ("r.io:5000", "r.io:5000/app", Some("latest")),
            ),
            ("r.io:5000/app:1", ("r.io:5000", "r.io:5000/app", Some("1"))),
            ("app@sha256:00", ("index.docker.io", "app@sha256:00", None)),
        ];
        for (name, expected) in cases {
            assert_eq!(parts(name), expected);
        }
    }

    #[tokio::test]
    async fn an_image_is_made_once_however_many_ask() {
        let images = Images::default();
        let made = std::sync::atomic::AtomicU32::new(0);
        let ask = || {
            images.once("name", async {
                tokio::task::yield_now().await;
                made.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Ok(Image {
                    id: "id".to_owned(),
                    environment: Vec::new(),
                    fits_supervisor: true,
                })
            })
        };
        let images = futures_util::future::join_all([ask(), ask(), ask()]).await;
        assert!(images.iter().all(Result::is_ok));
        assert_eq!(made.into_inner(), 1);
    }
}
