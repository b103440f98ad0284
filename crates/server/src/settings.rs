//! The server's settings.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cantle_core::code::CodeInterpreter;
use cantle_core::policy::Policy;
use cantle_core::sandbox::Backend;

use crate::keys::Keys;

/// Limits for clients.
///
/// With several keys, half of the sandboxes, connections and memory is divided into shares reserved for each
/// key. File descriptors lower the numbers of connections and sandboxes if the process may open too few.
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
    /// Concurrent connections. If there are more, the oldest unauthenticated one is closed. Authenticated
    /// clients may have three quarters; then they wait for one of their connections to end.
    pub connections: usize,
    /// Bytes that the server keeps for all clients: messages being read, large responses, listings, watched
    /// directories.
    pub memory_bytes: usize,
    /// Bytes that the server keeps for one sandbox.
    pub memory_bytes_per_sandbox: usize,
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
            connections: 16_384,
            memory_bytes: 1 << 30,
            memory_bytes_per_sandbox: 128 << 20,
            idle: Duration::from_secs(60),
        }
    }
}

/// The SDKs' default template, and that of leased sandboxes.
pub(crate) const DEFAULT_TEMPLATE: &str = "base";

/// Settings of a running server.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) templates: BTreeMap<String, Arc<dyn Backend>>,
    /// The interpreter of Python code, if it is served.
    pub(crate) interpreter: Option<Arc<dyn CodeInterpreter>>,
    pub(crate) policy: Policy,
    pub(crate) keys: Keys,
    pub(crate) limits: ServerLimits,
    pub(crate) state: Option<PathBuf>,
    pub(crate) domain: Option<String>,
    /// Name of the user that commands run as.
    pub(crate) user: String,
    /// Memory of this machine; 0 if unknown.
    pub(crate) machine_memory_bytes: u64,
}

/// Returns the memory of this machine, or 0 if the system does not tell.
pub(crate) fn machine_memory_bytes() -> u64 {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kibibytes = total.and_then(|total| total.split_whitespace().next()?.parse().ok());
    kibibytes.map_or(0, |kibibytes: u64| kibibytes * 1024)
}
