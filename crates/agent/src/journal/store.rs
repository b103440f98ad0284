//! Where runs are kept: a directory with one directory per run.

use std::error::Error as StdError;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use cantle_core::event::RunStatus;
use cantle_core::ids::RunId;
use cantle_core::ledger::Ledger;
use cantle_core::sandbox::SandboxHandle;
use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::committer::Committer;
use super::ended::{Accounts, Ended};
use super::media::{MediaFiles, hex};
use super::reading::Lines;
use super::record::{self, Header, Line, Record};
use super::seal::Seal;
use super::{FILE_NAME, Journal, glance};
use crate::machine::{Fact, ModelFailure};

/// Below a run's directory: the runs of its sub-agents, by call.
const SUB_AGENTS: &str = "agents";

/// A directory of runs that can be looked at and resumed. Its functions block.
///
/// Only its owner may read it: a journal holds what the model and its tools said.
#[derive(Clone, Debug)]
pub struct RunStore {
    directory: PathBuf,
    committer: Arc<Committer>,
}

/// A run that is kept in a [`RunStore`], as its journal tells.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct KeptRun {
    /// The run.
    pub run: RunId,
    /// The agent that works on it.
    pub agent: String,
    /// The model.
    pub model: String,
    /// The task, as text.
    pub task: String,
    /// How it stands.
    pub status: KeptStatus,
    /// Why it did not finish, where it ended so.
    pub error: Option<String>,
    /// Turns that were answered, also those that were taken back.
    pub turns: u32,
    /// Tokens read and written, by sub-agents too.
    pub tokens: u64,
    /// What that cost in US dollars, as far as providers or prices said.
    pub cost_usd: Option<f64>,
    /// When it began.
    pub begun: SystemTime,
    /// When something last happened in it.
    pub latest: SystemTime,
    /// Its sandbox, where that outlives the process.
    pub sandbox: Option<SandboxHandle>,
    /// What whoever began the run wanted to find again.
    pub note: Value,
    /// Its directory.
    pub directory: PathBuf,
}

/// How a kept run stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeptStatus {
    /// A process works on it.
    Running,
    /// The process that worked on it ended before the run did.
    Interrupted,
    /// It ended like this.
    Ended(RunStatus),
}

impl KeptRun {
    /// The runs of sub-agents that are kept with it. Blocks.
    #[must_use]
    pub fn sub_agents(&self) -> Vec<Self> {
        let calls = fs::read_dir(self.directory.join(SUB_AGENTS))
            .into_iter()
            .flatten();
        let stores = calls.flatten().map(|call| RunStore::new(call.path()));
        // What can't be read has nothing to tell.
        stores
            .flat_map(|store| store.list().unwrap_or_default().0)
            .collect()
    }
}

impl KeptStatus {
    /// Whether it can go on.
    #[must_use]
    pub fn is_resumable(self) -> bool {
        !matches!(self, Self::Running | Self::Ended(RunStatus::Finished))
    }
}

/// A run to go on with: what its journal holds, and the journal itself.
#[derive(Debug)]
pub(crate) struct Reopened {
    pub(crate) header: Header,
    pub(crate) facts: Vec<Fact>,
    /// Whether it is finished, so that only what it finished with can be handed over again.
    pub(crate) finished: bool,
    pub(crate) journal: Journal,
    /// When something last happened, as far as facts say.
    pub(crate) time_used: Duration,
}

/// A sub-agent in the background, as the note of its run tells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Left {
    /// What the model calls it by.
    pub(crate) id: String,
    /// How many began before it.
    pub(crate) number: u64,
    /// The tool that began it.
    pub(crate) tool: String,
    /// The call that did.
    pub(crate) call_id: String,
}

impl Left {
    pub(crate) fn note(&self) -> Value {
        json!({ "background": self })
    }

    pub(crate) fn from_note(note: &Value) -> Option<Self> {
        serde_json::from_value(note.get("background")?.clone()).ok()
    }
}

/// A store, or a run in it, that can't be read or written.
#[derive(Debug)]
pub struct StoreError {
    kind: StoreErrorKind,
    message: String,
    source: Option<io::Error>,
}

