//! The server's settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::policy::Policy;
use cantle_core::sandbox::Backend;

use crate::keys::Keys;

/// Limits for clients.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerLimits {
    /// Running sandboxes of all keys.
    pub sandboxes: usize,
    /// Running sandboxes of one key.
    pub sandboxes_per_key: usize,
    /// Paused sandboxes of one key.
    pub paused_per_key: usize,
    /// Maximum lifetime that a client may request.
    pub lifetime: Duration,
    /// Concurrent commands in one sandbox.
    pub commands: usize,
    /// Concurrently watched directories in one sandbox.
    pub watchers: usize,
    /// Concurrent connections; further ones wait.
    pub connections: usize,
    /// How long a request body or a subscriber may make no progress.
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

/// Settings of a running server.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) templates: BTreeMap<String, Arc<dyn Backend>>,
    pub(crate) policy: Policy,
    pub(crate) keys: Keys,
    pub(crate) limits: ServerLimits,
    pub(crate) state: Option<PathBuf>,
    pub(crate) domain: Option<String>,
    /// Name of the user that commands run as.
    pub(crate) user: String,
}
