//! Use of the server's limited resources, by owner.
//!
//! Each resource is a [`Pool`]. If the server has several keys, half of a pool is divided into shares
//! reserved for them, so that no key can take the last places of the others; the other half belongs to
//! whoever comes first. A server with one key, or without keys, gives everything to its clients.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};

use crate::keys::Keys;
use crate::settings::ServerLimits;
use cantle_core::principal::PrincipalId;

/// Descriptors that an idle sandbox, and a running command with its input, hold open in the local backend.
pub(crate) const DESCRIPTORS_PER_SANDBOX: usize = 5;
const DESCRIPTORS_PER_COMMAND: usize = 4;
/// Descriptors that opening a sandbox or starting a command needs for a moment, beyond those that it keeps.
const DESCRIPTORS_OF_A_START: usize = 8;
/// Eighths of the other descriptors: for sandboxes and commands, and for connections, each of which may need
/// another one for a file. One eighth is left for everything else.
const SANDBOX_EIGHTHS: usize = 5;
const CONNECTION_EIGHTHS: usize = 1;
/// Part of the connections that is for unauthenticated clients only; they may also use free places.
const UNAUTHENTICATED_PART: usize = 4;

/// The pools of a server.
pub(crate) struct Accounts {
    /// Running sandboxes.
    pub(crate) sandboxes: Arc<Pool>,
    /// Bytes kept for clients: messages being read, listings, watched directories, metadata.
    pub(crate) memory: Arc<Pool>,
    /// File descriptors of sandboxes and commands.
    pub(crate) descriptors: Arc<Pool>,
    /// Connections of authenticated clients.
    pub(crate) connections: Arc<Pool>,
    /// Authenticated requests that wait for a connection of their owner to end.
    pub(crate) waiting: Arc<Pool>,
    /// Maximum number of connections, authenticated or not.
    pub(crate) all_connections: usize,
}

impl Accounts {
    pub(crate) fn new(limits: &ServerLimits, keys: &Keys) -> Self {
        let open_files = getrlimit(Resource::Nofile).current;
        let open_files =
            open_files.map_or(usize::MAX, |limit| limit.try_into().unwrap_or(usize::MAX));
        let open_files = open_files.saturating_sub(own_descriptors() + DESCRIPTORS_OF_A_START);
        let connections = limits
            .connections
            .min(open_files / 8 * CONNECTION_EIGHTHS)
            .max(2);
        let unauthenticated = (connections / UNAUTHENTICATED_PART).max(1);
        // Those who wait may not fill the place of those who only begin, unless no other key does.
        let waiting = if keys.owners().len() > 1 {
            unauthenticated / 2
        } else {
            unauthenticated
        };
        let pool = |capacity| Pool::new(capacity, capacity, keys);
        Self {
            sandboxes: Pool::new(limits.sandboxes, limits.sandboxes_per_key, keys),
            memory: pool(limits.memory_bytes),
            descriptors: pool(open_files / 8 * SANDBOX_EIGHTHS),
            connections: pool(connections - unauthenticated),
            waiting: pool(waiting),
            all_connections: connections,
        }
    }

    /// Returns the number of sandboxes that descriptors allow, each with one command.
    pub(crate) fn sandboxes_by_descriptors(&self) -> usize {
        self.descriptors.capacity / (DESCRIPTORS_PER_SANDBOX + DESCRIPTORS_PER_COMMAND)
    }
}

/// Returns the number of descriptors that this process has open, or 0 if the system does not tell.
fn own_descriptors() -> usize {
    std::fs::read_dir("/dev/fd").map_or(0, Iterator::count)
}

/// A limited resource.
#[derive(Debug)]
pub(crate) struct Pool {
    capacity: usize,
    max_per_owner: usize,
    /// Reserved for each of `owners`.
    share: usize,
    owners: HashSet<PrincipalId>,
    usage: Mutex<PoolUsage>,
}

#[derive(Debug, Default)]
struct PoolUsage {
    by_owner: HashMap<PrincipalId, usize>,
    total: usize,
    /// Sum of the unused parts of all shares.
    unused_shares: usize,
}

/// A pool has too little left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exhausted {
    /// For this owner, whose maximum is the number.
    Principal(usize),
    /// For everyone but the owners with unused shares; the number is the capacity.
    All(usize),
}