/// The kinds of store failure that callers tell apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// There is no such run.
    NotFound,
    /// Another process works on the run.
    InUse,
    /// The run finished; there is nothing to go on with.
    Finished,
    /// The journal is none, or of a later version.
    Unreadable,
    /// The disk or the directory failed.
    Io,
}

impl StoreError {
    pub(super) fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    pub(super) fn io(what: &str, path: &Path, source: io::Error) -> Self {
        Self {
            kind: StoreErrorKind::Io,
            message: format!("failed to {what} {}: {source}", path.display()),
            source: Some(source),
        }
    }

    /// What kind of failure it is.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // What the source says itself has been said.
        self.source.as_ref()?.source()
    }
}

impl RunStore {
    /// The store in this directory, which is made when the first run begins.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            committer: Arc::default(),
        }
    }

    /// The directory of a run, whether or not it is there.
    #[must_use]
    pub fn run_directory(&self, run: RunId) -> PathBuf {
        self.directory.join(run.to_string())
    }

    /// The store with the runs of the sub-agent that a call of a run calls.
    pub(crate) fn of_call(&self, run: RunId, call_id: &str) -> Self {
        // Ids come from the model, and need not be names of files.
        let name = hex(&Sha256::digest(call_id));
        Self {
            directory: self.run_directory(run).join(SUB_AGENTS).join(name),
            committer: Arc::clone(&self.committer),
        }
    }

    /// The kept runs, latest first, and what in the directory could not be read as one.
    ///
    /// # Errors
    /// Where the directory can't be read. One that is not there has no runs.
    pub fn list(&self) -> Result<(Vec<KeptRun>, Vec<StoreError>), StoreError> {
        let entries = match fs::read_dir(&self.directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Default::default()),
            Err(error) => return Err(StoreError::io("read", &self.directory, error)),
        };
        let mut runs = Vec::new();
        let mut unreadable = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| StoreError::io("read", &self.directory, error))?;
            let Some(run) = entry
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok())
            else {
                continue;
            };
            match self.get(run) {
                Ok(run) => runs.push(run),
                Err(error) => unreadable.push(error),
            }
        }
        runs.sort_by_key(|run: &KeptRun| std::cmp::Reverse(run.run));
        Ok((runs, unreadable))
    }

    /// One run, as its journal tells.
    ///
    /// # Errors
    /// [`StoreErrorKind::NotFound`], or where the journal can't be read.
    pub fn get(&self, run: RunId) -> Result<KeptRun, StoreError> {
        let directory = self.run_directory(run);
        let mut kept = glance::kept_run(&mut self.open_journal(run)?, &directory)?;
        if kept.status == KeptStatus::Interrupted && self.try_lock(run)?.is_none() {
            kept.status = KeptStatus::Running;
        }
        Ok(kept)
    }

    /// Removes what is kept of a run: its journal and its directory. A sandbox that lives elsewhere
    /// is not touched.
    ///
    /// # Errors
    /// [`StoreErrorKind::InUse`] where a process works on it; [`StoreErrorKind::NotFound`].
    pub fn remove(&self, run: RunId) -> Result<(), StoreError> {
        let directory = self.run_directory(run);
        if !directory.is_dir() {
            return Err(not_found(run));
        }
        let _lock = self.try_lock(run)?.ok_or_else(|| in_use(run))?;
        fs::remove_dir_all(&directory).map_err(|error| StoreError::io("remove", &directory, error))
    }

    /// Begins the journal of a run. Many at once take turns.
    pub(crate) async fn begin(&self, header: Header) -> Result<Journal, StoreError> {
        let (store, run) = (self.clone(), header.run);
        let begun = self.committer.run(move || store.begin_now(header)).await;
        begun.unwrap_or_else(|| {
            let why = format!("run {run} can't begin: the program is ending");
            Err(StoreError::new(StoreErrorKind::Io, why))
        })
    }

    fn begin_now(&self, header: Header) -> Result<Journal, StoreError> {
        let run = header.run;
        let directory = self.run_directory(run);
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder
            .create(&directory)
            .map_err(|error| StoreError::io("make", &directory, error))?;
        let lock = self.try_lock(run)?.ok_or_else(|| in_use(run))?;
        let path = directory.join(FILE_NAME);
        let begun = || -> io::Result<File> {
            let media = MediaFiles::new(&directory);
            let line = Line::new(&Record::Begun(Box::new(header)))?;
            let line = line.finish(&media, Seal { batch: 0, left: 0 })?;
            let mut file = OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all(&line)?;
            file.sync_all()?;
            // The name of a new file is on the disk only when its directory is.
            File::open(&directory)?.sync_all()?;
            File::open(&self.directory)?.sync_all()?;
            Ok(file)
        };
        match begun() {
            Ok(file) => Ok(Journal::new(&directory, file, lock, 1, &self.committer)),
            Err(error) => {
                // Half a beginning is no run, and nobody would ever remove it.
                if error.kind() != io::ErrorKind::AlreadyExists {
                    let _ = fs::remove_dir_all(&directory);
                }
                Err(StoreError::io("write", &path, error))
            }
        }
    }

    /// What a run came to that finished; `None` where it has not.
    pub(crate) fn ended(&self, run: RunId) -> Result<Option<Ended>, StoreError> {
        let mut lines = self.open_journal(run)?;
        let media = MediaFiles::new(&self.run_directory(run));
        let mut sandbox = read_header(&mut lines, &media)?.sandbox;
        let mut accounts = Accounts::default();
        let mut ended = None;
        each_record(&mut lines, &media, &mut |record| match record {
            Record::Ended { finish, files, .. } => ended = finish.map(|finish| (finish, files)),
            Record::Fact { fact } => {
                if let Fact::Resumed {
                    fresh: Some(fresh), ..
                } = &*fact
                {
                    sandbox.clone_from(&fresh.handle);
                }
                accounts.note(fact.into_owned());
            }
            Record::Begun(_) => {}
        })?;
        Ok(ended.map(|(finish, files)| Ended {
            finish,
            files,
            sandbox,
            ledger: accounts.ledger,
        }))
    }

    /// What sub-agents used whose runs are kept here.
    pub(crate) fn accounts(&self) -> Result<Vec<Ledger>, StoreError> {
        let mut ledgers = Vec::new();
        for run in self.list()?.0 {
            let mut lines = self.open_journal(run.run)?;
            let media = MediaFiles::new(&run.directory);
            read_header(&mut lines, &media)?;
            let mut accounts = Accounts::default();
            each_record(&mut lines, &media, &mut |record| {
                if let Record::Fact { fact } = record {
                    accounts.note(fact.into_owned());
                }
            })?;
            ledgers.push(accounts.ledger);
        }
        Ok(ledgers)
    }

    /// The sub-agents in the background that a run called.
    pub(crate) fn left(&self, run: RunId) -> Result<Vec<Left>, StoreError> {
        let calls = match fs::read_dir(self.run_directory(run).join(SUB_AGENTS)) {
            Ok(calls) => calls,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(StoreError::io("read", &self.directory, error)),
        };
        let mut left = Vec::new();
        for call in calls.flatten() {
            for run in Self::new(call.path()).list()?.0 {
                left.extend(Left::from_note(&run.note));
            }
        }
        left.sort_by_key(|left: &Left| left.number);
        Ok(left)
    }

    /// Opens the journal of a run that can go on, and cuts off what is no whole record.
    pub(crate) fn reopen(&self, run: RunId) -> Result<Reopened, StoreError> {
        let directory = self.run_directory(run);
        if !directory.is_dir() {
            return Err(not_found(run));
        }
        let lock = self.try_lock(run)?.ok_or_else(|| in_use(run))?;
        let path = directory.join(FILE_NAME);
        let mut lines = self.open_journal(run)?;
        let media = MediaFiles::new(&directory);
        let mut header = read_header(&mut lines, &media)?;
        let mut facts = Vec::new();
        let mut finished = false;
        let mut clock = Clock::new(header.time);
        each_record(&mut lines, &media, &mut |record| match record {
            Record::Fact { fact } => {
                clock.note(&fact);
                if let Fact::Resumed {
                    fresh: Some(fresh), ..
                } = &*fact
                {
                    header.sandbox.clone_from(&fresh.handle);
                }
                facts.push(fact.into_owned());
                finished = false;
            }
            Record::Ended { status, .. } => finished = status == RunStatus::Finished,
            Record::Begun(_) => {}
        })?;
        let (whole, batch) = (lines.whole(), lines.next_batch());
        let reopened = || -> io::Result<File> {
            let mut file = OpenOptions::new().append(true).open(&path)?;
            file.set_len(whole)?;
            file.seek(SeekFrom::End(0))?;
            Ok(file)
        };
        let file = reopened().map_err(|error| StoreError::io("write", &path, error))?;
        Ok(Reopened {
            header,
            facts,
            finished,
            journal: Journal::new(&directory, file, lock, batch, &self.committer),
            time_used: clock.used,
        })
    }

    fn open_journal(&self, run: RunId) -> Result<Lines, StoreError> {
        let path = self.run_directory(run).join(FILE_NAME);
        Lines::open(&path)?.ok_or_else(|| not_found(run))
    }

    /// The lock of a run's directory; `None` where another process has it. The kernel lets go of it
    /// when its holder ends, however that happens.
    fn try_lock(&self, run: RunId) -> Result<Option<Lock>, StoreError> {
        let path = self.run_directory(run).join("lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(|error| StoreError::io("open", &path, error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(Lock(file))),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(StoreError::io("lock", &path, error.into())),
        }
    }
}

