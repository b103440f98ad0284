//! All sandboxes of a server: made, found, paused, ended, and within the limits.
//!
//! What must not stop half-way (making, pausing, ending) runs in tasks of the fleet's own, so that a
//! caller who leaves changes nothing; the fleet aborts them when it is dropped.

mod live;
mod member;
mod store;
mod tasks;

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::Duration;

use cantle_core::ids::RunId;
use cantle_core::sandbox::{
    Backend, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle,
};
use futures_util::StreamExt as _;
use futures_util::stream;
use jiff::Timestamp;
use tokio::sync::Semaphore;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

pub(crate) use self::live::{Live, Visit};
pub(crate) use self::member::{Asked, Facts, Member, Standing};
use self::store::{Record, Store};
use self::tasks::Tasks;
use crate::error::{ServeError, ServeErrorKind};
use crate::keys::Owner;
use crate::random;
use crate::refusal::Refusal;
use crate::settings::Settings;

/// Characters of a sandbox's id after its first, and of its token.
const ID_LETTERS: usize = 20;
const TOKEN_LETTERS: usize = 40;

/// How long the end of one sandbox may take.
const END_DEADLINE: Duration = Duration::from_secs(10);
/// How many are opened at once for each processor, and how many are ended: each takes a thread meanwhile,
/// which keeps a processor busy, and threads take memory that they don't give back.
const AT_ONCE_PER_PROCESSOR: usize = 2;
/// The same in all, at least and at most.
const AT_ONCE: RangeInclusive<usize> = 4..=16;

fn at_once() -> usize {
    let processors = available_parallelism().map_or(1, usize::from);
    (processors * AT_ONCE_PER_PROCESSOR).clamp(*AT_ONCE.start(), *AT_ONCE.end())
}

/// The sandboxes of a server.
pub(crate) struct Fleet {
    pub(crate) settings: Settings,
    store: Option<Store>,
    /// Whether every record could be read.
    knows_all: bool,
    roll: Mutex<Roll>,
    tasks: Tasks,
    opening: Semaphore,
    ending: Semaphore,
    stopping: CancellationToken,
}

#[derive(Default)]
struct Roll {
    members: HashMap<String, Arc<Member>>,
    /// How many are being opened, by owner.
    opening: HashMap<Owner, usize>,
}

/// A place in the fleet for a sandbox that is being opened.
struct Place {
    fleet: Arc<Fleet>,
    owner: Owner,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut roll = self.fleet.roll();
        if let Some(count) = roll.opening.get_mut(&self.owner) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                roll.opening.remove(&self.owner);
            }
        }
    }
}

impl Fleet {
    /// Finds what an earlier server paused.
    pub(crate) async fn open(settings: Settings) -> Result<Arc<Self>, ServeError> {
        let mut members = HashMap::new();
        let mut knows_all = true;
        let store = match &settings.state {
            None => None,
            Some(directory) => {
                let (store, found) = Store::open(directory.clone()).await?;
                knows_all = found.is_whole;
                for record in found.records {
                    let member = Member::paused(record.facts, record.handle);
                    members.insert(member.facts.id.clone(), Arc::new(member));
                }
                Some(store)
            }
        };
        Ok(Arc::new(Self {
            settings,
            store,
            knows_all,
            roll: Mutex::new(Roll {
                members,
                opening: HashMap::new(),
            }),
            tasks: Tasks::default(),
            opening: Semaphore::new(at_once()),
            ending: Semaphore::new(at_once()),
            stopping: CancellationToken::new(),
        }))
    }

    /// What was paused, where all of that is known.
    pub(crate) fn paused(&self) -> Option<Vec<SandboxHandle>> {
        let handles = self.members().into_iter();
        let handles = handles.filter_map(|member| match member.standing() {
            Standing::Paused(handle) => Some(handle),
            _ => None,
        });
        self.knows_all.then(|| handles.collect())
    }

