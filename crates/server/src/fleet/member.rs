//! One sandbox of the fleet: its definition, state and deadline.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::Network;
use cantle_core::sandbox::SandboxHandle;
use cantle_core::secret::SecretText;
use jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;
use tokio::time::Instant;

use super::SandboxPlace;
use crate::accounts::MemoryCharge;
use crate::envd::RunningSandbox;
use cantle_core::principal::PrincipalId;

/// The longest lifetime: the clock can't represent every time that a client may request.
const MAX_LIFETIME: Duration = Duration::from_secs(1 << 30);

/// The parameters of a create request.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SandboxSpec {
    pub(crate) template: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Environment variables of every command.
    #[serde(with = "exposed_map")]
    pub(crate) environment: BTreeMap<String, SecretText>,
    /// Whether the sandbox is paused instead of killed at its deadline.
    pub(crate) auto_pause: bool,
    /// Whether a request to the paused sandbox resumes it.
    pub(crate) auto_resume: bool,
    /// Network access, if it is less than the server's policy grants.
    pub(crate) network: Option<Network>,
    /// Fields of the request that responses repeat.
    pub(crate) internet: Option<bool>,
    #[serde(rename = "network_as_asked")]
    pub(crate) requested_network: Option<serde_json::Value>,
}

/// The constant properties of a sandbox.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct SandboxIdentity {
    pub(crate) id: String,
    pub(crate) owner: PrincipalId,
    pub(crate) run: RunId,
    /// Access token for envd.
    #[serde(serialize_with = "exposed")]
    pub(crate) token: SecretText,
    pub(crate) started_at: Timestamp,
    #[serde(rename = "asked")]
    pub(crate) spec: SandboxSpec,
}

impl SandboxSpec {
    /// Whether requests to servers in the sandbox need a token.
    pub(crate) fn restricts_public_traffic(&self) -> bool {
        let network = self.requested_network.as_ref();
        network.is_some_and(|network| network["allowPublicTraffic"] == false)
    }
}

impl SandboxIdentity {
    /// Returns the token for the ports of servers in the sandbox and of the code interpreter. It is derived from the
    /// access token, which it does not reveal.
    pub(crate) fn traffic_token(&self) -> SecretText {
        let digest = Sha256::new()
            .chain_update("traffic ")
            .chain_update(self.token.expose())
            .finalize();
        format!("{digest:x}").into()
    }

    /// Environment variables of every command: E2B's own, overridden by the requested ones.
    pub(crate) fn environment(&self) -> BTreeMap<String, SecretText> {
        let own = [
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", self.id.as_str()),
            ("E2B_TEMPLATE_ID", self.spec.template.as_str()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value.into()));
        own.into_iter()
            .chain(self.spec.environment.clone())
            .collect()
    }
}

/// State of a sandbox.
#[derive(Clone)]
pub(crate) enum SandboxState {
    Running(Arc<RunningSandbox>),
    Paused(SandboxHandle),
    Ended,
}

/// The time at which a sandbox ends, on the monotonic and the wall clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) instant: Instant,
    pub(crate) timestamp: Timestamp,
}

impl Deadline {
    fn after(lifetime: Duration) -> Self {
        let lifetime = lifetime.min(MAX_LIFETIME);
        let offset = SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::ZERO);
        let timestamp = Timestamp::now();
        Self {
            instant: Instant::now() + lifetime,
            timestamp: timestamp.checked_add(offset).unwrap_or(timestamp),
        }
    }
}

/// One sandbox of the fleet.
pub(crate) struct Member {
    pub(crate) identity: SandboxIdentity,
    /// Serializes pausing, resuming and ending.
    pub(crate) transition: tokio::sync::Mutex<()>,
    state: Mutex<SandboxState>,
    is_pausing: AtomicBool,
    deadline: watch::Sender<Deadline>,
    /// Held while it runs, until it is closed or paused.
    place: Mutex<Option<SandboxPlace>>,
    /// The memory of the identity.
    _kept: MemoryCharge,
}

