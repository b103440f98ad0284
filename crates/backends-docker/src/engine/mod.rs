//! The connection to a container engine: found once, its version agreed on once, shared by every
//! sandbox of a backend.

pub(crate) mod address;
pub(crate) mod failure;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, Docker};
use cantle_core::sandbox::{SandboxError, SandboxErrorKind};

use self::address::{Address, Surroundings};
use self::failure::{failed, unreachable};

/// How long the engine may take to answer anything but a pull or a build.
const REQUEST_SECONDS: u64 = 120;

/// How long it may take to say that it is there.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// The oldest API with all that is used here: that of Docker 19.03.
const OLDEST_API: (usize, usize) = (1, 40);

/// A container engine that answers.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    docker: Docker,
    about: Arc<About>,
}

/// What is known of it.
#[derive(Debug)]
struct About {
    address: Address,
    report: EngineReport,
    is_podman: bool,
    /// What it can limit.
    limits: Limiting,
}

/// What a container engine says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineReport {
    /// Where it was found, as in `DOCKER_HOST`.
    pub address: String,
    /// What it calls itself and its version, e.g. `Docker 20.10.24`.
    pub version: String,
    /// The version of the API that is spoken with it, e.g. `1.41`.
    pub api_version: String,
    /// Its operating system and processor, e.g. `linux/x86_64`.
    pub platform: String,
    /// The runtimes it can start containers with, e.g. `runc`.
    pub runtimes: Vec<String>,
    /// What it warns of, each a sentence.
    pub warnings: Vec<String>,
}

/// Which limits the engine's kernel and set-up can keep.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an answer of the engine's"
)]
pub(crate) struct Limiting {
    pub(crate) memory: bool,
    pub(crate) swap: bool,
    pub(crate) processes: bool,
    pub(crate) cpu: bool,
    /// The number of files in a file system in memory, and whose it is: Podman knows neither.
    pub(crate) tmpfs: bool,
}

impl Engine {
    /// Finds the engine and agrees on a version of the API.
    pub(crate) async fn connect(chosen: Option<&str>) -> Result<Self, SandboxError> {
        let address = with_surroundings(|around| around.address(chosen))?;
        let docker = client(&address).map_err(|error| unreachable(&address, error))?;
        let answer = tokio::time::timeout(FIRST_ANSWER, docker.negotiate_version());
        let docker = match answer.await {
            Ok(Ok(docker)) => docker,
            Ok(Err(error)) => return Err(unreachable(&address, error)),
            Err(_) => {
                let error = bollard::errors::Error::RequestTimeoutError;
                return Err(unreachable(&address, error));
            }
        };
        let api = docker.client_version();
        if (api.major_version, api.minor_version) < OLDEST_API {
            let message =
                format!("the container engine at `{address}` is too old: its API is {api}");
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Use Docker 19.03 or newer, or Podman 4 or newer."));
        }
        let asking = "failed to ask the container engine what it is";
        let version = docker
            .version()
            .await
            .map_err(|error| failed(asking, error))?;
        let info = docker.info().await.map_err(|error| failed(asking, error))?;
        let is_podman = version.components.iter().flatten();
        let is_podman = is_podman
            .into_iter()
            .any(|part| part.name.contains("Podman"));
        let name = if is_podman { "Podman" } else { "Docker" };
        let mut runtimes: Vec<_> = info.runtimes.unwrap_or_default().into_keys().collect();
        runtimes.sort();
        let report = EngineReport {
            address: address.to_string(),
            version: format!("{name} {}", version.version.unwrap_or_default()),
            api_version: api.to_string(),
            platform: format!(
                "{}/{}",
                info.os_type.unwrap_or_else(|| "linux".to_owned()),
                info.architecture.unwrap_or_default()
            ),
            runtimes,
            warnings: info.warnings.unwrap_or_default(),
        };
        if !report.platform.starts_with("linux/") {
            let message = format!(
                "the container engine at `{address}` runs containers of {}",
                report.platform
            );
            return Err(SandboxError::new(SandboxErrorKind::Unavailable, message)
                .with_advice("Switch it to Linux containers."));
        }
        tracing::debug!(
            address = report.address,
            version = report.version,
            "container engine found"
        );
        Ok(Self {
            docker,
            about: Arc::new(About {
                address,
                report,
                is_podman,
                limits: Limiting {
                    memory: info.memory_limit.unwrap_or(false),
                    swap: info.swap_limit.unwrap_or(false),
                    processes: info.pids_limit.unwrap_or(false),
                    cpu: info.cpu_cfs_quota.unwrap_or(false),
                    tmpfs: !is_podman,
                },
            }),
        })
    }

    pub(crate) fn api(&self) -> &Docker {
        &self.docker
    }

    pub(crate) fn report(&self) -> &EngineReport {
        &self.about.report
    }

    /// Whether it is Podman, which passes over some of what it is asked for.
    pub(crate) fn is_podman(&self) -> bool {
        self.about.is_podman
    }

    pub(crate) fn limiting(&self) -> Limiting {
        self.about.limits
    }

    /// Whether what our supervisor was compiled for runs there.
    pub(crate) fn runs_supervisor(&self) -> bool {
        let platform = &*self.about.report.platform;
        matches!(platform, "linux/x86_64" | "linux/amd64")
    }

    /// What to show a registry when something is pulled from it.
    pub(crate) fn registry_login(registry: &str) -> Result<Option<String>, SandboxError> {
        with_surroundings(|around| around.registry_login(registry))
    }

    pub(crate) fn address(&self) -> &Address {
        &self.about.address
    }
}

/// Asks this process's surroundings.
fn with_surroundings<T>(ask: impl FnOnce(&Surroundings<'_>) -> T) -> T {
    ask(&Surroundings {
        variable: &|name| std::env::var(name).ok(),
        exists: &Path::exists,
    })
}

fn client(address: &Address) -> Result<Docker, bollard::errors::Error> {
    match address {
        #[cfg(unix)]
        Address::Socket(path) => Docker::connect_with_unix(
            &path.to_string_lossy(),
            REQUEST_SECONDS,
            API_DEFAULT_VERSION,
        ),
        #[cfg(windows)]
        Address::Pipe(name) => {
            Docker::connect_with_named_pipe(name, REQUEST_SECONDS, API_DEFAULT_VERSION)
        }
        Address::Tcp { host, tls: None } => {
            Docker::connect_with_http(host, REQUEST_SECONDS, API_DEFAULT_VERSION)
        }
        Address::Tcp {
            host,
            tls: Some(tls),
        } => {
            // The client takes the one of the process; somebody's choice before ours stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
            Docker::connect_with_ssl(
                host,
                &tls.key,
                &tls.certificate,
                &tls.ca,
                REQUEST_SECONDS,
                API_DEFAULT_VERSION,
            )
        }
        elsewhere => Err(bollard::errors::Error::UnsupportedURISchemeError {
            uri: elsewhere.to_string(),
        }),
    }
}
