//! The builder of a [`RemoteBackend`].

use std::collections::BTreeMap;
use std::env;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cantle_command_driver::check_environment;
use cantle_core::sandbox::SandboxError;
use cantle_core::secret::SecretText;
use parking_lot::Mutex;
use serde_json::{Map, Value};

use super::RemoteBackend;
use crate::api::{Api, ApiGeneration, CALL_TIMEOUT};
use crate::gate::Gate;
use crate::http::{self, TlsCache};
use crate::service::{Service, ServiceOptions};

const DEFAULT_DOMAIN: &str = "e2b.app";
const DEFAULT_TEMPLATE: &str = "base";
/// Extended while the sandbox is held; an upper bound of how long it outlives this process.
const DEFAULT_LIFETIME: Duration = Duration::from_secs(300);
/// A shorter lifetime could end between two extensions.
const MIN_LIFETIME: Duration = Duration::from_secs(15);
/// Fields of a request to create a sandbox that are never free parameters.
const OWN_PARAMETERS: [&str; 7] = [
    "templateID",
    "timeout",
    "metadata",
    "envVars",
    "autoPause",
    "network",
    "allow_internet_access",
];
const DEFAULT_CONCURRENCY: usize = 8;
const DEFAULT_SPACING: Duration = Duration::from_millis(200);

impl RemoteBackend {
    /// Returns a builder for E2B's own service; an API key is required.
    pub fn builder() -> RemoteBackendBuilder {
        RemoteBackendBuilder {
            api_key: None,
            api_url: None,
            sandbox_url: None,
            call_timeout: CALL_TIMEOUT,
            generation: ApiGeneration::default(),
            concurrency: DEFAULT_CONCURRENCY,
            spacing: DEFAULT_SPACING,
            options: ServiceOptions {
                domain: DEFAULT_DOMAIN.to_owned(),
                template: DEFAULT_TEMPLATE.to_owned(),
                lifetime: DEFAULT_LIFETIME,
                metadata: BTreeMap::new(),
                parameters: Map::new(),
                environment: BTreeMap::new(),
                pause_when_idle: None,
                directory: None,
            },
        }
    }

    /// Returns a builder with the settings in `E2B_API_KEY`, `E2B_API_URL`, `E2B_SANDBOX_URL` and `E2B_DOMAIN`.
    ///
    /// No other variables are read, except `SSL_CERT_FILE` and `SSL_CERT_DIR`.
    pub fn from_env() -> RemoteBackendBuilder {
        let read = |name| env::var(name).ok().filter(|value| !value.trim().is_empty());
        let mut builder = Self::builder();
        builder.api_key = read("E2B_API_KEY").map(SecretText::new);
        builder.api_url = read("E2B_API_URL");
        builder.sandbox_url = read("E2B_SANDBOX_URL");
        if let Some(domain) = read("E2B_DOMAIN") {
            builder.options.domain = domain;
        }
        builder
    }
}

/// Builder of a [`RemoteBackend`].
#[must_use]
#[derive(Clone)]
pub struct RemoteBackendBuilder {
    api_key: Option<SecretText>,
    api_url: Option<String>,
    sandbox_url: Option<String>,
    call_timeout: Duration,
    generation: ApiGeneration,
    concurrency: usize,
    spacing: Duration,
    options: ServiceOptions,
}

/// Omits the URLs, which may contain a password until they are checked.
impl fmt::Debug for RemoteBackendBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteBackendBuilder")
            .field("domain", &self.options.domain)
            .field("template", &self.options.template)
            .finish_non_exhaustive()
    }
}

impl RemoteBackendBuilder {
    /// Sets the API key; surrounding white space is ignored.
    pub fn api_key(mut self, key: impl Into<SecretText>) -> Self {
        self.api_key = Some(key.into());
        self
    }

    /// Sets the URL of the API; `https://api.` and the domain by default.
    pub fn api_url(mut self, url: impl Into<String>) -> Self {
        self.api_url = Some(url.into());
        self
    }

    /// Sets one URL for all sandboxes, which headers then identify; by default each has a host of the domain.
    pub fn sandbox_url(mut self, url: impl Into<String>) -> Self {
        self.sandbox_url = Some(url.into());
        self
    }

