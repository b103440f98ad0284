//! All sandboxes of a server: creation, lookup, pausing, ending and quotas.
//!
//! Operations that must complete (creating, pausing, ending) run in tasks owned by the fleet, so that a
//! disconnected client can't interrupt them. Dropping the fleet aborts the tasks.

mod member;
mod store;

use std::collections::HashMap;
use std::io;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::available_parallelism;
use std::time::Duration;

use cantle_core::escape::join_up_to;
use cantle_core::ids::RunId;
use cantle_core::sandbox::{
    Backend, Sandbox, SandboxContext, SandboxError, SandboxErrorKind, SandboxHandle,
};
use futures_util::StreamExt as _;
use futures_util::stream;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::{sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use self::member::PauseInProgress;
pub(crate) use self::member::{Member, SandboxIdentity, SandboxSpec, SandboxState};
use self::store::{PausedRecord, Store};
use crate::accounts::{Account, Accounts, DESCRIPTORS_PER_SANDBOX, Exhausted, Lease, MemoryCharge};
use crate::api_error::{ApiError, ApiResult};
use crate::envd::RunningSandbox;
use crate::error::{ServeError, ServeErrorKind};
use crate::random;
use crate::settings::{DEFAULT_TEMPLATE, Settings};
use crate::tasks::Tasks;
use cantle_core::principal::{Level, Principal, PrincipalId};

/// Random characters of a sandbox's id and of its token.
const ID_CHARS: usize = 20;
const TOKEN_CHARS: usize = 40;

/// Time limit for closing one sandbox.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a stopping server for a pause or a resume in progress, and for pausing a sandbox. Services need
/// seconds for each gigabyte of memory.
const TRANSITION_TIMEOUT: Duration = Duration::from_mins(2);
/// Sandboxes opened, and closed, concurrently per processor. Each occupies a blocking thread, and the
/// memory of threads is not returned.
const CONCURRENCY_PER_PROCESSOR: usize = 2;
/// The API's code for a server that has no room.
const NO_CAPACITY: &str = "sandbox_capacity_unavailable";
/// Bounds of the total concurrency.
const CONCURRENCY: RangeInclusive<usize> = 4..=16;

fn concurrency() -> usize {
    let processors = available_parallelism().map_or(1, usize::from);
    (processors * CONCURRENCY_PER_PROCESSOR).clamp(*CONCURRENCY.start(), *CONCURRENCY.end())
}

/// All sandboxes of a server.
pub(crate) struct Fleet {
    pub(crate) settings: Settings,
    store: Option<Store>,
    pub(crate) accounts: Arc<Accounts>,
    members: Mutex<HashMap<String, Arc<Member>>>,
    tasks: Tasks,
    opening: Semaphore,
    ending: Semaphore,
    stopping: CancellationToken,
}

/// The place of a running sandbox, and its descriptors.
#[derive(Debug)]
pub struct SandboxPlace {
    _place: Lease,
    _descriptors: Lease,
}

impl Fleet {
    /// Loads the records of paused sandboxes.
    pub(crate) async fn open(settings: Settings) -> Result<Arc<Self>, ServeError> {
        let accounts = Arc::new(Accounts::new(&settings.limits, &settings.keys));
        let mut members = HashMap::new();
        let mut store = None;
        if let Some(directory) = &settings.state {
            let (opened, records) = Store::open(directory.clone()).await?;
            store = Some(opened);
            for record in records {
                let paused = SandboxState::Paused(record.handle);
                let identity = record.identity;
                let mut kept = Account::new(&accounts, &identity.owner).charge();
                // What an earlier server accepted is kept in any case.
                let _ = kept.grow(serde_json::to_vec(&identity.spec).map_or(0, |spec| spec.len()));
                let member = Member::new(identity, paused, kept);
                members.insert(member.identity.id.clone(), Arc::new(member));
            }
        }
        Ok(Arc::new(Self {
            settings,
            store,
            accounts,
            members: Mutex::new(members),
            tasks: Tasks::default(),
            opening: Semaphore::new(concurrency()),
            ending: Semaphore::new(concurrency()),
            stopping: CancellationToken::new(),
        }))
    }

    /// Returns the handles of paused sandboxes, if all records were readable.
    pub(crate) fn paused(&self) -> Option<Vec<SandboxHandle>> {
        let handles = self.members().into_iter();
        let handles = handles.filter_map(|member| match member.state() {
            SandboxState::Paused(handle) => Some(handle),
            _ => None,
        });
        let is_complete = self.unreadable_records().is_empty();
        is_complete.then(|| handles.collect())
    }

    /// Returns the records that could not be read, with the reasons.
    pub(crate) fn unreadable_records(&self) -> &[(PathBuf, io::Error)] {
        let store = self.store.as_ref();
        store.map_or(&[], |store| store.unreadable.as_slice())
    }

    /// Returns all sandboxes.
    pub(crate) fn members(&self) -> Vec<Arc<Member>> {
        self.members.lock().values().map(Arc::clone).collect()
    }

    /// Finds a sandbox by id, regardless of its owner.
    pub(crate) fn find(&self, id: &str) -> Option<Arc<Member>> {
        self.members.lock().get(id).map(Arc::clone)
    }

    /// Finds a sandbox of an owner by id.
    pub(crate) fn find_of(&self, owner: &PrincipalId, id: &str) -> ApiResult<Arc<Member>> {
        self.find(id)
            .filter(|member| member.identity.owner == *owner)
            .ok_or_else(|| ApiError::sandbox_not_found(id))
    }

    fn running(&self, sandbox: Arc<dyn Sandbox>, owner: &PrincipalId) -> Arc<RunningSandbox> {
        let running = RunningSandbox::new(sandbox, &self.settings, &self.accounts, owner);
        Arc::new(running)
    }

    /// Takes the place of a running sandbox.
    pub(crate) fn take_place(&self, owner: &PrincipalId) -> ApiResult<SandboxPlace> {
        let place = self.accounts.sandboxes.take(owner, 1);
        let place = place.map_err(|exhausted| match exhausted {
            Exhausted::Principal(limit) => ApiError::quota_exceeded(format!(
                "you have reached the maximum number of concurrent sandboxes ({limit})"
            )),
            Exhausted::All(limit) => ApiError::quota_exceeded(format!(
                "the server has reached its maximum number of sandboxes ({limit})"
            ))
            .with_code(NO_CAPACITY),
        })?;
        let descriptors = self
            .accounts
            .descriptors
            .take(owner, DESCRIPTORS_PER_SANDBOX);
        let descriptors = descriptors.map_err(|_| {
            ApiError::quota_exceeded("the server has reached its maximum number of open files")
                .with_code(NO_CAPACITY)
        })?;
        Ok(SandboxPlace {
            _place: place,
            _descriptors: descriptors,
        })
    }

    /// Opens a new sandbox with the given lifetime; `kept` is charged until it ends. To be called in an operation of
    /// [`finish`](Self::finish): dropped halfway, it could leave a sandbox that is no member.
    pub(crate) async fn create(
        self: &Arc<Self>,
        owner: PrincipalId,
        spec: SandboxSpec,
        lifetime: Duration,
        kept: MemoryCharge,
    ) -> ApiResult<Arc<Member>> {
        if self.stopping.is_cancelled() {
            return Err(ApiError::stopping());
        }
        let backend = self.backend(&spec.template)?;
        let place = self.take_place(&owner)?;
        let identity = SandboxIdentity {
            id: format!("i{}", random::text(ID_CHARS, ApiError::internal)?),
            token: random::text(TOKEN_CHARS, ApiError::internal)?.into(),
            owner,
            run: RunId::new(),
            started_at: Timestamp::now(),
            spec,
        };
        let cx = self.context(&identity);
        // The semaphore is never closed.
        let permit = self.opening.acquire().await.ok();
        let opened = match backend.open(cx.clone().durable()).await {
            // A durable sandbox may support less isolation; prefer one that can't be paused.
            Err(error) if error.kind() == SandboxErrorKind::Unenforceable => backend.open(cx).await,
            opened => opened,
        };
        drop(permit);
        let sandbox = opened.map_err(|error| ApiError::open_failed(&error))?;
        let running = SandboxState::Running(self.running(sandbox, &identity.owner));
        let member = Arc::new(Member::new(identity, running, kept));
        member.set_place(Some(place));
        member.set_lifetime(lifetime);
        let stopped = {
            let mut members = self.members.lock();
            members.insert(member.identity.id.clone(), Arc::clone(&member));
            self.stopping.is_cancelled()
        };
        if stopped {
            let _transition = member.transition.lock().await;
            self.end_now(&member).await;
            return Err(ApiError::stopping());
        }
        self.monitor(&member);
        Ok(member)
    }

    /// Runs an operation to completion even if the client disconnects.
    pub(crate) async fn finish<T, F>(
        self: &Arc<Self>,
        operation: impl FnOnce(Arc<Self>) -> F,
    ) -> ApiResult<T>
    where
        T: Send + 'static,
        F: Future<Output = ApiResult<T>> + Send + 'static,
    {
        let finished = self.tasks.finish(operation(Arc::clone(self))).await;
        finished.unwrap_or_else(|| Err(ApiError::stopping()))
    }

    /// Returns the backend of a template.
    pub(crate) fn backend(&self, template: &str) -> ApiResult<Arc<dyn Backend>> {
        // `namespace/name:tag`; only the name selects a template here.
        let name = template.rsplit('/').next().unwrap_or(template);
        let name = name.split(':').next().unwrap_or(name);
        let known = &self.settings.templates;
        known.get(name).map(Arc::clone).ok_or_else(|| {
            let names = join_up_to(usize::MAX, known.keys());
            let message = format!("template '{template}' not found; this server has {names}");
            ApiError::new(http::StatusCode::NOT_FOUND, message)
        })
    }

    fn context(&self, identity: &SandboxIdentity) -> SandboxContext {
        let mut policy = self.settings.policy.clone();
        if let Some(network) = &identity.spec.network {
            policy.network = Some(network.clone());
        }
        policy.environment.extend(identity.environment());
        let mut context = SandboxContext::new(identity.run, policy);
        let level = self.settings.keys.level_of(&identity.owner);
        let level = level.unwrap_or(Level::User);
        context.principal = Principal::new(identity.owner.as_str(), level).ok();
        context
    }

    /// Opens a sandbox that is no member of the fleet.
    pub(crate) async fn open_leased(
        &self,
        run: RunId,
        principal: Principal,
    ) -> Result<Arc<dyn Sandbox>, SandboxError> {
        let backend = self.settings.templates.get(DEFAULT_TEMPLATE);
        let backend = backend.ok_or_else(|| SandboxError::gone("the template no longer exists"))?;
        let mut context = SandboxContext::new(run, self.settings.policy.clone());
        context.principal = Some(principal);
        // The semaphore is never closed.
        let _permit = self.opening.acquire().await.ok();
        backend.open(context).await
    }

    /// Spawns a task that ends a running sandbox at its deadline, or when it is gone.
    fn monitor(self: &Arc<Self>, member: &Arc<Member>) {
        let Some(running) = member.running() else {
            return;
        };
        // The fleet owns the task, and has to end when its other owners drop it.
        let (fleet, member) = (Arc::downgrade(self), Arc::clone(member));
        self.tasks.spawn(async move {
            let mut deadline = member.deadline();
            loop {
                let at = *deadline.borrow_and_update();
                let is_gone = tokio::select! {
                    () = running.ended.cancelled() => return,
                    () = running.gone.cancelled() => true,
                    changed = deadline.changed() => match changed {
                        Ok(()) => continue,
                        Err(_) => return,
                    },
                    () = sleep_until(at.instant) => false,
                };
                let Some(fleet) = fleet.upgrade() else {
                    return;
                };
                let _transition = member.transition.lock().await;
                // Meanwhile a client may have paused it, or moved its deadline.
                if running.ended.is_cancelled() {
                    return;
                }
                if !is_gone && deadline.has_changed().unwrap_or(false) {
                    continue;
                }
                tracing::debug!(sandbox = member.identity.id, is_gone, "the sandbox ends");
                let paused = !is_gone
                    && member.identity.spec.auto_pause
                    && fleet.pause_now(&member).await.is_ok();
                if !paused {
                    fleet.end_now(&member).await;
                }
                return;
            }
        });
    }

    /// Ends a running or paused sandbox. Returns whether it had not ended before.
    pub(crate) async fn end(self: &Arc<Self>, member: &Arc<Member>) -> bool {
        let (fleet, member) = (Arc::clone(self), Arc::clone(member));
        let ended = async move {
            let _transition = member.transition.lock().await;
            fleet.end_now(&member).await.is_some()
        };
        self.tasks.finish(ended).await.unwrap_or(false)
    }

    /// Ends a sandbox, whose `transition` the caller has locked. Returns whether it could be closed, or `None` if it
    /// had ended before.
    async fn end_now(&self, member: &Arc<Member>) -> Option<bool> {
        let state = member.set_state(SandboxState::Ended);
        if matches!(state, SandboxState::Ended) {
            return None;
        }
        self.members.lock().remove(&member.identity.id);
        let permit = self.ending.acquire().await.ok();
        let closed = async {
            match state {
                SandboxState::Ended => Ok(()),
                SandboxState::Running(running) => running.close().await,
                SandboxState::Paused(handle) => {
                    let backend = self.backend(&member.identity.spec.template);
                    let backend =
                        backend.map_err(|_| SandboxError::gone("the template no longer exists"))?;
                    let cx = self.context(&member.identity).durable();
                    backend.reattach(&handle, cx).await?.close().await
                }
            }
        };
        let ended = timeout(CLOSE_TIMEOUT, closed).await;
        drop(permit);
        if let Some(store) = &self.store {
            store.remove(&member.identity.id).await;
        }
        member.set_place(None);
        match ended {
            Ok(Ok(())) => return Some(true),
            // It has ended already.
            Ok(Err(error)) if error.kind() == SandboxErrorKind::Gone => return Some(true),
            Ok(Err(error)) => {
                tracing::warn!(sandbox = member.identity.id, %error, "closing a sandbox failed; resources may remain");
            }
            Err(_) => tracing::warn!(sandbox = member.identity.id, "closing a sandbox timed out"),
        }
        Some(false)
    }

    /// Pauses a running sandbox.
    pub(crate) async fn pause(self: &Arc<Self>, member: &Arc<Member>) -> ApiResult<()> {
        let member = Arc::clone(member);
        self.finish(|fleet| async move {
            let _transition = member.transition.lock().await;
            fleet.pause_now(&member).await
        })
        .await
    }

    /// Pauses a running sandbox, whose `transition` the caller has locked.
    async fn pause_now(&self, member: &Arc<Member>) -> ApiResult<()> {
        let id = &member.identity.id;
        let running = match member.state() {
            SandboxState::Running(running) => running,
            SandboxState::Paused(_) => {
                return Err(ApiError::conflict(format!(
                    "sandbox {id} is already paused"
                )));
            }
            SandboxState::Ended => return Err(ApiError::sandbox_not_found(id)),
        };
        let _counted = self.begin_pause(member)?;
        let failed = |error: &SandboxError| match error.kind() {
            SandboxErrorKind::Unsupported => {
                ApiError::unsupported(format!("sandbox {id} can't be paused: {error}"))
            }
            SandboxErrorKind::Gone | SandboxErrorKind::Closed => ApiError::sandbox_not_found(id),
            _ => ApiError::internal(error.to_string()),
        };
        let sandbox = running.acquire().map_err(|error| failed(&error))?;
        let handle = sandbox.persist().await.map_err(|error| failed(&error))?;
        drop(sandbox);
        if let Some(store) = &self.store {
            let record = PausedRecord {
                identity: member.identity.clone(),
                handle: handle.clone(),
            };
            store.save(&record).await.map_err(|error| {
                ApiError::internal(format!("sandbox {id} can't be paused: {error}"))
            })?;
        }
        member.set_state(SandboxState::Paused(handle));
        running.detach().await;
        member.set_place(None);
        Ok(())
    }

    /// Counts a sandbox as paused, unless its owner has too many.
    fn begin_pause<'m>(&self, member: &'m Member) -> ApiResult<PauseInProgress<'m>> {
        let limit = self.settings.limits.paused_per_key;
        // Held until the sandbox is counted, so that of concurrent pauses each counts the others.
        let members = self.members.lock();
        let counted = members.values().filter(|other| {
            other.identity.owner == member.identity.owner && other.counts_as_paused()
        });
        if counted.count() >= limit {
            let message =
                format!("you have reached the maximum number of paused sandboxes ({limit})");
            return Err(ApiError::quota_exceeded(message));
        }
        Ok(member.begin_pause())
    }

    /// Resumes a paused sandbox, or extends the deadline of a running one. Returns whether it was paused.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        member: &Arc<Member>,
        lifetime: Duration,
    ) -> ApiResult<bool> {
        let member = Arc::clone(member);
        self.finish(|fleet| async move {
            let _transition = member.transition.lock().await;
            // `stop` ends what is running when it gets the lock.
            if fleet.stopping.is_cancelled() {
                return Err(ApiError::stopping());
            }
            let id = &member.identity.id;
            let handle = match member.state() {
                SandboxState::Running(_) => {
                    member.extend_lifetime(lifetime);
                    return Ok(false);
                }
                SandboxState::Paused(handle) => handle,
                SandboxState::Ended => return Err(ApiError::sandbox_not_found(id)),
            };
            let place = fleet.take_place(&member.identity.owner)?;
            let backend = fleet.backend(&member.identity.spec.template)?;
            let cx = fleet.context(&member.identity).durable();
            // The semaphore is never closed.
            let permit = fleet.opening.acquire().await.ok();
            let reattached = backend.reattach(&handle, cx).await;
            drop(permit);
            let sandbox = match reattached {
                Ok(sandbox) => sandbox,
                Err(error) if error.kind() == SandboxErrorKind::Gone => {
                    member.set_state(SandboxState::Ended);
                    fleet.members.lock().remove(id);
                    if let Some(store) = &fleet.store {
                        store.remove(id).await;
                    }
                    return Err(ApiError::sandbox_not_found(id));
                }
                Err(error) => return Err(ApiError::open_failed(&error)),
            };
            member.set_place(Some(place));
            let running = fleet.running(sandbox, &member.identity.owner);
            if let Some(contexts) = running.contexts() {
                contexts.set_paused();
            }
            member.set_state(SandboxState::Running(running));
            member.set_lifetime(lifetime);
            // The record stays: the backend still keeps the sandbox if this server is killed.
            fleet.monitor(&member);
            Ok(true)
        })
        .await
    }

    /// Ends all running sandboxes; those with auto-pause are paused.
    pub(crate) async fn stop(self: &Arc<Self>) -> Result<(), ServeError> {
        self.stopping.cancel();
        // Without records, no later server can resume a sandbox.
        let can_keep = self.store.is_some();
        let left = AtomicUsize::new(0);
        let ending = stream::iter(self.members()).for_each_concurrent(concurrency(), async |it| {
            // A pause in progress comes first.
            let locked = timeout(TRANSITION_TIMEOUT, it.transition.lock()).await;
            let Ok(_transition) = locked else {
                tracing::warn!(
                    sandbox = it.identity.id,
                    "pausing or resuming a sandbox timed out"
                );
                left.fetch_add(1, Ordering::Relaxed);
                return;
            };
            if can_keep && it.is_running() && it.identity.spec.auto_pause {
                // One that can't be paused is ended.
                let _ = timeout(TRANSITION_TIMEOUT, self.pause_now(&it)).await;
            }
            if !(can_keep && it.is_paused()) && self.end_now(&it).await == Some(false) {
                left.fetch_add(1, Ordering::Relaxed);
            }
        });
        ending.await;
        match left.into_inner() {
            0 => Ok(()),
            left => {
                let message = format!("{left} sandboxes could not be closed");
                Err(ServeError::new(ServeErrorKind::LeftBehind, message))
            }
        }
    }
}

#[cfg(test)]
mod tests;