impl Pool {
    /// Creates a pool of which one owner may use `max_per_owner`.
    pub(crate) fn new(capacity: usize, max_per_owner: usize, keys: &Keys) -> Arc<Self> {
        let owners = keys.owners();
        let share = match owners.len() {
            0 | 1 => 0,
            count if capacity < count => 0,
            count => (capacity / count / 2).max(1).min(max_per_owner),
        };
        let unused_shares = share * owners.len();
        Arc::new(Self {
            capacity,
            max_per_owner,
            share,
            owners,
            usage: Mutex::new(PoolUsage {
                unused_shares,
                ..PoolUsage::default()
            }),
        })
    }

    /// Takes `amount` for an owner until the lease is dropped.
    pub(crate) fn take(
        self: &Arc<Self>,
        owner: &PrincipalId,
        amount: usize,
    ) -> Result<Lease, Exhausted> {
        self.add(owner, amount)?;
        Ok(Lease {
            pool: Arc::clone(self),
            owner: owner.clone(),
            amount,
        })
    }

    /// Returns the amount in use.
    pub(crate) fn used(&self) -> usize {
        self.usage.lock().total
    }

    fn unused_share(&self, owner: &PrincipalId, used: usize) -> usize {
        if self.owners.contains(owner) {
            self.share.saturating_sub(used)
        } else {
            0
        }
    }

    fn add(&self, owner: &PrincipalId, amount: usize) -> Result<(), Exhausted> {
        let mut usage = self.usage.lock();
        let used = usage.by_owner.get(owner).copied().unwrap_or(0);
        let own = used.saturating_add(amount);
        if own > self.max_per_owner && self.max_per_owner < self.capacity {
            return Err(Exhausted::Principal(self.max_per_owner));
        }
        let shares_of_others = usage.unused_shares - self.unused_share(owner, used);
        if usage.total.saturating_add(amount) > self.capacity.saturating_sub(shares_of_others) {
            return Err(Exhausted::All(self.capacity));
        }
        usage.total += amount;
        usage.unused_shares = shares_of_others + self.unused_share(owner, own);
        *usage.by_owner.entry(owner.clone()).or_default() = own;
        Ok(())
    }

    fn release(&self, owner: &PrincipalId, amount: usize) {
        let mut usage = self.usage.lock();
        let Some(own) = usage.by_owner.get_mut(owner) else {
            return;
        };
        let before = *own;
        *own = own.saturating_sub(amount);
        let after = *own;
        if after == 0 {
            usage.by_owner.remove(owner);
        }
        usage.total = usage.total.saturating_sub(amount);
        usage.unused_shares += self.unused_share(owner, after) - self.unused_share(owner, before);
    }
}

/// A part of a pool, returned on drop.
#[derive(Debug)]
pub(crate) struct Lease {
    pool: Arc<Pool>,
    pub(crate) owner: PrincipalId,
    amount: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.pool.release(&self.owner, self.amount);
    }
}

/// The account of an owner, or of one of its sandboxes.
#[derive(Clone)]
pub(crate) struct Account {
    accounts: Arc<Accounts>,
    owner: PrincipalId,
    /// The memory of a sandbox.
    sandbox: Option<Arc<Pool>>,
}

impl Account {
    pub(crate) fn new(accounts: &Arc<Accounts>, owner: &PrincipalId) -> Self {
        Self {
            accounts: Arc::clone(accounts),
            owner: owner.clone(),
            sandbox: None,
        }
    }

    /// Bounds the memory of a sandbox.
    pub(crate) fn with_limit(mut self, bytes: usize) -> Self {
        self.sandbox = Some(Pool::new(bytes, bytes, &Keys::default()));
        self
    }

    /// Returns a charge of no bytes.
    pub(crate) fn charge(&self) -> MemoryCharge {
        MemoryCharge {
            account: self.clone(),
            bytes: 0,
        }
    }

    /// Takes the descriptors of a command.
    pub(crate) fn take_descriptors(&self) -> Result<Lease, ResourceExhausted> {
        let descriptors = &self.accounts.descriptors;
        let taken = descriptors.take(&self.owner, DESCRIPTORS_PER_COMMAND);
        taken.map_err(|_| ResourceExhausted::Descriptors)
    }
}

