//! The connection to a container engine, shared by all sandboxes of a backend.

pub(crate) mod address;
pub(crate) mod failure;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bollard::{API_DEFAULT_VERSION, BollardRequest, ClientVersion, Docker};
use cantle_core::policy::Limits;
use cantle_core::sandbox::SandboxError;
use cantle_tls::{TlsError, TlsOptions};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use parking_lot::{Mutex, MutexGuard};

use self::address::{Address, EngineLocator, TlsFiles};
use self::failure::{request_failed, unreachable};

/// Time limit for every request except pulls and builds.
const REQUEST_SECONDS: u64 = 120;

/// Time limit for the first response.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Process limit where the policy names none.
const DEFAULT_PROCESSES: u64 = 4096;

/// The oldest supported API version: that of Docker 19.03.
const MIN_API_VERSION: (usize, usize) = (1, 40);

/// A connected container engine.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    docker: Docker,
    facts: Arc<EngineFacts>,
}

/// Properties of an engine, read when connecting.
#[derive(Debug)]
struct EngineFacts {
    address: Address,
    report: EngineReport,
    is_podman: bool,
    limits: SupportedLimits,
    /// Memory of its machine.
    memory_bytes: Option<u64>,
    /// Ids of closed containers that could not be removed. Their labels name a living owner, so that nothing else
    /// identifies them as abandoned.
    unremoved: Mutex<BTreeSet<String>>,
}

/// Description of a container engine, as reported by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineReport {
    /// Its address, as in `DOCKER_HOST`.
    pub address: String,
    /// Product and version, e.g. `Docker 20.10.24`.
    pub version: String,
    /// The negotiated API version, e.g. `1.41`.
    pub api_version: String,
    /// Operating system and processor, e.g. `linux/x86_64`.
    pub platform: String,
    /// The OCI runtimes it can start containers with, e.g. `runc`.
    pub runtimes: Vec<String>,
    /// Its warnings, each a sentence.
    pub warnings: Vec<String>,
}

/// The resource limits that the engine's kernel and configuration support.
#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is an independent capability of the engine"
)]
pub(crate) struct SupportedLimits {
    pub(crate) memory: bool,
    pub(crate) swap: bool,
    pub(crate) processes: bool,
    /// Inode limit and owner of a tmpfs; Podman supports neither.
    pub(crate) tmpfs: bool,
}

