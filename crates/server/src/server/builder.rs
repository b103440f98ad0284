//! Builder of a server.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use cantle_core::code::CodeInterpreter;
use cantle_core::policy::Policy;
use cantle_core::principal::Principal;
use cantle_core::sandbox::Backend;
use cantle_core::secret::SecretText;
use tokio::net::TcpListener;

use super::{Dispatcher, Server};
use crate::control::Control;
use crate::error::{ServeError, ServeErrorKind};
use crate::extension::{Extension, Extensions};
use crate::fleet::Fleet;
use crate::keys::Keys;
use crate::settings::{DEFAULT_TEMPLATE, ServerLimits, Settings, machine_memory_bytes};

/// The default template of the code-interpreter SDKs.
const INTERPRETER_TEMPLATE: &str = "code-interpreter-v1";

/// Builder of a [`Server`].
#[must_use]
#[derive(Clone)]
pub struct ServerBuilder {
    settings: Settings,
    extensions: Extensions,
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
    pub(super) fn new(backend: Arc<dyn Backend>) -> Self {
        Self {
            settings: Settings {
                templates: BTreeMap::from([(DEFAULT_TEMPLATE.to_owned(), backend)]),
                interpreter: None,
                policy: Policy::workspace(),
                keys: Keys::default(),
                limits: ServerLimits::default(),
                state: None,
                domain: None,
                user: "user".to_owned(),
                machine_memory_bytes: machine_memory_bytes(),
            },
            extensions: Extensions::new(),
        }
    }

    /// Adds a template whose sandboxes `backend` opens. The builder's first backend is `base`.
    pub fn template(mut self, name: impl Into<String>, backend: impl Backend + 'static) -> Self {
        self.settings
            .templates
            .insert(name.into(), Arc::new(backend));
        self
    }

    /// Serves the code interpreter of every sandbox: Python by `interpreter`, and Bash and JavaScript by the sandbox's
    /// programs. The template `code-interpreter-v1` is that of the builder's first backend, unless it was added.
    pub fn interpreter(mut self, interpreter: impl CodeInterpreter + 'static) -> Self {
        self.settings.interpreter = Some(Arc::new(interpreter));
        self
    }

    /// Sets the policy of every sandbox. A client may request less.
    ///
    /// The default is [`Policy::workspace`]: files, no network.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.settings.policy = policy;
        self
    }

    /// Adds an accepted key. Each key has its own sandboxes.
    ///
    /// Without keys any key is accepted, and the server binds only to loopback addresses.
    pub fn key(mut self, key: &SecretText) -> Self {
        self.settings.keys.add(key.expose());
        self
    }

    /// Adds an accepted key that is bound to a principal: everything that its clients do is on its behalf. All
    /// keys of one principal have its latest level.
    pub fn principal(mut self, key: &SecretText, principal: &Principal) -> Self {
        self.settings.keys.bind(key.expose(), principal);
        self
    }

    /// Sets the limits for clients.
    pub fn limits(mut self, limits: ServerLimits) -> Self {
        self.settings.limits = limits;
        self
    }

    /// Stores records of paused sandboxes in `directory`, where a later server finds them. They contain
    /// the sandboxes' environment variables and tokens, so the directory is accessible to its owner only.
    ///
    /// Without it, paused sandboxes are removed at shutdown.
    pub fn state_directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.settings.state = Some(directory.into());
        self
    }

    /// Sets the domain (`E2B_DOMAIN`) under which SDKs reach the server, behind a proxy that terminates
    /// TLS for `api.DOMAIN` and `*.DOMAIN`.
    pub fn domain(mut self, domain: impl Into<String>) -> Self {
        self.settings.domain = Some(domain.into());
        self
    }

    /// Adds a service at a path such as `/mcp`, for clients with a key: as `X-API-KEY`, or as a bearer token.
    /// Only requests to the server's own host names reach it.
    pub fn extension(mut self, path: impl Into<String>, service: impl Extension + 'static) -> Self {
        self.extensions.insert(path.into(), Arc::new(service));
        self
    }

    /// Sets the name of the user that the backend's commands run as; `user` by default.
    pub fn user(mut self, name: impl Into<String>) -> Self {
        self.settings.user = name.into();
        self
    }

    /// Binds to `address` (port 0: any free port) and loads the records of paused sandboxes.
    ///
    /// # Errors
    /// [`ServeErrorKind::KeyNeeded`] if the address is not a loopback address and no key is configured;
    /// [`ServeErrorKind::Bind`] if binding fails; [`ServeErrorKind::State`] if the state directory is
    /// not usable.
    pub async fn bind(mut self, address: SocketAddr) -> Result<Server, ServeError> {
        let templates = &mut self.settings.templates;
        if let Some(base) = templates.get(DEFAULT_TEMPLATE).map(Arc::clone)
            && self.settings.interpreter.is_some()
        {
            templates
                .entry(INTERPRETER_TEMPLATE.to_owned())
                .or_insert(base);
        }
        let public = !address.ip().to_canonical().is_loopback();
        if public && self.settings.keys.is_empty() {
            let message = format!("{address} can be reached by others, so that a key is needed");
            return Err(ServeError::new(ServeErrorKind::KeyNeeded, message));
        }
        let failed = |error| {
            let message = format!("failed to listen on {address}: {error}");
            ServeError::new(ServeErrorKind::Bind, message)
        };
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        Ok(Server {
            address: listener.local_addr().map_err(failed)?,
            listener,
            dispatcher: Dispatcher {
                control: Control::new(Fleet::open(self.settings).await?, self.extensions),
                tools: None,
            },
        })
    }
}