    /// Sets the service's domain, `e2b.app` by default; the service may override it per sandbox.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.options.domain = domain.into();
        self
    }

    /// Sets the template of sandboxes, `base` by default; it must contain bash.
    pub fn template(mut self, template: impl Into<String>) -> Self {
        self.options.template = template.into();
        self
    }

    /// Sets how long a sandbox outlives this process: 5 minutes by default, at least 15 seconds.
    ///
    /// It is extended while the sandbox is held.
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.options.lifetime = lifetime.max(MIN_LIFETIME);
        self
    }

    /// Adds metadata by which the API can filter sandboxes.
    pub fn metadata(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.options.metadata.insert(name.into(), value.into());
        self
    }

    /// Adds a field to requests that create a sandbox, for what a service offers beyond these settings.
    pub fn create_parameter(mut self, name: impl Into<String>, value: Value) -> Self {
        self.options.parameters.insert(name.into(), value);
        self
    }

    /// Sets the time limit of a call of the API, retries included: 60 seconds by default.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.call_timeout = timeout;
        self
    }

    /// Adds a variable for all processes in the sandbox, besides the policy's for commands.
    pub fn env(mut self, name: impl Into<String>, value: impl Into<SecretText>) -> Self {
        self.options.environment.insert(name.into(), value.into());
        self
    }

    /// Sets the version of the API; the newest that the service has by default.
    pub fn api_generation(mut self, generation: ApiGeneration) -> Self {
        self.generation = generation;
        self
    }

    /// Limits the creation of sandboxes: 8 at once and one per 200 ms by default.
    pub fn creation_rate(mut self, concurrency: usize, spacing: Duration) -> Self {
        self.concurrency = concurrency;
        self.spacing = spacing;
        self
    }

    /// Pauses a sandbox, with everything that runs in it, after this time without use.
    ///
    /// The next use resumes it.
    pub fn pause_when_idle(mut self, idle: Duration) -> Self {
        self.options.pause_when_idle = Some(idle);
        self
    }

    /// Sets the working directory, absolute and created if missing; the user's home by default.
    pub fn working_directory(mut self, directory: impl Into<String>) -> Self {
        self.options.directory = Some(directory.into());
        self
    }

    /// Builds the backend; for an `https` URL this reads the system's certificates.
    ///
    /// # Errors
    /// [`Unavailable`](cantle_core::sandbox::SandboxErrorKind::Unavailable) if the key or a URL is missing or invalid;
    /// [`InvalidInput`](cantle_core::sandbox::SandboxErrorKind::InvalidInput) if a variable's name or the working directory is invalid,
    /// or a create parameter is one that another setting or the policy decides on.
    pub fn build(self) -> Result<RemoteBackend, SandboxError> {
        let key = self
            .api_key
            .as_ref()
            .map(|key| key.expose().trim())
            .unwrap_or_default();
        if key.is_empty() {
            return Err(
                SandboxError::unavailable("no API key is set for the remote backend")
                    .with_advice("Set E2B_API_KEY, or pass the key to the backend."),
            );
        }
        let api_url = self
            .api_url
            .unwrap_or_else(|| format!("https://api.{}", self.options.domain));
        let sandbox_url = self.sandbox_url.as_deref();
        let sandbox_url = sandbox_url.map(|url| http::parse_url("URL of the sandboxes", url));
        let sandbox_url = sandbox_url.transpose()?;
        check_environment(&self.options.environment)?;
        let mut names = self.options.parameters.keys();
        if let Some(name) = names.find(|name| OWN_PARAMETERS.contains(&name.as_str())) {
            let message = format!(
                "`{name}` can't be a create parameter: another setting or the policy decides on it"
            );
            return Err(SandboxError::invalid_input(message));
        }
        if self
            .options
            .directory
            .as_ref()
            .is_some_and(|it| !it.starts_with('/') || it.contains('\0'))
        {
            let message = "the working directory of a remote sandbox must be an absolute path";
            return Err(SandboxError::invalid_input(message));
        }
        let tls_cache = TlsCache::new();
        let api = Api::new(
            http::parse_url("API's URL", &api_url)?,
            &SecretText::new(key),
            self.options.environment.values().cloned(),
            self.generation,
            Gate::new(self.concurrency, self.spacing),
            self.call_timeout,
            &tls_cache,
        )?;
        Ok(RemoteBackend {
            service: Arc::new(Service {
                api,
                tls_cache,
                sandbox_url,
                options: self.options,
                tasks: Mutex::default(),
            }),
        })
    }
}
