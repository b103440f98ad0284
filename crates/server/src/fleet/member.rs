//! One sandbox of the fleet: what it was made with, how it stands, when it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::policy::Network;
use cantle_core::sandbox::{Sandbox, SandboxHandle};
use cantle_core::secret::SecretText;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Live;
use crate::keys::Owner;
use crate::settings::ServerLimits;

/// What a caller asked for.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Asked {
    pub(crate) template: String,
    pub(crate) metadata: BTreeMap<String, String>,
    /// Variables of every command.
    #[serde(with = "exposed_map")]
    pub(crate) environment: BTreeMap<String, SecretText>,
    /// Whether it is paused at its end, instead of killed.
    pub(crate) auto_pause: bool,
    /// Whether a request to it resumes it.
    pub(crate) auto_resume: bool,
    /// What of the network it may reach, where that is less than the server grants.
    pub(crate) network: Option<Network>,
    /// As the request said it, to be said again.
    pub(crate) internet: Option<bool>,
    pub(crate) network_as_asked: Option<serde_json::Value>,
}

/// What of a sandbox never changes.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub(crate) id: String,
    pub(crate) owner: Owner,
    pub(crate) run: RunId,
    /// Opens everything inside.
    #[serde(with = "exposed")]
    pub(crate) token: SecretText,
    pub(crate) started_at: Timestamp,
    pub(crate) asked: Asked,
}

impl fmt::Debug for Facts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Facts")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Facts {
    /// The variables of every command: those asked for, over those that say where it is.
    pub(crate) fn environment(&self) -> BTreeMap<String, SecretText> {
        let own = [
            ("E2B_SANDBOX", "true"),
            ("E2B_SANDBOX_ID", self.id.as_str()),
            ("E2B_TEMPLATE_ID", self.asked.template.as_str()),
        ];
        let mut variables: BTreeMap<String, SecretText> = own
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.into()))
            .collect();
        variables.extend(self.asked.environment.clone());
        variables
    }
}

/// How a sandbox stands.
#[derive(Clone)]
pub(crate) enum Standing {
    Running(Arc<Live>),
    Paused(SandboxHandle),
    Ended,
}

/// When a sandbox ends, for clocks and for people.
#[derive(Clone, Copy, Debug)]
pub(crate) struct End {
    pub(crate) instant: Instant,
    pub(crate) timestamp: Timestamp,
}

impl End {
    fn after(lifetime: Duration) -> Self {
        let later = SignedDuration::try_from(lifetime).unwrap_or(SignedDuration::ZERO);
        let timestamp = Timestamp::now();
        Self {
            instant: Instant::now() + lifetime,
            timestamp: timestamp.checked_add(later).unwrap_or(timestamp),
        }
    }
}

/// One sandbox of the fleet.
pub(crate) struct Member {
    pub(crate) facts: Facts,
    /// Held while it is paused, resumed or ended, which happens one after another.
    pub(crate) turn: tokio::sync::Mutex<()>,
    standing: Mutex<Standing>,
    end: watch::Sender<End>,
}

impl Member {
    pub(crate) fn running(facts: Facts, sandbox: Arc<dyn Sandbox>, limits: &ServerLimits) -> Self {
        let live = Arc::new(Live::new(sandbox, limits));
        Self::new(facts, Standing::Running(live))
    }

    pub(crate) fn paused(facts: Facts, handle: SandboxHandle) -> Self {
        Self::new(facts, Standing::Paused(handle))
    }

    fn new(facts: Facts, standing: Standing) -> Self {
        Self {
            facts,
            turn: tokio::sync::Mutex::new(()),
            standing: Mutex::new(standing),
            end: watch::Sender::new(End::after(Duration::ZERO)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Standing> {
        self.standing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn standing(&self) -> Standing {
        self.lock().clone()
    }

    /// Says how it stands now, and how it stood.
    pub(crate) fn set_standing(&self, standing: Standing) -> Standing {
        std::mem::replace(&mut *self.lock(), standing)
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(*self.lock(), Standing::Running(_))
    }

    /// What runs, where it does.
    pub(crate) fn live(&self) -> Option<Arc<Live>> {
        match &*self.lock() {
            Standing::Running(live) => Some(Arc::clone(live)),
            _ => None,
        }
    }

    /// It runs again.
    pub(crate) fn run(&self, sandbox: Arc<dyn Sandbox>, limits: &ServerLimits) {
        self.set_standing(Standing::Running(Arc::new(Live::new(sandbox, limits))));
    }

    /// When it ends.
    pub(crate) fn end(&self) -> watch::Receiver<End> {
        self.end.subscribe()
    }

    /// When it ends, for people.
    pub(crate) fn end_at(&self) -> Timestamp {
        self.end.borrow().timestamp
    }

    /// Sets its end.
    pub(crate) fn end_in(&self, lifetime: Duration) {
        self.end.send_replace(End::after(lifetime));
    }

    /// Sets its end, unless that is later already.
    pub(crate) fn end_in_at_least(&self, lifetime: Duration) {
        let end = End::after(lifetime);
        self.end.send_if_modified(|current| {
            let later = end.instant > current.instant;
            if later {
                *current = end;
            }
            later
        });
    }
}

/// Writes a secret down as it is: only for the records, which are their owner's alone.
mod exposed {
    use cantle_core::secret::SecretText;
    use serde::{Deserialize as _, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(secret: &SecretText, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(secret.expose())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<SecretText, D::Error> {
        String::deserialize(from).map(SecretText::from)
    }
}

/// The same for secrets with names.
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
        let secrets = BTreeMap::<String, String>::deserialize(from)?;
        let secrets = secrets.into_iter();
        Ok(secrets
            .map(|(name, secret)| (name, secret.into()))
            .collect())
    }
}
