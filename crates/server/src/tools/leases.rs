//! The leased sandboxes of principals.
//!
//! The calls of a principal take turns, in the order of their arrival. The first one opens its sandbox, which is
//! closed after some time without a call, or earlier if a principal of the same key needs the place and no other
//! sandbox has been unused for longer.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use cantle_core::ids::RunId;
use cantle_core::principal::{Principal, PrincipalId};
use cantle_core::sandbox::{Sandbox, SandboxError};
use futures_util::stream::{self, StreamExt as _};
use parking_lot::Mutex;
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::Refusal;
use crate::accounts::{Lease, Pool};
use crate::fleet::{Fleet, SandboxPlace};
use crate::tasks::Tasks;

/// The longest interval of looking for idle sandboxes.
const IDLE_CHECK: Duration = Duration::from_secs(10);
/// How long a call waits for those before it.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);
/// Calls of one principal that run or wait.
const MAX_CALLS: usize = 16;
/// Principals that have a sandbox or made a call within a minute; each key has a share of them.
const MAX_PRINCIPALS: usize = 10_000;
/// The period of the limit of calls.
const MINUTE: Duration = Duration::from_secs(60);
/// Delay after which a call that found everything in use is worth repeating.
const RETRY: Duration = Duration::from_secs(5);
/// How long closing a sandbox may take.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);
/// Sandboxes that a stopping server closes at once.
const CONCURRENT_CLOSES: usize = 16;

/// The sandbox of a principal.
#[derive(Clone)]
pub(super) struct Leased {
    pub(super) run: RunId,
    pub(super) sandbox: Arc<dyn Sandbox>,
    /// The key whose limits count it.
    owner: PrincipalId,
    _place: Arc<SandboxPlace>,
}

/// The calls of one principal, and its sandbox.
struct PrincipalState {
    /// Locked during a call. Waiting calls get it in their order.
    sandbox: Arc<tokio::sync::Mutex<Option<Leased>>>,
    calls: Arc<Semaphore>,
    usage: Mutex<CallUsage>,
    /// The place among the principals, of the key that called first for this one.
    _place: Lease,
}

struct CallUsage {
    latest: Instant,
    /// Beginning of the present minute, and its calls.
    minute: Instant,
    calls: u32,
}

impl PrincipalState {
    fn new(place: Lease) -> Self {
        let now = Instant::now();
        Self {
            sandbox: Arc::default(),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            usage: Mutex::new(CallUsage {
                latest: now,
                minute: now,
                calls: 0,
            }),
            _place: place,
        }
    }

    fn idle(&self) -> Duration {
        self.usage.lock().latest.elapsed()
    }

    /// Counts a call, unless the minute has had as many as it may.
    fn count(&self, limit: u32) -> Result<(), Refusal> {
        let mut usage = self.usage.lock();
        if usage.minute.elapsed() >= MINUTE {
            (usage.minute, usage.calls) = (Instant::now(), 0);
        }
        if usage.calls >= limit {
            let detail = format!("the limit of {limit} calls in a minute is reached");
            let rest = MINUTE.saturating_sub(usage.minute.elapsed());
            // Rounded up: the header has whole seconds.
            return Err(Refusal::limited(detail, rest + Duration::from_secs(1)));
        }
        usage.calls += 1;
        usage.latest = Instant::now();
        Ok(())
    }

    /// Locks the sandbox if there is one that no call uses.
    fn try_idle_sandbox(&self) -> Option<OwnedMutexGuard<Option<Leased>>> {
        let sandbox = Arc::clone(&self.sandbox).try_lock_owned().ok()?;
        sandbox.is_some().then_some(sandbox)
    }
}

/// All principals that have a sandbox, or have had one lately.
pub(super) struct Leases {
    pub(super) fleet: Arc<Fleet>,
    calls_per_minute: u32,
    idle: Duration,
    principals: Arc<Pool>,
    states: Mutex<HashMap<PrincipalId, Arc<PrincipalState>>>,
    stopping: CancellationToken,
    tasks: Tasks,
}