    fn roll(&self) -> MutexGuard<'_, Roll> {
        self.roll.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that there are.
    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.roll().members.values().map(Arc::clone).collect()
    }

    /// The one of this id, whoever's it is.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Member>> {
        self.roll().members.get(id).map(Arc::clone)
    }

    /// The one of this id, if it is the owner's.
    pub(crate) fn find_of(&self, owner: &Owner, id: &str) -> Result<Arc<Member>, Refusal> {
        self.find(id)
            .filter(|member| member.facts.owner == *owner)
            .ok_or_else(|| Refusal::no_sandbox(id))
    }

    fn place(self: &Arc<Self>, owner: &Owner) -> Result<Place, Refusal> {
        let limits = &self.settings.limits;
        let mut roll = self.roll();
        let running = roll.members.values().filter(|member| member.is_running());
        let (mut all, mut own) = (0, 0);
        for member in running {
            all += 1;
            own += usize::from(member.facts.owner == *owner);
        }
        all += roll.opening.values().sum::<usize>();
        own += roll.opening.get(owner).copied().unwrap_or(0);
        if own >= limits.sandboxes_per_key {
            return Err(Refusal::full(format!(
                "you have reached the maximum number of concurrent sandboxes ({})",
                limits.sandboxes_per_key
            )));
        }
        if all >= limits.sandboxes {
            let message = format!("the server runs as many sandboxes as it may ({all})");
            return Err(Refusal::full(message).with_code("sandbox_capacity_unavailable"));
        }
        *roll.opening.entry(owner.clone()).or_default() += 1;
        drop(roll);
        Ok(Place {
            fleet: Arc::clone(self),
            owner: owner.clone(),
        })
    }

    /// Opens a new sandbox that lives for `lifetime`.
    pub(crate) async fn create(
        self: &Arc<Self>,
        owner: Owner,
        asked: Asked,
        lifetime: Duration,
    ) -> Result<Arc<Member>, Refusal> {
        if self.stopping.is_cancelled() {
            return Err(Refusal::stopping());
        }
        let backend = self.backend(&asked.template)?;
        let place = self.place(&owner)?;
        let no_randomness =
            |_| Refusal::new(http::StatusCode::INTERNAL_SERVER_ERROR, "no randomness");
        let facts = Facts {
            id: format!("i{}", random::text(ID_LETTERS).map_err(no_randomness)?),
            token: random::text(TOKEN_LETTERS).map_err(no_randomness)?.into(),
            owner,
            run: RunId::new(),
            started_at: Timestamp::now(),
            asked,
        };
        let fleet = Arc::clone(self);
        let made = self.tasks.finish(async move {
            let cx = fleet.context(&facts);
            // Nobody closes a semaphore of ours.
            let turn = fleet.opening.acquire().await.ok();
            let opened = match backend.open(cx.clone().durable()).await {
                // What can be kept may be less confined; then it is not kept.
                Err(error) if error.kind() == SandboxErrorKind::Unenforceable => {
                    backend.open(cx).await
                }
                opened => opened,
            };
            drop(turn);
            let sandbox = opened.map_err(|error| Refusal::not_opened(&error))?;
            let member = Arc::new(Member::running(facts, sandbox, &fleet.settings.limits));
            member.end_in(lifetime);
            let stopped = {
                let mut roll = fleet.roll();
                let id = member.facts.id.clone();
                roll.members.insert(id, Arc::clone(&member));
                fleet.stopping.is_cancelled()
            };
            drop(place);
            if stopped {
                fleet.end_now(&member).await;
                return Err(Refusal::stopping());
            }
            fleet.look_after(&member);
            Ok(member)
        });
        made.await.unwrap_or_else(|| Err(Refusal::stopping()))
    }

    fn backend(&self, template: &str) -> Result<Arc<dyn Backend>, Refusal> {
        // `namespace/name:tag`; there is one of each here.
        let name = template.rsplit('/').next().unwrap_or(template);
        let name = name.split(':').next().unwrap_or(name);
        let known = &self.settings.templates;
        known.get(name).map(Arc::clone).ok_or_else(|| {
            let names: Vec<&str> = known.keys().map(String::as_str).collect();
            Refusal::new(
                http::StatusCode::NOT_FOUND,
                format!(
                    "template '{template}' not found; this server has {}",
                    names.join(", ")
                ),
            )
        })
    }

    fn context(&self, facts: &Facts) -> SandboxContext {
        let mut policy = self.settings.policy.clone();
        if let Some(network) = &facts.asked.network {
            policy.network = Some(network.clone());
        }
        for (name, value) in facts.environment() {
            policy.environment.insert(name, value);
        }
        SandboxContext::new(facts.run, policy)
    }

    /// Has a task look after a running sandbox: when its time is over, or it is gone.
    fn look_after(self: &Arc<Self>, member: &Arc<Member>) {
        let Some(live) = member.live() else { return };
        let (fleet, member) = (Arc::clone(self), Arc::clone(member));
        self.tasks.spawn(async move {
            let mut end = member.end();
            loop {
                let at = *end.borrow_and_update();
                tokio::select! {
                    () = live.cut.cancelled() => return,
                    () = live.gone.cancelled() => {
                        fleet.end_now(&member).await;
                        return;
                    }
                    changed = end.changed() => if changed.is_err() { return },
                    () = sleep_until(at.instant) => {
                        tracing::debug!(sandbox = member.facts.id, "its time is over");
                        let paused = member.facts.asked.auto_pause
                            && fleet.pause_now(&member).await.is_ok();
                        if !paused {
                            fleet.end_now(&member).await;
                        }
                        return;
                    }
                }
            }
        });
    }

    /// Ends a sandbox, running or paused. Whether there was one.
    pub(crate) async fn end(self: &Arc<Self>, member: &Arc<Member>) -> bool {
        let (fleet, member) = (Arc::clone(self), Arc::clone(member));
        let ended = async move { fleet.end_now(&member).await };
        self.tasks.finish(ended).await.unwrap_or(false)
    }

    async fn end_now(&self, member: &Arc<Member>) -> bool {
        let _turn = member.turn.lock().await;
        let standing = member.set_standing(Standing::Ended);
        self.roll().members.remove(&member.facts.id);
        let turn = self.ending.acquire().await.ok();
        let ended = match standing {
            Standing::Ended => return false,
            Standing::Running(live) => timeout(END_DEADLINE, live.close()).await,
            Standing::Paused(handle) => {
                let removed = async {
                    let backend = self.backend(&member.facts.asked.template);
                    let backend = backend
                        .map_err(|_| SandboxError::gone("there is no such template any more"))?;
                    let cx = self.context(&member.facts).durable();
                    backend.reattach(&handle, cx).await?.close().await
                };
                timeout(END_DEADLINE, removed).await
            }
        };
        drop(turn);
        if let Some(store) = &self.store {
            store.remove(&member.facts.id).await;
        }
        match ended {
            Ok(Ok(())) => {}
            // It is what was wanted.
            Ok(Err(error)) if error.kind() == SandboxErrorKind::Gone => {}
            Ok(Err(error)) => {
                tracing::warn!(sandbox = member.facts.id, %error, "something may be left behind");
            }
            Err(_) => tracing::warn!(sandbox = member.facts.id, "its end takes too long"),
        }
        true
    }

    /// Pauses a running sandbox.
    pub(crate) async fn pause(self: &Arc<Self>, member: &Arc<Member>) -> Result<(), Refusal> {
        let (fleet, member) = (Arc::clone(self), Arc::clone(member));
        let paused = async move { fleet.pause_now(&member).await };
        let paused = self.tasks.finish(paused).await;
        paused.unwrap_or_else(|| Err(Refusal::stopping()))
    }

    async fn pause_now(&self, member: &Arc<Member>) -> Result<(), Refusal> {
        let _turn = member.turn.lock().await;
        let id = &member.facts.id;
        let live = match member.standing() {
            Standing::Running(live) => live,
            Standing::Paused(_) => {
                let message = format!("sandbox {id} is already paused");
                return Err(Refusal::new(http::StatusCode::CONFLICT, message));
            }
            Standing::Ended => return Err(Refusal::no_sandbox(id)),
        };
        let limit = self.settings.limits.paused_per_key;
        let of_owner = |other: &&Arc<Member>| {
            other.facts.owner == member.facts.owner
                && matches!(other.standing(), Standing::Paused(_))
        };
        if self.roll().members.values().filter(of_owner).count() >= limit {
            let message = format!("you have as many paused sandboxes as you may ({limit})");
            return Err(Refusal::full(message));
        }
        let failed = |error: &SandboxError| match error.kind() {
            SandboxErrorKind::Unsupported => {
                Refusal::unsupported(format!("sandbox {id} can't be paused: {error}"))
            }
            SandboxErrorKind::Gone | SandboxErrorKind::Closed => Refusal::no_sandbox(id),
            _ => Refusal::new(http::StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
        };
        let sandbox = live.visit().map_err(|error| failed(&error))?;
        let handle = sandbox.persist().await.map_err(|error| failed(&error))?;
        drop(sandbox);
        if let Some(store) = &self.store {
            let record = Record {
                facts: member.facts.clone(),
                handle: handle.clone(),
            };
            store.save(&record).await.map_err(|error| {
                let message = format!("sandbox {id} can't be paused: {error}");
                Refusal::new(http::StatusCode::INTERNAL_SERVER_ERROR, message)
            })?;
        }
        member.set_standing(Standing::Paused(handle));
        live.leave().await;
        Ok(())
    }

    /// Makes sure that a sandbox runs, for `lifetime` at least. Whether it had been paused.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        member: &Arc<Member>,
        lifetime: Duration,
    ) -> Result<bool, Refusal> {
        if self.stopping.is_cancelled() {
            return Err(Refusal::stopping());
        }
        let (fleet, member) = (Arc::clone(self), Arc::clone(member));
        let connected = self.tasks.finish(async move {
            let _turn = member.turn.lock().await;
            let id = &member.facts.id;
            let handle = match member.standing() {
                Standing::Running(_) => {
                    member.end_in_at_least(lifetime);
                    return Ok(false);
                }
                Standing::Paused(handle) => handle,
                Standing::Ended => return Err(Refusal::no_sandbox(id)),
            };
            let place = fleet.place(&member.facts.owner)?;
            let backend = fleet.backend(&member.facts.asked.template)?;
            let cx = fleet.context(&member.facts).durable();
            let sandbox: Arc<dyn Sandbox> = match backend.reattach(&handle, cx).await {
                Ok(sandbox) => sandbox,
                Err(error) if error.kind() == SandboxErrorKind::Gone => {
                    member.set_standing(Standing::Ended);
                    fleet.roll().members.remove(id);
                    if let Some(store) = &fleet.store {
                        store.remove(id).await;
                    }
                    return Err(Refusal::no_sandbox(id));
                }
                Err(error) => return Err(Refusal::not_opened(&error)),
            };
            member.run(sandbox, &fleet.settings.limits);
            member.end_in(lifetime);
            drop(place);
            // It stays recorded as one that can be found again: what is kept by the backend is kept.
            fleet.look_after(&member);
            Ok(true)
        });
        connected.await.unwrap_or_else(|| Err(Refusal::stopping()))
    }

    /// Ends all sandboxes but those that are paused, or are to be paused at their end.
    pub(crate) async fn stop(self: &Arc<Self>) -> Result<(), ServeError> {
        self.stopping.cancel();
        let ending = stream::iter(self.members()).map(|member| async move {
            if !member.is_running() {
                return;
            }
            let keeps = member.facts.asked.auto_pause && self.store.is_some();
            if !(keeps && self.pause_now(&member).await.is_ok()) {
                self.end_now(&member).await;
            }
        });
        ending
            .buffer_unordered(at_once())
            .for_each(|()| async {})
            .await;
        if self.store.is_none() {
            // Nobody would find them again.
            let paused = stream::iter(self.members()).map(|member| async move {
                self.end_now(&member).await;
            });
            paused
                .buffer_unordered(at_once())
                .for_each(|()| async {})
                .await;
        }
        let running = self
            .members()
            .iter()
            .filter(|member| member.is_running())
            .count();
        if running == 0 {
            return Ok(());
        }
        let message = format!("{running} sandboxes could not be ended");
        Err(ServeError::new(ServeErrorKind::LeftBehind, message))
    }
}
