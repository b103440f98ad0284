//! `--backend`: where commands run.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, anyhow, bail};
use cantle::backends::docker::{DockerBackend, build_digest};
use cantle::backends::local::LocalBackend;
use cantle::backends::remote::{RemoteBackend, RemoteBackendBuilder};
use cantle::core::sandbox::{Backend, SandboxHandle};
use serde::{Deserialize, Serialize};

/// A value of `--backend`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum BackendArg {
    /// On this machine.
    #[default]
    Local,
    /// In a container of an image.
    Image(String),
    /// In a container of the image built from a Dockerfile.
    Dockerfile {
        path: PathBuf,
        /// The digest that it must have with its context.
        digest: Option<String>,
    },
    /// In a running container.
    Container(String),
    /// In a sandbox of an E2B-compatible service.
    Remote {
        /// `None`: the service's default template.
        template: Option<String>,
    },
}

impl BackendArg {
    /// Returns the backend; `local` is the one for this machine.
    ///
    /// # Errors
    /// If the Dockerfile does not exist, or the service's key is not set.
    pub(crate) fn open(&self, local: LocalBackend) -> anyhow::Result<Arc<dyn Backend>> {
        if let Some(docker) = self.new_containers()? {
            return Ok(Arc::new(docker));
        }
        Ok(match self {
            Self::Local | Self::Image(_) | Self::Dockerfile { .. } => Arc::new(local),
            Self::Container(container) => Arc::new(DockerBackend::attach(container)),
            Self::Remote { template } => {
                let remote = RemoteBackend::from_env();
                let remote = match template {
                    Some(template) => remote.template(template),
                    None => remote,
                };
                Arc::new(built(remote)?)
            }
        })
    }

    /// Returns the backend of a server whose sandboxes have the working directory `home`.
    ///
    /// # Errors
    /// Also if this backend can't be served.
    pub(crate) fn open_served(
        &self,
        local: LocalBackend,
        home: &str,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        match (self, self.new_containers()?) {
            (_, Some(docker)) => Ok(Arc::new(docker.with_working_directory(home)?)),
            (Self::Local, None) => Ok(Arc::new(local.workspace_at(home))),
            _ => bail!(
                "--backend {self} can't be served; use local, docker:IMAGE or dockerfile:PATH"
            ),
        }
    }

    /// Returns the backend that creates a container per sandbox, if this is one.
    fn new_containers(&self) -> anyhow::Result<Option<DockerBackend>> {
        Ok(match self {
            Self::Image(image) => Some(DockerBackend::from_image(image)),
            Self::Dockerfile { path, digest } => {
                let (file, context) = dockerfile(path)?;
                let no_build_args: [(String, String); 0] = [];
                let backend = DockerBackend::from_dockerfile(file, context, no_build_args);
                Some(match digest {
                    Some(digest) => backend.with_build_digest(digest),
                    None => backend,
                })
            }
            _ => None,
        })
    }

    /// Returns the Dockerfile's path and the digest of it and its context, if it is one. Calls `on_file` for each of their
    /// files.
    ///
    /// # Errors
    /// If they can't be read.
    pub(crate) fn build_digest(
        &self,
        on_file: impl FnMut(&Path, &Metadata),
    ) -> anyhow::Result<Option<(PathBuf, String)>> {
        let Self::Dockerfile { path, .. } = self else {
            return Ok(None);
        };
        let (file, context) = dockerfile(path)?;
        let digest = build_digest(&file, &context, on_file)?;
        Ok(Some((file, digest)))
    }

    /// Returns it with an absolute path, and without a digest.
    ///
    /// # Errors
    /// If the current directory is unknown.
    pub(crate) fn absolute(&self) -> anyhow::Result<Self> {
        Ok(match self {
            Self::Dockerfile { path, .. } => Self::Dockerfile {
                path: std::path::absolute(path)?,
                digest: None,
            },
            other => other.clone(),
        })
    }

    /// Returns whether commands run on this machine, outside of containers.
    pub(crate) fn is_local(&self) -> bool {
        *self == Self::Local
    }
}