impl Leases {
    pub(super) fn new(fleet: &Arc<Fleet>, calls_per_minute: u32, idle: Duration) -> Arc<Self> {
        let leases = Arc::new(Self {
            fleet: Arc::clone(fleet),
            calls_per_minute,
            idle,
            principals: Pool::new(MAX_PRINCIPALS, MAX_PRINCIPALS, &fleet.settings.keys),
            states: Mutex::default(),
            stopping: CancellationToken::new(),
            tasks: Tasks::default(),
        });
        leases
            .tasks
            .spawn(close_idle(Arc::downgrade(&leases), idle.min(IDLE_CHECK)));
        leases
    }

    fn all(&self) -> Vec<Arc<PrincipalState>> {
        self.states.lock().values().map(Arc::clone).collect()
    }

    fn state(
        &self,
        owner: &PrincipalId,
        principal: &PrincipalId,
    ) -> Result<Arc<PrincipalState>, Refusal> {
        let mut states = self.states.lock();
        if let Some(state) = states.get(principal) {
            return Ok(Arc::clone(state));
        }
        let place = self.principals.take(owner, 1).map_err(|_| {
            let detail = "too many principals call this server: repeat the call later";
            Refusal::limited(detail, RETRY)
        })?;
        let state = Arc::new(PrincipalState::new(place));
        states.insert(principal.clone(), Arc::clone(&state));
        Ok(state)
    }

    /// Waits until the earlier calls of a principal have ended.
    pub(super) async fn begin_call(
        self: &Arc<Self>,
        owner: &PrincipalId,
        principal: &Principal,
    ) -> Result<ActiveCall, Refusal> {
        let state = self.state(owner, principal.id())?;
        state.count(self.calls_per_minute)?;
        let too_many = || {
            let detail = "earlier calls of the same principal are still running";
            Refusal::limited(detail, RETRY)
        };
        let call = Arc::clone(&state.calls).try_acquire_owned();
        let call = call.map_err(|_| too_many())?;
        let sandbox = Arc::clone(&state.sandbox).lock_owned();
        let sandbox = timeout(QUEUE_TIMEOUT, sandbox).await;
        let sandbox = sandbox.map_err(|_| too_many())?;
        // `stop` closes only what is open by then.
        if self.stopping.is_cancelled() {
            return Err(Refusal::stopping());
        }
        Ok(ActiveCall {
            leases: Arc::clone(self),
            owner: owner.clone(),
            principal: principal.clone(),
            state,
            sandbox,
            _call: call,
        })
    }

    /// Takes the place of a sandbox, if need be that of the one of the same key that has been idle the longest.
    async fn take_place(&self, owner: &PrincipalId) -> Result<SandboxPlace, Refusal> {
        loop {
            let refused = match self.fleet.take_place(owner) {
                Ok(place) => return Ok(place),
                Err(error) => error.message().to_owned(),
            };
            let mut idle = None;
            for state in self.all() {
                let time = state.idle();
                let sandbox = state.try_idle_sandbox();
                let sandbox = sandbox.filter(|it| it.as_ref().is_some_and(|it| it.owner == *owner));
                if let Some(sandbox) = sandbox
                    && idle.as_ref().is_none_or(|(longest, _)| time > *longest)
                {
                    idle = Some((time, sandbox));
                }
            }
            match idle {
                Some((_, mut sandbox)) => close(&mut sandbox).await,
                None => return Err(Refusal::limited(refused, RETRY)),
            }
        }
    }

    /// Ends all calls and closes all sandboxes.
    pub(super) async fn stop(&self) {
        self.stopping.cancel();
        let closing = stream::iter(self.all());
        let closing = closing.for_each_concurrent(CONCURRENT_CLOSES, async |state| {
            close(&mut *state.sandbox.lock().await).await;
        });
        closing.await;
    }
}