impl Engine {
    /// Locates the engine and negotiates the API version.
    pub(crate) async fn connect(host: Option<&str>) -> Result<Self, SandboxError> {
        let address = with_locator(|locator| locator.address(host))?;
        let docker = client(&address, API_DEFAULT_VERSION)?;
        let negotiated = tokio::time::timeout(CONNECT_TIMEOUT, docker.negotiate_version()).await;
        let negotiated = negotiated.unwrap_or(Err(bollard::errors::Error::RequestTimeoutError));
        let docker = negotiated.map_err(|error| unreachable(&address, &error))?;
        let api = docker.client_version();
        if (api.major_version, api.minor_version) < MIN_API_VERSION {
            let message =
                format!("the container engine at `{address}` is too old: its API is {api}");
            return Err(SandboxError::unavailable(message)
                .with_advice("Use Docker 19.03 or newer, or Podman 4 or newer."));
        }
        let failed = |error| request_failed("failed to query the container engine", &error);
        let version = docker.version().await.map_err(failed)?;
        let info = docker.info().await.map_err(failed)?;
        let mut components = version.components.iter().flatten();
        let is_podman = components.any(|component| component.name.contains("Podman"));
        let product = if is_podman { "Podman" } else { "Docker" };
        let mut runtimes: Vec<_> = info.runtimes.unwrap_or_default().into_keys().collect();
        runtimes.sort();
        let report = EngineReport {
            address: address.to_string(),
            version: format!("{product} {}", version.version.unwrap_or_default()),
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
                "the container engine at `{address}` runs {} containers",
                report.platform
            );
            return Err(
                SandboxError::unavailable(message).with_advice("Switch it to Linux containers.")
            );
        }
        tracing::debug!(
            address = report.address,
            version = report.version,
            "container engine found"
        );
        Ok(Self {
            docker,
            facts: Arc::new(EngineFacts {
                address,
                report,
                is_podman,
                limits: SupportedLimits {
                    memory: info.memory_limit.unwrap_or(false),
                    swap: info.swap_limit.unwrap_or(false),
                    processes: info.pids_limit.unwrap_or(false),
                    tmpfs: !is_podman,
                },
                memory_bytes: info.mem_total.and_then(|bytes| u64::try_from(bytes).ok()),
                unremoved: Mutex::default(),
            }),
        })
    }

    /// An engine to which no request was sent.
    #[cfg(test)]
    pub(crate) fn unconnected(address: Address) -> Result<Self, SandboxError> {
        let docker = client(&address, API_DEFAULT_VERSION)?;
        let report = EngineReport {
            address: address.to_string(),
            version: String::new(),
            api_version: String::new(),
            platform: String::new(),
            runtimes: Vec::new(),
            warnings: Vec::new(),
        };
        let limits = SupportedLimits {
            memory: false,
            swap: false,
            processes: false,
            tmpfs: false,
        };
        let facts = EngineFacts {
            address,
            report,
            is_podman: false,
            limits,
            memory_bytes: None,
            unremoved: Mutex::default(),
        };
        Ok(Self {
            docker,
            facts: Arc::new(facts),
        })
    }

    /// Returns another client of the same engine, whose connections are of the current runtime.
    pub(crate) fn reconnected(&self) -> Result<Self, SandboxError> {
        Ok(Self {
            docker: client(self.address(), &self.docker.client_version())?,
            facts: Arc::clone(&self.facts),
        })
    }

    /// Returns the ids of containers that are still to be removed.
    pub(crate) fn unremoved(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.facts.unremoved.lock()
    }

    pub(crate) fn api(&self) -> &Docker {
        &self.docker
    }

    pub(crate) fn report(&self) -> &EngineReport {
        &self.facts.report
    }

    /// Whether the engine is Podman, which ignores some request fields.
    pub(crate) fn is_podman(&self) -> bool {
        self.facts.is_podman
    }

    pub(crate) fn supported_limits(&self) -> SupportedLimits {
        self.facts.limits
    }

    /// Returns the limits of new containers that a policy does not name: a command must not take the machine down.
    pub(crate) fn default_limits(&self) -> Limits {
        let mut limits = Limits::default();
        limits.memory_bytes = self.facts.memory_bytes.map(|bytes| bytes / 4 * 3);
        limits.processes = Some(DEFAULT_PROCESSES);
        limits
    }

    /// Whether the embedded supervisor's processor architecture is the engine's.
    pub(crate) fn runs_supervisor(&self) -> bool {
        let platform = &*self.facts.report.platform;
        matches!(platform, "linux/x86_64" | "linux/amd64")
    }

    /// Returns the credentials for pulling from a registry, from Docker's `config.json`.
    pub(crate) fn registry_login(registry: &str) -> Result<Option<String>, SandboxError> {
        with_locator(|locator| locator.registry_login(registry))
    }

    pub(crate) fn address(&self) -> &Address {
        &self.facts.address
    }
}

/// Runs `f` with a locator that reads this process's environment.
fn with_locator<T>(f: impl FnOnce(&EngineLocator<'_>) -> T) -> T {
    f(&EngineLocator {
        variable: &|name| std::env::var(name).ok(),
        exists: &Path::exists,
    })
}

fn client(address: &Address, version: &ClientVersion) -> Result<Docker, SandboxError> {
    let client = match address {
        #[cfg(unix)]
        Address::Socket(path) => {
            Docker::connect_with_unix(&path.to_string_lossy(), REQUEST_SECONDS, version)
        }
        #[cfg(windows)]
        Address::Pipe(name) => Docker::connect_with_named_pipe(name, REQUEST_SECONDS, version),
        Address::Tcp { host, tls: None } => {
            Docker::connect_with_http(host, REQUEST_SECONDS, version)
        }
        Address::Tcp {
            host,
            tls: Some(tls),
        } => return client_with_tls(host, tls, version),
        other => Err(bollard::errors::Error::UnsupportedURISchemeError {
            uri: other.to_string(),
        }),
    };
    client.map_err(|error| unreachable(address, &error))
}

/// Connects through a connector of our own: bollard's needs a process-wide default crypto provider.
fn client_with_tls(
    host: &str,
    files: &TlsFiles,
    version: &ClientVersion,
) -> Result<Docker, SandboxError> {
    let mut options = TlsOptions::new().with_extra_ca(&files.ca);
    // Like Docker's command line: without these files, no client certificate is presented.
    if files.certificate.exists() || files.key.exists() {
        options = options.with_client_certificate(&files.certificate, &files.key);
    }
    let config = options.build().map_err(|error: TlsError| {
        SandboxError::unavailable(error.to_string())
            .with_advice(error.advice())
            .with_source(error.into_source())
    })?;
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    let client = Client::builder(TokioExecutor::new())
        .pool_max_idle_per_host(0)
        .build(hyper_rustls::HttpsConnector::from((connector, config)));
    Docker::connect_with_custom_transport(
        move |request: BollardRequest| {
            let response = client.request(request);
            async { Ok(response.await?) }
        },
        Some(format!("https://{host}")),
        REQUEST_SECONDS,
        version,
    )
    .map_err(|error| request_failed("failed to set up the container engine's client", &error))
}
