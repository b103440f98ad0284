//! Where runs are kept: a directory with one directory per run.

use std::error::Error as StdError;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cantle_core::event::{Finish, RunStatus};
use cantle_core::ids::RunId;
use cantle_core::sandbox::SandboxHandle;
use rustix::fs::FlockOperation;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::committer::Committer;
use super::media::{MediaFiles, hex};
use super::record::{self, Header, Record, VERSION};
use super::{FILE_NAME, Journal};
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
    fn add(&mut self, tokens: u64, cost_usd: Option<f64>) {
        self.tokens += tokens;
        let costs = [self.cost_usd, cost_usd];
        self.cost_usd = costs.into_iter().flatten().reduce(|a, b| a + b);
    }

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
    pub(crate) journal: Journal,
    /// When something last happened, as far as facts say.
    pub(crate) time_used: Duration,
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
    fn new(kind: StoreErrorKind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            source: None,
        }
    }

    fn io(what: &str, path: &Path, source: io::Error) -> Self {
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
        let (mut reader, path) = self.open_journal(run)?;
        let modified = reader.get_ref().metadata().and_then(|it| it.modified());
        let media = MediaFiles::new(&directory);
        let header = read_header(&mut reader, &path, &media)?;
        let identity = serde_json::to_value(&header.identity).unwrap_or_default();
        let text = |key: &str| {
            identity
                .get(key)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let begun = UNIX_EPOCH + Duration::try_from_secs_f64(header.time).unwrap_or_default();
        let mut kept = KeptRun {
            run,
            agent: text("agent"),
            model: text("model"),
            task: header.task,
            status: KeptStatus::Interrupted,
            error: None,
            turns: 0,
            tokens: 0,
            cost_usd: None,
            begun,
            latest: modified.unwrap_or(begun),
            sandbox: header.sandbox,
            note: header.note,
            directory,
        };
        each_record(&mut reader, &path, &media, &mut |record| {
            kept.status = KeptStatus::Interrupted;
            match record {
                Record::Fact { fact } => {
                    kept.turns += u32::from(matches!(*fact, Fact::ModelAnswered { .. }));
                    if let Some(call) = fact.model_call() {
                        kept.add(call.usage.total(), call.cost_usd);
                    }
                    match fact.into_owned() {
                        Fact::CallFinished { outcome, .. } => {
                            if let Some(ledger) = &outcome.sub_agent {
                                let tokens = ledger.reported_usage() + ledger.estimated_usage();
                                kept.add(tokens.total(), ledger.cost_usd());
                            }
                        }
                        Fact::Resumed {
                            fresh: Some(fresh), ..
                        } => kept.sandbox = fresh.handle,
                        _ => {}
                    }
                }
                Record::Ended { status, error, .. } => {
                    kept.status = KeptStatus::Ended(status);
                    kept.error = error;
                }
                Record::Begun(_) => {}
            }
        })?;
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

    /// Begins the journal of a run.
    pub(crate) fn begin(&self, header: Header) -> Result<Journal, StoreError> {
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
            let line = record::to_line(&Record::Begun(Box::new(header)), &media)?;
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
            Ok(file) => Ok(Journal::new(&directory, file, lock, &self.committer)),
            Err(error) => {
                // Half a beginning is no run, and nobody would ever remove it.
                if error.kind() != io::ErrorKind::AlreadyExists {
                    let _ = fs::remove_dir_all(&directory);
                }
                Err(StoreError::io("write", &path, error))
            }
        }
    }

    /// The finish call that a run ended with, where it has.
    pub(crate) fn finish(&self, run: RunId) -> Result<Option<Finish>, StoreError> {
        let directory = self.run_directory(run);
        let (mut reader, path) = self.open_journal(run)?;
        let media = MediaFiles::new(&directory);
        read_header(&mut reader, &path, &media)?;
        let mut finish = None;
        each_record(&mut reader, &path, &media, &mut |record| {
            if let Record::Ended { finish: ended, .. } = record {
                finish = ended;
            }
        })?;
        Ok(finish)
    }

    /// Opens the journal of a run that can go on, and cuts off what is no whole record.
    pub(crate) fn reopen(&self, run: RunId) -> Result<Reopened, StoreError> {
        let directory = self.run_directory(run);
        if !directory.is_dir() {
            return Err(not_found(run));
        }
        let lock = self.try_lock(run)?.ok_or_else(|| in_use(run))?;
        let (mut reader, path) = self.open_journal(run)?;
        let media = MediaFiles::new(&directory);
        let mut header = read_header(&mut reader, &path, &media)?;
        let mut facts = Vec::new();
        let mut finished = false;
        let mut clock = Clock::new(header.time);
        let whole = each_record(&mut reader, &path, &media, &mut |record| match record {
            Record::Fact { fact } => {
                clock.note(&fact);
                if let Fact::Resumed {
                    fresh: Some(fresh), ..
                } = &*fact
                {
                    header.sandbox.clone_from(&fresh.handle);
                }
                facts.push(fact.into_owned());
            }
            Record::Ended { status, .. } => finished = status == RunStatus::Finished,
            Record::Begun(_) => {}
        })?;
        if finished {
            return Err(StoreError::new(
                StoreErrorKind::Finished,
                format!("run {run} is finished; there is nothing left to do"),
            ));
        }
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
            journal: Journal::new(&directory, file, lock, &self.committer),
            time_used: clock.used,
        })
    }

    fn open_journal(&self, run: RunId) -> Result<(BufReader<File>, PathBuf), StoreError> {
        let path = self.run_directory(run).join(FILE_NAME);
        match File::open(&path) {
            Ok(file) => Ok((BufReader::new(file), path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_found(run)),
            Err(error) => Err(StoreError::io("read", &path, error)),
        }
    }

    /// The lock of a run's directory; `None` where another process has it. The kernel lets go of it
    /// when its holder ends, however that happens.
    fn try_lock(&self, run: RunId) -> Result<Option<File>, StoreError> {
        let path = self.run_directory(run).join("lock");
        let opened = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path);
        let file = opened.map_err(|error| StoreError::io("open", &path, error))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
            Err(error) => Err(StoreError::io("lock", &path, error.into())),
        }
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

