//! Where commands run: what `--backend` says.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use cantle::backends::docker::DockerBackend;
use cantle::backends::local::LocalBackend;
use cantle::backends::remote::RemoteBackend;
use cantle::core::sandbox::{Backend, SandboxHandle};
use serde::{Deserialize, Serialize};

/// Where commands run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) enum Place {
    /// On this machine.
    #[default]
    Local,
    /// In a container of an image.
    Image(String),
    /// In a container of the image that a Dockerfile makes.
    Dockerfile(PathBuf),
    /// In a container that runs already.
    Container(String),
    /// In a sandbox of an E2B-style service.
    Remote {
        /// What it is made from, where that is not the usual.
        template: Option<String>,
    },
}

impl Place {
    /// The backend of this place; `local` is the one for this machine.
    ///
    /// # Errors
    /// Where the Dockerfile is not there, or the service's key is not set.
    pub(crate) fn backend(&self, local: LocalBackend) -> anyhow::Result<Arc<dyn Backend>> {
        if let Some(made) = self.made_containers()? {
            return Ok(Arc::new(made));
        }
        Ok(match self {
            Self::Local | Self::Image(_) | Self::Dockerfile(_) => Arc::new(local),
            Self::Container(container) => Arc::new(DockerBackend::attach(container)),
            Self::Remote { template } => {
                let remote = RemoteBackend::from_env();
                let remote = match template {
                    Some(template) => remote.template(template),
                    None => remote,
                };
                Arc::new(remote.build()?)
            }
        })
    }

    /// The same for others' sandboxes, whose working directory is `home`.
    ///
    /// # Errors
    /// Also where this place has no sandboxes to be made for others.
    pub(crate) fn serving(
        &self,
        local: LocalBackend,
        home: &str,
    ) -> anyhow::Result<Arc<dyn Backend>> {
        match (self, self.made_containers()?) {
            (_, Some(made)) => Ok(Arc::new(made.with_working_directory(home)?)),
            (Self::Local, None) => Ok(Arc::new(local.workspace_at(home))),
            _ => bail!(
                "--backend {self} can't be served: there are local, docker:IMAGE and dockerfile:PATH"
            ),
        }
    }

    /// Containers that are made for each sandbox, where this place is that.
    fn made_containers(&self) -> anyhow::Result<Option<DockerBackend>> {
        Ok(match self {
            Self::Image(image) => Some(DockerBackend::from_image(image)),
            Self::Dockerfile(path) => {
                let (file, context) = dockerfile(path)?;
                let no_arguments: [(String, String); 0] = [];
                Some(DockerBackend::from_dockerfile(file, context, no_arguments))
            }
            _ => None,
        })
    }

    /// Whether commands run on this machine, as one of its own programs.
    pub(crate) fn is_local(&self) -> bool {
        *self == Self::Local
    }
}

/// The containers of the engine here, of whatever image.
pub(crate) fn containers() -> DockerBackend {
    DockerBackend::from_image("")
}

/// A backend that finds the sandbox again that a handle names.
///
/// # Errors
/// Where no backend here makes such sandboxes, or the service's key is not set.
pub(crate) fn of(handle: &SandboxHandle) -> anyhow::Result<Arc<dyn Backend>> {
    match handle.backend.as_str() {
        "local" => Ok(Arc::new(LocalBackend::new())),
        // The handle says which container; of which image new ones would be is no matter.
        "docker" => Ok(Arc::new(containers())),
        "remote" => Ok(Arc::new(RemoteBackend::from_env().build()?)),
        other => bail!("there is no backend `{other}`"),
    }
}

/// A Dockerfile, or the one in a directory, and the directory of what it copies.
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
        .with_context(|| format!("{} can't be read", path.display()))?;
    let context = file.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((file, context))
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Image(image) => write!(f, "docker:{image}"),
            Self::Dockerfile(path) => write!(f, "dockerfile:{}", path.display()),
            Self::Container(container) => write!(f, "container:{container}"),
            Self::Remote { template: None } => f.write_str("remote"),
            Self::Remote {
                template: Some(template),
            } => write!(f, "remote:{template}"),
        }
    }
}

impl From<Place> for String {
    fn from(place: Place) -> Self {
        place.to_string()
    }
}

impl TryFrom<String> for Place {
    type Error = anyhow::Error;

    fn try_from(text: String) -> anyhow::Result<Self> {
        text.parse()
    }
}

impl FromStr for Place {
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
            ("dockerfile", Some(path)) => Self::Dockerfile(path.into()),
            ("container", Some(container)) => Self::Container(container.to_owned()),
            ("remote", Some(template)) => Self::Remote {
                template: Some(template.to_owned()),
            },
            ("remote", None) if name.is_none() => Self::Remote { template: None },
            ("docker", None) => bail!("name an image: docker:IMAGE, such as docker:python:3.12"),
            ("dockerfile", None) => bail!("name a file: dockerfile:PATH"),
            ("container", None) => bail!("name a container: container:ID"),
            _ => bail!(
                "there is no backend `{text}`; there are local, docker:IMAGE, dockerfile:PATH, \
                 container:ID, remote and remote:TEMPLATE"
            ),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_place_is_said_as_it_is_read() {
        for text in [
            "local",
            "docker:python:3.12-slim",
            "docker:registry.example:5000/team/image@sha256:00",
            "dockerfile:tools/Dockerfile",
            "container:0123abc",
            "remote",
            "remote:base",
        ] {
            let place: Place = text.parse().unwrap();
            assert_eq!(place.to_string(), text);
        }
    }

    #[test]
    fn what_is_missing_is_named() {
        let said = |text: &str| text.parse::<Place>().unwrap_err().to_string();
        assert!(said("docker").contains("docker:IMAGE"));
        assert!(said("docker:").contains("docker:IMAGE"));
        assert!(said("container:").contains("container:ID"));
        assert!(said("podman:x").contains("local, docker:IMAGE"));
        assert!(said("local:x").contains("no backend `local:x`"));
    }
}