/// The lock of a run's directory. It is let go of in words: a child that is being started has the file
/// too, and would hold it until it runs its program.
#[derive(Debug)]
pub(super) struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Otherwise it goes with the file.
        let _ = rustix::fs::flock(&self.0, FlockOperation::Unlock);
    }
}

fn not_found(run: RunId) -> StoreError {
    StoreError::new(StoreErrorKind::NotFound, format!("no run {run} is kept"))
}

fn in_use(run: RunId) -> StoreError {
    StoreError::new(
        StoreErrorKind::InUse,
        format!("another process works on run {run}"),
    )
}

/// A run is finished, and nothing of it is left to do.
pub(crate) fn is_finished(run: RunId) -> StoreError {
    StoreError::new(
        StoreErrorKind::Finished,
        format!("run {run} is finished; there is nothing left to do"),
    )
}

fn read_header(lines: &mut Lines, media: &MediaFiles) -> Result<Header, StoreError> {
    let line = lines.header()?;
    match record::from_line(&line, media) {
        Ok(Record::Begun(header)) => Ok(*header),
        Ok(_) => Err(lines.unreadable("it does not begin with a header")),
        Err(error) => Err(lines.unreadable(&error.to_string())),
    }
}

/// Reads the records behind the header, up to the last whole one.
fn each_record(
    lines: &mut Lines,
    media: &MediaFiles,
    visit: &mut dyn FnMut(Record<'static>),
) -> Result<(), StoreError> {
    while let Some(line) = lines.next()? {
        visit(record::from_line(&line, media).map_err(|error| lines.wrong(&error.to_string()))?);
    }
    Ok(())
}

/// Adds up the time that processes worked on a run, as far as facts tell.
struct Clock {
    since: f64,
    used: Duration,
}

impl Clock {
    fn new(since: f64) -> Self {
        Self {
            since,
            used: Duration::ZERO,
        }
    }

    fn note(&mut self, fact: &Fact) {
        let now = match fact {
            Fact::Resumed { time, .. } => {
                self.since = *time;
                return;
            }
            Fact::ModelAnswered { message, .. } => message.request_end_time,
            Fact::CallStarted { time, .. } => Some(*time),
            Fact::CallFinished { outcome, .. } => Some(outcome.time),
            // These say how long a call took, not when it was.
            Fact::ModelFailed(ModelFailure { call, .. })
            | Fact::Summarized { call, .. }
            | Fact::OutOfTime {
                call: Some(call), ..
            }
            | Fact::Cancelled { call: Some(call) } => {
                Some(self.since + call.duration.as_secs_f64())
            }
            _ => None,
        };
        if let Some(now) = now {
            self.used += Duration::try_from_secs_f64(now - self.since).unwrap_or_default();
            self.since = now;
        }
    }
}

#[cfg(test)]
mod tests;