/// Closes sandboxes that have been idle for too long, and forgets principals without one.
async fn close_idle(leases: Weak<Leases>, interval: Duration) {
    loop {
        tokio::time::sleep(interval).await;
        let Some(leases) = leases.upgrade() else {
            return;
        };
        for state in leases
            .all()
            .into_iter()
            .filter(|it| it.idle() >= leases.idle)
        {
            if let Some(mut sandbox) = state.try_idle_sandbox() {
                close(&mut sandbox).await;
            }
        }
        leases.states.lock().retain(|_, state| {
            // A call has another reference.
            let is_unused = Arc::strong_count(state) == 1 && state.idle() >= MINUTE;
            !is_unused || state.sandbox.try_lock().map_or(true, |it| it.is_some())
        });
    }
}

async fn close(sandbox: &mut Option<Leased>) {
    if let Some(leased) = sandbox.take() {
        match timeout(CLOSE_TIMEOUT, leased.sandbox.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "closing a leased sandbox failed"),
            Err(_) => tracing::warn!("closing a leased sandbox timed out"),
        }
    }
}

/// The turn of a call. The next call of the principal begins when it is dropped.
pub(super) struct ActiveCall {
    leases: Arc<Leases>,
    owner: PrincipalId,
    principal: Principal,
    state: Arc<PrincipalState>,
    sandbox: OwnedMutexGuard<Option<Leased>>,
    _call: OwnedSemaphorePermit,
}

impl Drop for ActiveCall {
    fn drop(&mut self) {
        // A sandbox is idle from the end of a call on.
        self.state.usage.lock().latest = Instant::now();
    }
}

impl ActiveCall {
    /// Returns the sandbox of the principal, and opens it if there is none.
    pub(super) async fn sandbox(&mut self) -> Result<Result<Leased, SandboxError>, Refusal> {
        if let Some(leased) = &*self.sandbox {
            return Ok(Ok(leased.clone()));
        }
        let fleet = &self.leases.fleet;
        let place = self.leases.take_place(&self.owner).await?;
        let run = RunId::new();
        let opening = fleet.open_leased(run, self.principal.clone());
        let opened = self.leases.stopping.run_until_cancelled(opening).await;
        let sandbox = match opened.ok_or_else(Refusal::stopping)? {
            Ok(sandbox) => sandbox,
            Err(error) => return Ok(Err(error)),
        };
        let leased = Leased {
            run,
            sandbox,
            owner: self.owner.clone(),
            _place: Arc::new(place),
        };
        *self.sandbox = Some(leased.clone());
        Ok(Ok(leased))
    }

    /// Closes the sandbox.
    pub(super) async fn close(&mut self) {
        close(&mut self.sandbox).await;
    }

    /// Returns a token that is cancelled when the server stops.
    pub(super) fn stopping(&self) -> CancellationToken {
        self.leases.stopping.child_token()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cantle_core::policy::Policy;

    use super::*;
    use crate::keys::Keys;
    use crate::settings::{ServerLimits, Settings};

    #[tokio::test]
    async fn no_key_takes_all_principals() {
        let mut keys = Keys::default();
        keys.add("one");
        keys.add("two");
        let (one, two) = (keys.owner("one").unwrap(), keys.owner("two").unwrap());
        let settings = Settings {
            templates: BTreeMap::new(),
            interpreter: None,
            policy: Policy::workspace(),
            keys,
            limits: ServerLimits::default(),
            state: None,
            domain: None,
            user: "user".to_owned(),
            machine_memory_bytes: 0,
        };
        let fleet = Fleet::open(settings).await.unwrap();
        let leases = Leases::new(&fleet, 1, Duration::from_secs(600));
        let state = |owner: &PrincipalId, number: usize| {
            let principal = PrincipalId::from(number.to_string());
            leases.state(owner, &principal).is_ok()
        };
        let mut numbers = 0..MAX_PRINCIPALS;
        assert!(numbers.any(|number| !state(&one, number)));
        assert!(state(&two, MAX_PRINCIPALS));
        assert!(state(&one, 0), "it is known");
    }
}