fn unreadable(path: &Path, why: &str) -> StoreError {
    StoreError::new(
        StoreErrorKind::Unreadable,
        format!("{} is no journal of ours: {why}", path.display()),
    )
}

fn read_header(
    reader: &mut BufReader<File>,
    path: &Path,
    media: &MediaFiles,
) -> Result<Header, StoreError> {
    let line = next_line(reader, path)?.ok_or_else(|| unreadable(path, "it is empty"))?;
    #[derive(serde::Deserialize)]
    struct Version {
        version: u32,
    }
    let version: Version =
        serde_json::from_slice(&line).map_err(|error| unreadable(path, &error.to_string()))?;
    if version.version != VERSION {
        let why = format!(
            "its version is {}, and this program reads {VERSION}",
            version.version
        );
        return Err(unreadable(path, &why));
    }
    match record::from_line(&line, media) {
        Ok(Record::Begun(header)) => Ok(*header),
        Ok(_) => Err(unreadable(path, "it does not begin with a header")),
        Err(error) => Err(unreadable(path, &error.to_string())),
    }
}

/// Reads the records behind the header, up to the last whole one. Returns how many bytes the whole
/// ones have, with the header.
fn each_record(
    reader: &mut BufReader<File>,
    path: &Path,
    media: &MediaFiles,
    visit: &mut dyn FnMut(Record<'static>),
) -> Result<u64, StoreError> {
    let position = |reader: &mut BufReader<File>| {
        reader
            .stream_position()
            .map_err(|error| StoreError::io("read", path, error))
    };
    let mut whole = position(reader)?;
    let mut number = 1;
    while let Some(line) = next_line(reader, path)? {
        number += 1;
        let record = record::from_line(&line, media)
            .map_err(|error| unreadable(path, &format!("line {number}: {error}")))?;
        visit(record);
        whole = position(reader)?;
    }
    Ok(whole)
}

/// The next line that ends as a line does; what a crash left of one is none.
fn next_line(reader: &mut BufReader<File>, path: &Path) -> Result<Option<Vec<u8>>, StoreError> {
    let mut line = Vec::new();
    reader
        .read_until(b'\n', &mut line)
        .map_err(|error| StoreError::io("read", path, error))?;
    Ok((line.pop() == Some(b'\n')).then_some(line))
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
