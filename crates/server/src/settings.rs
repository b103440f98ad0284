//! What a server is told before it starts.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::Policy;
use cantle_core::sandbox::Backend;
use cantle_core::secret::SecretText;

use crate::error::{ServeError, ServeErrorKind};
use crate::keys::Keys;
use crate::server::Server;

/// The template that SDKs ask for where nobody says which.
const DEFAULT_TEMPLATE: &str = "base";

/// How much callers may use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Running sandboxes, of all keys together.
    pub sandboxes: usize,
    /// Running sandboxes of one key.
    pub sandboxes_per_key: usize,
    /// Paused sandboxes of one key.
    pub paused_per_key: usize,
    /// How far ahead the end of a sandbox may be set.
    pub lifetime: Duration,
    /// Commands that run at once in one sandbox.
    pub commands: usize,
    /// Directories that are watched at once in one sandbox.
    pub watchers: usize,
    /// Connections at once; more of them wait.
    pub connections: usize,
    /// How long a body, or a reader of ours, may stand still.
    pub idle: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            sandboxes: 1000,
            sandboxes_per_key: 1000,
            paused_per_key: 1000,
            lifetime: Duration::from_secs(24 * 60 * 60),
            commands: 512,
            watchers: 64,
            connections: 4096,
            idle: Duration::from_secs(60),
        }
    }
}

/// Configures a [`Server`].
#[derive(Clone)]
pub struct ServerBuilder {
    pub(crate) settings: Settings,
}

/// What the server knows all the time.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) templates: BTreeMap<String, Arc<dyn Backend>>,
    pub(crate) policy: Policy,
    pub(crate) keys: Keys,
    pub(crate) limits: ServerLimits,
    pub(crate) state: Option<PathBuf>,
    pub(crate) domain: Option<String>,
    /// Whom commands run as, by name.
    pub(crate) user: String,
}

impl fmt::Debug for ServerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerBuilder")
            .field("templates", &self.settings.templates)
            .field("policy", &self.settings.policy)
            .field("limits", &self.settings.limits)
            .field("state", &self.settings.state)
            .field("domain", &self.settings.domain)
            .finish_non_exhaustive()
    }
}

impl ServerBuilder {
    pub(crate) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            settings: Settings {
                templates: BTreeMap::from([(DEFAULT_TEMPLATE.to_owned(), backend)]),
                policy: Policy::workspace(),
                keys: Keys::default(),
                limits: ServerLimits::default(),
                state: None,
                domain: None,
                user: "user".to_owned(),
            },
        }
    }

    /// The same with sandboxes of `backend` for the template `name`. Without any, there is `base`, with
    /// the first backend.
    #[must_use]
    pub fn template(mut self, name: impl Into<String>, backend: Arc<dyn Backend>) -> Self {
        self.settings.templates.insert(name.into(), backend);
        self
    }

    /// The same with what code in a sandbox may do at most. A caller may ask for less.
    ///
    /// By default it is [`Policy::workspace`]: files, and no network.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// The same for callers with this key, besides those with another one. Each key sees its own
    /// sandboxes alone.
    ///
    /// Without keys any will do, and the server listens to this machine alone.
    #[must_use]
    pub fn key(mut self, key: &SecretText) -> Self {
        self.settings.keys.add(key.expose());
        self
    }

    /// The same with other limits.
    #[must_use]
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// The same with records of paused sandboxes in this directory, so that a later server finds them.
    /// They hold the variables that a sandbox was made with, and its token: the directory is made for its
    /// owner alone.
    ///
    /// Without it, paused sandboxes end with the server.
    #[must_use]
    pub fn state_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.state = Some(directory.into());
        self
    }

    /// The same for SDKs that know the server by `domain` (`E2B_DOMAIN`), behind something that
    /// ends TLS for `api.DOMAIN` and `*.DOMAIN`.
    #[must_use]
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.settings.domain = Some(domain.into());
        self
    }

    /// The same where the backend's commands run as another user than `user`.
    #[must_use]
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.settings.user = name.into();
        self
    }

    /// Listens on `address`, and finds what an earlier server paused. Port 0 is any that is free.
    ///
    /// # Errors
    /// [`ServeErrorKind::KeyNeeded`] where others can reach the address and there is no key;
    /// [`ServeErrorKind::Bind`] where it can't be listened on; [`ServeErrorKind::State`] where the state
    /// directory can't be used.
    pub async fn bind(self, address: SocketAddr) -> Result<Server, ServeError> {
        let public = !address.ip().to_canonical().is_loopback();
        if public && self.settings.keys.is_empty() {
            let message = format!("{address} can be reached by others, so that a key is needed");
            return Err(ServeError::new(ServeErrorKind::KeyNeeded, message));
        }
        Server::bind(self.settings, address).await
    }
}