/// Bytes charged to an account, returned on drop.
pub(crate) struct MemoryCharge {
    account: Account,
    bytes: usize,
}

/// A resource that a request needs is used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ResourceExhausted {
    /// The memory of a sandbox, or of its key or of the server.
    #[error(
        "the server keeps too much for this {0}: end commands, watchers or requests, or retry later"
    )]
    Memory(&'static str),
    #[error("the server has reached its maximum number of open files: end commands")]
    Descriptors,
}

impl MemoryCharge {
    /// Charges more bytes.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), ResourceExhausted> {
        let account = &self.account;
        if let Some(sandbox) = &account.sandbox {
            let added = sandbox.add(&account.owner, bytes);
            added.map_err(|_| ResourceExhausted::Memory("sandbox"))?;
        }
        if account.accounts.memory.add(&account.owner, bytes).is_err() {
            if let Some(sandbox) = &account.sandbox {
                sandbox.release(&account.owner, bytes);
            }
            return Err(ResourceExhausted::Memory("key"));
        }
        self.bytes += bytes;
        Ok(())
    }

    /// Moves all bytes to a new charge.
    pub(crate) fn split(&mut self) -> Self {
        let mut other = self.account.charge();
        std::mem::swap(&mut self.bytes, &mut other.bytes);
        other
    }

    /// Takes over the bytes of another charge to the same account.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Changes the charge to `bytes`.
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), ResourceExhausted> {
        if bytes > self.bytes {
            return self.grow(bytes - self.bytes);
        }
        self.shrink(self.bytes - bytes);
        Ok(())
    }

    /// Returns bytes.
    pub(crate) fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        let account = &self.account;
        if let Some(sandbox) = &account.sandbox {
            sandbox.release(&account.owner, bytes);
        }
        account.accounts.memory.release(&account.owner, bytes);
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owners() -> (Keys, PrincipalId, PrincipalId) {
        let mut keys = Keys::default();
        keys.add("one");
        keys.add("two");
        let (one, two) = (keys.owner("one").unwrap(), keys.owner("two").unwrap());
        (keys, one, two)
    }

    #[test]
    fn no_key_takes_the_share_of_another() {
        let (keys, one, two) = owners();
        let pool = Pool::new(8, 8, &keys);
        let six: Vec<Lease> = (0..6).map(|_| pool.take(&one, 1).unwrap()).collect();
        assert_eq!(pool.take(&one, 1).err(), Some(Exhausted::All(8)));
        let both = pool.take(&two, 2).unwrap();
        assert_eq!(pool.take(&two, 1).err(), Some(Exhausted::All(8)));
        drop(six);
        assert!(pool.take(&two, 4).is_ok());
        drop(both);
        let usage = pool.usage.lock();
        assert_eq!((usage.total, usage.unused_shares), (0, 4));
    }

    #[test]
    fn a_single_key_uses_everything() {
        let mut keys = Keys::default();
        for keys in [keys.clone(), {
            keys.add("one");
            keys
        }] {
            let owner = keys.owner("one").unwrap();
            let pool = Pool::new(8, 8, &keys);
            let all = pool.take(&owner, 8).unwrap();
            assert_eq!(pool.take(&owner, 1).err(), Some(Exhausted::All(8)));
            drop(all);
            assert!(Pool::new(8, 3, &keys).take(&owner, 3).is_ok());
            let refused = Pool::new(8, 3, &keys).take(&owner, 4).err();
            assert_eq!(refused, Some(Exhausted::Principal(3)));
        }
    }

    #[test]
    fn a_charge_is_bounded_by_sandbox_and_key() {
        let (keys, one, _) = owners();
        let limits = ServerLimits {
            memory_bytes: 100,
            ..ServerLimits::default()
        };
        let accounts = Arc::new(Accounts::new(&limits, &keys));
        let account = Account::new(&accounts, &one);
        let sandbox = account.clone().with_limit(50);
        let mut charge = sandbox.charge();
        assert_eq!(charge.grow(51), Err(ResourceExhausted::Memory("sandbox")));
        charge.grow(50).unwrap();
        let mut other = account.with_limit(50).charge();
        assert_eq!(other.grow(26), Err(ResourceExhausted::Memory("key")));
        charge.shrink(10);
        other.grow(26).unwrap();
        drop((charge, other));
        assert_eq!(accounts.memory.used(), 0);
    }
}