/// Returns a backend for existing containers of the local engine, of any image.
pub(crate) fn containers() -> DockerBackend {
    DockerBackend::from_image("")
}

/// Returns a backend that can reattach the sandbox of a handle.
///
/// # Errors
/// If the handle's backend is unknown, or the service's key is not set.
pub(crate) fn for_handle(handle: &SandboxHandle) -> anyhow::Result<Arc<dyn Backend>> {
    match handle.backend.as_str() {
        "local" => Ok(Arc::new(LocalBackend::new())),
        "docker" => Ok(Arc::new(containers())),
        "remote" => Ok(Arc::new(built(RemoteBackend::from_env())?)),
        other => bail!("unknown backend `{other}`"),
    }
}

/// Builds the backend of a service. An error says what to do.
fn built(remote: RemoteBackendBuilder) -> anyhow::Result<RemoteBackend> {
    remote.build().map_err(|error| match error.advice() {
        Some(advice) => anyhow!("{error}. {advice}"),
        None => error.into(),
    })
}

/// Returns the path of a Dockerfile, or of the one in a directory, and its build context.
fn dockerfile(path: &Path) -> anyhow::Result<(PathBuf, PathBuf)> {
    let file = if path.is_dir() {
        path.join("Dockerfile")
    } else {
        path.to_owned()
    };
    if !file.is_file() {
        bail!("there is no Dockerfile at {}", path.display());
    }
    let file = file
        .canonicalize()
        .with_context(|| format!("failed to read {}", path.display()))?;
    let context = file.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((file, context))
}

impl fmt::Display for BackendArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Image(image) => write!(f, "docker:{image}"),
            Self::Dockerfile { path, .. } => write!(f, "dockerfile:{}", path.display()),
            Self::Container(container) => write!(f, "container:{container}"),
            Self::Remote { template: None } => f.write_str("remote"),
            Self::Remote {
                template: Some(template),
            } => write!(f, "remote:{template}"),
        }
    }
}

impl From<BackendArg> for String {
    fn from(backend: BackendArg) -> Self {
        backend.to_string()
    }
}

impl FromStr for BackendArg {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> anyhow::Result<Self> {
        let (kind, name) = match text.split_once(':') {
            Some((kind, name)) => (kind, Some(name)),
            None => (text, None),
        };
        let named = name.filter(|name| !name.is_empty());
        Ok(match (kind, named) {
            ("local", None) if name.is_none() => Self::Local,
            ("docker", Some(image)) => Self::Image(image.to_owned()),
            ("dockerfile", Some(path)) => Self::Dockerfile {
                path: path.into(),
                digest: None,
            },
            ("container", Some(container)) => Self::Container(container.to_owned()),
            ("remote", Some(template)) => Self::Remote {
                template: Some(template.to_owned()),
            },
            ("remote", None) if name.is_none() => Self::Remote { template: None },
            ("docker", None) => bail!("name an image: docker:IMAGE, such as docker:python:3.12"),
            ("dockerfile", None) => bail!("name a file: dockerfile:PATH"),
            ("container", None) => bail!("name a container: container:ID"),
            _ => bail!(
                "unknown backend `{text}`; use local, docker:IMAGE, dockerfile:PATH, container:ID, remote or \
                 remote:TEMPLATE"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_round_trips() {
        for text in [
            "local",
            "docker:python:3.12-slim",
            "docker:registry.example.com:5000/team/image@sha256:00",
            "dockerfile:tools/Dockerfile",
            "container:0123abc",
            "remote",
            "remote:base",
        ] {
            let backend: BackendArg = text.parse().unwrap();
            assert_eq!(backend.to_string(), text);
        }
    }

    #[test]
    fn errors_name_the_missing_part() {
        let error = |text: &str| text.parse::<BackendArg>().unwrap_err().to_string();
        assert!(error("docker").contains("docker:IMAGE"));
        assert!(error("docker:").contains("docker:IMAGE"));
        assert!(error("container:").contains("container:ID"));
        assert!(error("podman:x").contains("local, docker:IMAGE"));
        assert!(error("local:x").contains("unknown backend `local:x`"));
    }
}
