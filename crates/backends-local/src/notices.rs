//! Notices of changes in the directories of sandboxes, by inotify.
//!
//! A user has few inotify instances, so all sandboxes of a backend share one. A watch reports one change and ends:
//! commands that change files all the time cost one event for each notice, however many changes they make.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, Weak};

use cantle_core::sandbox::{ChangeNotice, SandboxError, SandboxErrorKind, SandboxPath};
use parking_lot::Mutex;
use rustix::fs::inotify::{
    CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init, remove_watch,
};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::files::Root;
use crate::readiness::register;

/// Maximum number of directories that one sandbox has watched.
pub(crate) const MAX_DIRECTORIES: usize = 4096;
/// The backend uses at most this fraction of the watches that a user may have.
const SHARES: usize = 8;
const MAX_USER_WATCHES: &str = "/proc/sys/fs/inotify/max_user_watches";

/// A write through a memory mapping is seen when the file is closed.
const CHANGES: WatchFlags = WatchFlags::ATTRIB
    .union(WatchFlags::CLOSE_WRITE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MODIFY)
    .union(WatchFlags::MOVE)
    .union(WatchFlags::MOVE_SELF);

/// The inotify instance of a backend; it exists while directories are watched.
#[derive(Debug, Default)]
pub(crate) struct Notices(Mutex<Weak<Instance>>);

#[derive(Debug)]
struct Instance {
    inotify: Arc<AsyncFd<OwnedFd>>,
    table: Arc<Mutex<Table>>,
    max_watches: usize,
    reader: AbortOnDropHandle<()>,
}

/// The tokens to cancel, by watch descriptor; each with the number of its notice.
#[derive(Debug, Default)]
struct Table {
    tokens: HashMap<i32, Vec<(u64, CancellationToken)>>,
    notices: u64,
}

/// The watches of one notice.
#[derive(Debug)]
struct Watch {
    instance: Arc<Instance>,
    notice: u64,
    descriptors: Vec<i32>,
    _places: OwnedSemaphorePermit,
}

/// Gives all notices when the reader ends, because no other change would be noticed.
struct Reading(Arc<Mutex<Table>>);

impl Notices {
    /// Watches directories of a sandbox, which has `places` for them. Needs a runtime; blocks.
    pub(crate) fn watch(
        &self,
        root: &Root,
        places: &Arc<Semaphore>,
        directories: &[SandboxPath],
    ) -> Result<ChangeNotice, SandboxError> {
        let count = u32::try_from(directories.len()).unwrap_or(u32::MAX);
        let places = Arc::clone(places).try_acquire_many_owned(count);
        let places = places.map_err(|_| too_many("sandbox", MAX_DIRECTORIES))?;
        let instance = self.instance().map_err(failed)?;
        let changed = CancellationToken::new();
        let mut watch = Watch {
            notice: instance.next_notice(),
            instance,
            descriptors: Vec::with_capacity(directories.len()),
            _places: places,
        };
        for path in directories {
            let directory = match root.open_directory(path) {
                Ok(directory) => directory,
                Err(error) => match error.kind() {
                    SandboxErrorKind::NotFound | SandboxErrorKind::NotADirectory => continue,
                    _ => return Err(error),
                },
            };
            watch.add(&directory, &changed)?;
        }
        Ok(ChangeNotice::new(changed, watch))
    }

    fn instance(&self) -> Result<Arc<Instance>, std::io::Error> {
        let mut current = self.0.lock();
        match current.upgrade() {
            // The reader ends with the runtime in which it was started.
            Some(instance) if !instance.reader.is_finished() => Ok(instance),
            _ => {
                let instance = Arc::new(Instance::new()?);
                *current = Arc::downgrade(&instance);
                Ok(instance)
            }
        }
    }
}

impl Instance {
    fn new() -> Result<Self, std::io::Error> {
        let inotify = init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let inotify = Arc::new(register(inotify, Interest::READABLE)?);
        let table = Arc::new(Mutex::new(Table::default()));
        let reader = tokio::spawn(read(Arc::clone(&inotify), Reading(Arc::clone(&table))));
        let max_watches: usize = fs::read_to_string(MAX_USER_WATCHES)?
            .trim()
            .parse()
            .map_err(std::io::Error::other)?;
        Ok(Self {
            inotify,
            table,
            max_watches: max_watches / SHARES,
            reader: AbortOnDropHandle::new(reader),
        })
    }

    fn next_notice(&self) -> u64 {
        let mut table = self.table.lock();
        table.notices += 1;
        table.notices
    }
}

impl Watch {
    fn add(&mut self, directory: &OwnedFd, token: &CancellationToken) -> Result<(), SandboxError> {
        let flags = CHANGES | WatchFlags::ONESHOT | WatchFlags::ONLYDIR;
        let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
        let instance = &self.instance;
        // The reader must not see an event of the watch before its token is there.
        let mut table = instance.table.lock();
        if table.tokens.len() >= instance.max_watches {
            return Err(too_many("backend", instance.max_watches));
        }
        let added = add_watch(&*instance.inotify, path, flags);
        let descriptor = added.map_err(|error| failed(error.into()))?;
        let tokens = table.tokens.entry(descriptor).or_default();
        tokens.push((self.notice, token.clone()));
        self.descriptors.push(descriptor);
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for descriptor in &self.descriptors {
            let mut table = self.instance.table.lock();
            let Entry::Occupied(mut tokens) = table.tokens.entry(*descriptor) else {
                continue;
            };
            tokens
                .get_mut()
                .retain(|(notice, _)| *notice != self.notice);
            if tokens.get().is_empty() {
                tokens.remove();
                // It fails if the watch has ended and its event was not read yet.
                let _ = remove_watch(&*self.instance.inotify, *descriptor);
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.give_all();
    }
}

impl Reading {
    fn give(&self, descriptor: i32) {
        let tokens = self.0.lock().tokens.remove(&descriptor);
        for (_, token) in tokens.into_iter().flatten() {
            token.cancel();
        }
    }

    fn give_all(&self) {
        for (_, token) in self.0.lock().tokens.values().flatten() {
            token.cancel();
        }
    }
}

/// Reads events, and gives the notices they belong to.
async fn read(inotify: Arc<AsyncFd<OwnedFd>>, reading: Reading) {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    while let Ok(mut ready) = inotify.readable().await {
        let mut events = Reader::new(inotify.get_ref(), &mut buffer);
        loop {
            match events.next() {
                Ok(event) if event.events().contains(ReadFlags::QUEUE_OVERFLOW) => {
                    reading.give_all();
                }
                Ok(event) => reading.give(event.wd()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    ready.clear_ready();
                    break;
                }
                Err(_) => return,
            }
        }
    }
}

fn too_many(owner: &str, maximum: usize) -> SandboxError {
    SandboxError::unavailable(format!(
        "the {owner} watches {maximum} directories, which is the maximum"
    ))
}

fn failed(error: std::io::Error) -> SandboxError {
    SandboxError::io("failed to watch directories", error)
}