impl Member {
    pub(crate) fn new(identity: SandboxIdentity, state: SandboxState, kept: MemoryCharge) -> Self {
        Self {
            identity,
            transition: tokio::sync::Mutex::new(()),
            state: Mutex::new(state),
            is_pausing: AtomicBool::new(false),
            deadline: watch::Sender::new(Deadline::after(Duration::ZERO)),
            place: Mutex::new(None),
            _kept: kept,
        }
    }

    pub(crate) fn state(&self) -> SandboxState {
        self.state.lock().clone()
    }

    /// Sets the state and returns the previous one.
    pub(crate) fn set_state(&self, state: SandboxState) -> SandboxState {
        std::mem::replace(&mut *self.state.lock(), state)
    }

    /// Sets the place that a running sandbox takes.
    pub(crate) fn set_place(&self, place: Option<SandboxPlace>) {
        *self.place.lock() = place;
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(*self.state.lock(), SandboxState::Running(_))
    }

    pub(crate) fn is_paused(&self) -> bool {
        matches!(*self.state.lock(), SandboxState::Paused(_))
    }

    /// Counts the sandbox as paused until the returned value is dropped.
    pub(super) fn begin_pause(&self) -> PauseInProgress<'_> {
        self.is_pausing.store(true, Ordering::Release);
        PauseInProgress(self)
    }

    /// Whether it is paused or is being paused.
    pub(super) fn counts_as_paused(&self) -> bool {
        // A pause sets the state before it ends.
        self.is_pausing.load(Ordering::Acquire) || self.is_paused()
    }

    /// Returns the API's name for the state of a sandbox that has not ended.
    pub(crate) fn state_name(&self) -> &'static str {
        if self.is_running() {
            "running"
        } else {
            "paused"
        }
    }

    /// Returns the running sandbox, unless it is paused or ended.
    pub(crate) fn running(&self) -> Option<Arc<RunningSandbox>> {
        match &*self.state.lock() {
            SandboxState::Running(running) => Some(Arc::clone(running)),
            _ => None,
        }
    }

    /// Subscribes to the deadline.
    pub(crate) fn deadline(&self) -> watch::Receiver<Deadline> {
        self.deadline.subscribe()
    }

    /// Returns the deadline on the wall clock.
    pub(crate) fn ends_at(&self) -> Timestamp {
        self.deadline.borrow().timestamp
    }

    /// Sets the deadline.
    pub(crate) fn set_lifetime(&self, lifetime: Duration) {
        self.deadline.send_replace(Deadline::after(lifetime));
    }

    /// Moves the deadline, unless it is later already.
    pub(crate) fn extend_lifetime(&self, lifetime: Duration) {
        let deadline = Deadline::after(lifetime);
        self.deadline.send_if_modified(|current| {
            let later = deadline.instant > current.instant;
            if later {
                *current = deadline;
            }
            later
        });
    }
}

/// A pause in progress.
pub(super) struct PauseInProgress<'m>(&'m Member);

impl Drop for PauseInProgress<'_> {
    fn drop(&mut self) {
        self.0.is_pausing.store(false, Ordering::Release);
    }
}

/// Serializes a secret as plain text; used only for records, which are accessible to their owner only.
fn exposed<S: Serializer>(secret: &SecretText, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(secret.expose())
}

/// Like [`exposed`], for a map of secrets. The text of one may be what hidden secrets are serialized as.
mod exposed_map {
    use std::collections::BTreeMap;

    use cantle_core::secret::SecretText;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        secrets: &BTreeMap<String, SecretText>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.collect_map(secrets.iter().map(|(name, secret)| (name, secret.expose())))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<BTreeMap<String, SecretText>, D::Error> {
        let secrets = BTreeMap::<String, String>::deserialize(from)?.into_iter();
        Ok(secrets.map(|(name, it)| (name, it.into())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_lifetime_is_decades() {
        let deadline = Deadline::after(Duration::MAX);
        let year = Duration::from_secs(365 * 24 * 60 * 60);
        assert!(deadline.instant > Instant::now() + 30 * year);
        assert!(deadline.timestamp > Timestamp::now() + 30 * year);
    }
}
